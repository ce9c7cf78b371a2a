"""Imports into a real archive: complete, once, resumable, and clear about what they could not take."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from postroom.archive.importing import preparation
from postroom.archive.importing import run as import_run
from postroom.archive.importing.interpreting import plain
from postroom.archive.importing.preparation import PreparingProcess
from postroom.archive.importing.run import count_mail, import_mail
from postroom.archive.importing.sources import maildir_files, open_eml, open_maildir, open_mbox, open_takeout
from postroom.archive.importing.state import (
    FoundMessage,
    ImportFinding,
    ImportProgress,
    ImportReport,
    ImportSource,
    MailFile,
)
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import prepare
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.errors import BadInput, Fatal, Retryable
from tests.support.archives import ME, plain_letter
from tests.support.mail import generated_mailbox, takeout_form, write_maildir, write_mbox, write_takeout

COUNT = 120


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_run, "BATCH_MESSAGES", 25)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def run(root: Path, source: ImportSource, show: Callable[[ImportProgress], None] | None = None) -> ImportReport:
    with FileArchiveWriter(root) as archive:
        return import_mail(archive, ME, source, progress=show)


def stored_hashes(root: Path) -> list[str]:
    """Of every message, from its bytes as they are read back."""
    with FileArchiveReader(root) as archive:
        return sorted(
            hashlib.sha256(shard.raw(row_id)).hexdigest()
            for shard in archive.shards()
            for (row_id,) in shard.query("SELECT id FROM messages")
        )


def hashes(mails: list[bytes]) -> list[str]:
    return sorted({hashlib.sha256(raw).hexdigest() for raw in mails})


def mails(count: int = COUNT) -> list[bytes]:
    box = generated_mailbox(count)
    return [box.raw(index) for index in range(count)]


def mutated(count: int) -> list[bytes]:
    """Generated mail with bytes changed, cut out, doubled and inserted."""
    dice = random.Random(7)
    made = []
    for raw in mails(count):
        data = bytearray(raw)
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(data) + 1)
            data[at : at + dice.choice((0, 1, 40))] = dice.choice(
                (b"", b"\0", b"\nFrom ", b"\n\nFrom x 10:00\n", dice.randbytes(9))
            )
        made.append(bytes(data) + b"\n")
    return made


@pytest.mark.req("SY-16", "SY-7")
@pytest.mark.parametrize("make", [mails, mutated])
def test_an_mbox_is_imported_byte_for_byte_and_only_once(
    root: Path, tmp_path: Path, make: Callable[[int], list[bytes]]
) -> None:
    raws = [raw if raw.endswith(b"\n") else raw + b"\n" for raw in make(COUNT)]
    write_mbox(tmp_path / "m.mbox", raws)
    first = run(root, open_mbox(tmp_path / "m.mbox"))
    assert (first.found, first.stored + first.duplicates, first.unreadable) == (COUNT, COUNT, [])
    assert stored_hashes(root) == hashes(raws)
    again = run(root, open_mbox(tmp_path / "m.mbox"))
    assert (again.found, again.stored, again.duplicates) == (COUNT, 0, COUNT)
    assert stored_hashes(root) == hashes(raws)


@pytest.mark.req("SY-16")
@pytest.mark.parametrize("package", ["mbox", "folder", "zip", "tgz", "tar"])
def test_a_takeout_is_imported_with_ids_labels_and_provenance(root: Path, tmp_path: Path, package: str) -> None:
    box = generated_mailbox(COUNT)
    write_takeout(tmp_path / "All mail.mbox", box)
    report = run(root, open_takeout(packed(tmp_path, package)))
    assert report.stored == COUNT
    names = dict(box.user_labels())
    with FileArchiveReader(root) as archive:
        for index in range(COUNT):
            summary = box.summary(index)
            key = summary.id
            message = archive.message(ME, key)
            assert message is not None
            assert (message.gmail_id, message.provenance) == (key, Provenance.TAKEOUT)
            assert message.thread_id == summary.thread_id
            assert set(message.labels) == {names.get(label, label) for label in summary.label_ids}
            assert int(message.date.timestamp()) == summary.internal_date // 1_000
            assert (archive.raw(ME, key) or b"").rstrip(b"\n") == takeout_form(summary, box.raw(index), names).rstrip(
                b"\n"
            )


def packed(folder: Path, package: str) -> Path:
    mbox = folder / "All mail.mbox"
    name = "Takeout/Mail/All mail.mbox"
    match package:
        case "zip":
            with zipfile.ZipFile(folder / "takeout-1.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                archive.write(mbox, name)
                archive.writestr("Takeout/archive_browser.html", "<html>")
            return folder / "takeout-1.zip"
        case "tgz" | "tar":
            with tarfile.open(folder / f"takeout-1.{package}", "w:gz" if package == "tgz" else "w") as archive:
                archive.add(mbox, name)
            return folder / f"takeout-1.{package}"
        case "folder":
            (folder / "Takeout" / "Mail").mkdir(parents=True)
            mbox.rename(folder / name)
            return folder / "Takeout"
        case _:
            return mbox


@pytest.mark.req("SY-16")
def test_a_maildir_and_a_folder_of_eml_files_are_imported_byte_for_byte(root: Path, tmp_path: Path) -> None:
    raws = [*mutated(40), b"", b"no header, no newline", b"\r", b"\0\xff"]
    write_maildir(tmp_path / "Maildir", raws)
    assert run(root, open_maildir(tmp_path / "Maildir")).stored == len(hashes(raws))
    assert stored_hashes(root) == hashes(raws)
    (tmp_path / "eml" / "below").mkdir(parents=True)
    for number, raw in enumerate(raws):
        (tmp_path / "eml" / ("below" if number % 2 else "") / f"{number}.EML").write_bytes(raw)
    (tmp_path / "eml" / "notes.txt").write_text("not mail")
    again = run(root, open_eml(tmp_path / "eml"))
    assert (again.stored, again.duplicates, again.not_mail) == (0, 40, 4)  # those without any header


def stop_after(root: Path, source: ImportSource, batches: int) -> ImportReport:
    stop = threading.Event()
    seen = []

    def show(progress: ImportProgress) -> None:
        seen.append(progress)
        if len(seen) == batches:
            stop.set()

    with FileArchiveWriter(root) as archive:
        return import_mail(archive, ME, source, progress=show, stop=stop)


@pytest.mark.parametrize("format", ["mbox", "maildir"])
def test_a_stopped_import_goes_on_where_it_was(root: Path, tmp_path: Path, format: str) -> None:
    raws = mails(300)
    (write_mbox if format == "mbox" else write_maildir)(tmp_path / "mail", raws)
    source = (open_mbox if format == "mbox" else open_maildir)(tmp_path / "mail")
    first = stop_after(root, source, batches=2)
    assert first.stopped
    assert 0 < first.found < 300
    assert first.found == first.stored
    rest = run(root, source)
    assert rest.resumed_from is not None
    assert (rest.found, rest.stored, rest.duplicates, rest.stopped) == (300, 300, 0, False)
    assert rest.seconds > first.seconds


def test_progress_counts_what_is_on_disk_up_to_all_of_it(root: Path, tmp_path: Path) -> None:
    write_mbox(tmp_path / "m.mbox", mails())
    seen: list[tuple[int, int]] = []

    def show(progress: ImportProgress) -> None:
        with FileArchiveReader(root) as archive:
            assert archive.count() >= progress.report.stored
        seen.append((progress.bytes_done, progress.report.found))

    run(root, open_mbox(tmp_path / "m.mbox"), show)
    assert seen == sorted(seen)
    assert seen[-1] == ((tmp_path / "m.mbox").stat().st_size, COUNT)


@pytest.mark.parametrize("change", ["grows", "is replaced"])
def test_a_file_that_changed_after_a_stop_is_read_from_its_start(root: Path, tmp_path: Path, change: str) -> None:
    path, raws = tmp_path / "m.mbox", [raw if raw.endswith(b"\n") else raw + b"\n" for raw in mails(300)]
    write_mbox(path, raws)
    assert stop_after(root, open_mbox(path), batches=2).stopped
    new = [plain_letter("new mail", message_id="<new@example.org>")]
    expected = [*raws, *new] if change == "grows" else [*new, *raws[::-1]]
    write_mbox(path, expected)
    report = run(root, open_mbox(path))
    assert report.found == len(expected)
    assert report.resumed_from is None
    assert stored_hashes(root) == hashes(expected)


def test_a_truncated_mbox_gives_all_that_is_in_it(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.mbox"
    write_mbox(path, mails(30))
    path.write_bytes(path.read_bytes()[:-200])
    assert run(root, open_mbox(path)).stored == 30


@pytest.mark.parametrize("package", ["zip", "tgz"])
def test_what_stands_before_the_damage_in_a_package_is_stored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr("postroom.archive.importing.mbox.CHUNK", 4_096)
    write_takeout(tmp_path / "All mail.mbox", generated_mailbox(COUNT))
    path = packed(tmp_path, package)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 50] = bytes(50)
    path.write_bytes(data if package == "zip" else data[:middle])
    with pytest.raises(BadInput, match="is damaged or cut off"):
        run(root, open_takeout(path))
    with FileArchiveReader(root) as archive:
        assert 0 < archive.count() < COUNT


def test_a_huge_message_and_an_unreadable_file_are_reported_and_the_rest_is_stored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("postroom.archive.importing.sources.LARGEST_MESSAGE", 10_000)
    write_maildir(tmp_path / "Maildir", [plain_letter("a"), plain_letter("b" * 10_000), plain_letter("c")])
    cur = tmp_path / "Maildir" / "cur"
    (cur / "2.loop:2,S").symlink_to(cur / "2.loop:2,S")
    report = run(root, open_maildir(tmp_path / "Maildir"))
    assert (report.found, report.stored, report.unreadable_count) == (2, 2, 2)
    assert "are more than the 10,000" in report.unreadable[0].problem
    assert "Too many levels of symbolic links" in report.unreadable[1].problem


def test_a_huge_message_of_an_mbox_is_reported_and_the_rest_is_stored(root: Path, tmp_path: Path) -> None:
    write_mbox(tmp_path / "m.mbox", [plain_letter("d"), plain_letter("e" * 10_000), plain_letter("f")])
    report = run(root, open_mbox(tmp_path / "m.mbox", largest_message=10_000))
    assert (report.stored, report.unreadable_count, report.unreadable[0].kept) == (2, 1, False)


def test_file_names_that_are_no_text_do_no_harm(root: Path, tmp_path: Path) -> None:
    write_maildir(tmp_path / "Maildir", [plain_letter("a")])
    strange = os.fsencode(tmp_path / "Maildir" / "cur") + b"/\xff.\n:2,S"
    os.symlink(b"/nowhere", strange + b"2")
    with open(strange, "wb") as file:
        file.write(plain_letter("b"))
    report = run(root, open_maildir(tmp_path / "Maildir"))
    assert (report.stored, report.unreadable_count) == (2, 1)
    assert json.dumps(report.unreadable[0].where).isascii()
    assert report.unreadable[0].where.encode()


def test_large_messages_do_not_pile_up_in_memory(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_run, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(import_run, "MOST_BYTES_ON_THE_WAY", 5_000)
    raws = [plain_letter("x" * 2_000, message_id=f"<{number}@x.org>") for number in range(12)]
    write_mbox(tmp_path / "m.mbox", raws)
    read: list[int] = []
    unstored: list[int] = []
    source = open_mbox(tmp_path / "m.mbox")

    def counted(offset: int) -> Iterator[ImportFinding]:
        for file in source.files():
            for found in file.read(offset):
                read.append(found.end)
                yield found

    def files() -> Iterator[MailFile]:
        return (replace(file, read=counted) for file in source.files())

    run(root, replace(source, files=files), lambda done: unstored.append(len(read) - done.report.found))
    assert max(unstored) <= 3


def test_an_empty_mbox_has_no_mail(root: Path, tmp_path: Path) -> None:
    (tmp_path / "m.mbox").touch()
    assert run(root, open_mbox(tmp_path / "m.mbox")).found == 0


def test_a_dry_run_counts_and_needs_no_archive(tmp_path: Path) -> None:
    write_mbox(tmp_path / "m.mbox", mails(30))
    report = count_mail(open_mbox(tmp_path / "m.mbox"))
    assert report.found == 30
    assert list(tmp_path.iterdir()) == [tmp_path / "m.mbox"]


@pytest.mark.parametrize(
    ("opener", "name", "message"),
    [
        (open_mbox, "missing", "does not exist"),
        (open_mbox, "folder", "is a folder; name the mbox file"),
        (open_mbox, "text", "does not begin with a `From ` line"),
        (open_takeout, "folder", "holds no .mbox, .zip, .tgz or .tar file"),
        (open_takeout, "text", "does not begin with a `From ` line"),
        (open_maildir, "text", "is a file; a Maildir is a folder"),
        (open_maildir, "folder", "is not a Maildir"),
        (open_eml, "missing", "does not exist"),
    ],
)
def test_what_cannot_be_imported_is_refused_at_once(
    tmp_path: Path, opener: Callable[[Path], ImportSource], name: str, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("Dear reader,\n")
    with pytest.raises(BadInput, match=message):
        opener(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "m.mbox").write_bytes(b"")
    (tmp_path / "m.mbox").chmod(0)
    with pytest.raises(BadInput, match="permission denied"):
        open_mbox(tmp_path / "m.mbox")


def test_a_disk_error_does_not_let_the_position_pass_what_is_not_stored(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raws = mails(200)
    write_mbox(tmp_path / "m.mbox", raws)
    submit = FileArchiveWriter.submit
    calls = []

    def failing(self: FileArchiveWriter, email: str, mails: list[object], **options: bool) -> object:
        calls.append(email)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return submit(self, email, mails, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(FileArchiveWriter, "submit", failing)
        with pytest.raises(OSError, match="No space left"):
            run(root, open_mbox(tmp_path / "m.mbox"))
    run(root, open_mbox(tmp_path / "m.mbox"))
    assert len(stored_hashes(root)) == len(hashes(raws))


def test_a_zip_with_a_password_is_a_clear_error(root: Path, tmp_path: Path) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("a.mbox", b"From x\n")
    locked = bytearray(data.getvalue())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        locked[locked.index(signature) + flags] |= 1
    (tmp_path / "t.zip").write_bytes(locked)
    with pytest.raises(BadInput, match="password"):
        run(root, open_takeout(tmp_path / "t.zip"))


def test_a_damaged_note_of_positions_says_what_to_do(root: Path, tmp_path: Path) -> None:
    write_mbox(tmp_path / "m.mbox", mails(3))
    root.mkdir()
    (root / "imports.db").write_bytes(b"not a database " * 100)
    with pytest.raises(Fatal, match=r"imports.db is damaged. Delete it"):
        run(root, open_mbox(tmp_path / "m.mbox"))
    (root / "imports.db").unlink()
    assert run(root, open_mbox(tmp_path / "m.mbox")).stored == 3


def test_another_process_prepares_mail_exactly_as_this_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PREPARED_HERE", 0)
    foreign = "Subject: 天气\nFrom: ﬁn <a@b.example>\nDate: Mon, 5 Jan 2026 12:00:00 +0000\n\n今天天气很好, straße\n"
    raws = [
        *mutated(60),
        foreign.encode(),
        foreign.encode("gb18030"),
        b"",
        b"\xff\0",
        b"From: a@b\n\n" + bytes(300_000),
    ]
    batch = [FoundMessage(raw, len(raw), b"From x Mon Jan  5 12:30:00 2026") for raw in raws]
    workers = preparation.Preparation(plain, processes=1)
    try:
        prepared = workers.start(batch)()
    finally:
        workers.close()
    assert prepared == preparation.prepare_all(plain, batch)
    assert sum(entry.mail.indexed is not None for entry in prepared) >= 2


def test_a_preparing_process_that_dies_is_told_as_something_to_try_again() -> None:
    process, prepare_one = PreparingProcess(), partial(preparation.prepare_to_send, plain)
    [(_, prepared, failure)] = process.ask(prepare_one, [FoundMessage(plain_letter("a"), 1)])
    assert failure is None
    assert prepared
    process._process.kill()
    process._process.wait()
    with pytest.raises(Retryable, match="run the same command again"):
        process.ask(prepare_one, [FoundMessage(plain_letter("a"), 1)])
    process.close()


def test_the_mail_of_a_long_walk_is_prepared_elsewhere_exactly_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PREPARED_HERE", 10)
    now = datetime(2026, 1, 6, tzinfo=UTC)
    mails = [IncomingMail(raw, Provenance.API, f"{number:x}", received=now) for number, raw in enumerate(mutated(30))]
    walk = preparation.WalkPreparation()
    try:
        assert walk.prepare(mails[:10]) == [prepare(mail) for mail in mails[:10]]
        assert walk._process is None
        walk.expect(10)
        assert walk._process is None
        walk.expect(11)
        process = walk._process
        assert process is not None
        assert process._connection.poll(60), "it says that it has started"
        assert walk.prepare(mails) == [prepare(mail) for mail in mails]
        assert process.is_ready()
        process._process.kill()
        process._process.wait()
        assert walk.prepare(mails[:3]) == [prepare(mail) for mail in mails[:3]]
        walk.prepare(mails)
        another = walk._process
        assert another is not None
    finally:
        walk.end()
    assert (walk._process, another._process.returncode) == (None, 0)


def test_a_process_that_has_not_started_yet_holds_up_no_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "PREPARED_HERE", 1)
    mails = [IncomingMail(raw, Provenance.API, f"{number:x}") for number, raw in enumerate(mutated(5))]
    now = datetime(2026, 1, 6, tzinfo=UTC)
    dated = [replace(mail, received=now) for mail in mails]
    walk = preparation.WalkPreparation()
    try:
        walk.expect(2)
        process = walk._process
        assert process is not None
        monkeypatch.setattr(process._connection, "poll", lambda: False)
        assert walk.prepare(dated) == [prepare(mail) for mail in dated]
        process._process.kill()
        process._process.wait()
        monkeypatch.undo()
        assert walk.prepare(dated) == [prepare(mail) for mail in dated], "also where it dies before it has started"
    finally:
        walk.end()


def test_a_file_of_a_maildir_that_grew_since_it_was_listed_is_read_to_its_end(root: Path, tmp_path: Path) -> None:
    place = tmp_path / "mail" / "cur" / "1:2,S"
    place.parent.mkdir(parents=True)
    letter = plain_letter("a")
    place.write_bytes(letter[:-5])
    [file] = maildir_files(tmp_path / "mail")
    place.write_bytes(letter)
    [grown] = file.read(0)
    place.write_bytes(letter[:40])
    [shorter] = file.read(0)
    assert [getattr(found, "raw", None) for found in (grown, shorter)] == [letter, letter[:40]]
