"""What goes wrong with disks and processes: nothing that was reported as stored is lost, and nothing is hidden."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from postroom.archive.messages import IncomingMail, Provenance, ShardName, StoreOutcome, path_of
from postroom.archive.shards import shard_file
from postroom.archive.shards.reader import FileArchiveReader, shards_on_disk
from postroom.archive.shards.searching import search_shards
from postroom.archive.shards.verification import rebuild, verify
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.archive.status import ArchiveFlaw, OwnedElsewhere
from postroom.domain.errors import Fatal, NewerSchema, Retryable
from postroom.settings import ArchiveSettings
from tests.support.archives import ME, generated_mail, plain_letter

SHARD = ShardName(ME, 2026)
LETTERS = [IncomingMail(plain_letter(f"number {n}", message_id=f"<{n}@x>"), Provenance.IMPORT) for n in range(400)]


def start_writer(root: Path, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.support.archives", str(root), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    with process:
        process.kill()


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """An archive with one shard of 400 letters."""
    root = tmp_path / "archive"
    with FileArchiveWriter(root) as archive:
        archive.store(ME, LETTERS)
    return root


@pytest.mark.req("SY-7")
def test_whoever_comes_second_is_told_who_writes_and_may_read_all_the_same(tmp_path: Path) -> None:
    process = start_writer(tmp_path, 40)
    assert process.stdout is not None
    while process.stdout.readline() != "done\n":
        pass
    with pytest.raises(OwnedElsewhere, match=f"`a test's writer` \\(process {process.pid} on"):
        FileArchiveWriter(tmp_path)
    with FileArchiveReader(tmp_path) as reader:
        assert reader.count(ME) == 40
    kill(process)
    with FileArchiveWriter(tmp_path) as archive:
        assert archive.store(ME, LETTERS[:1])[0].outcome is StoreOutcome.STORED


@pytest.mark.req("SY-7")
def test_what_was_reported_as_stored_survives_kill_after_kill(tmp_path: Path) -> None:
    random = Random(7)
    mails = {mail.gmail_id: mail.raw for mail in generated_mail(240)}
    reported: set[str] = set()
    rounds = 0
    while len(reported) < len(mails):
        rounds += 1
        process = start_writer(tmp_path, 240)
        assert process.stdout is not None
        patience = random.randrange(30, 120)
        for line in process.stdout:
            if line == "done\n":
                break
            reported.add(line.split()[0])
            patience -= 1
            if patience == 0 and rounds < 4:
                break
        kill(process)
        with FileArchiveReader(tmp_path) as reader:
            for key in reported:
                assert reader.raw(ME, key) == mails[key]
    with FileArchiveReader(tmp_path) as reader:
        assert reader.count() == len(mails)
    assert verify(tmp_path).is_sound
    assert rounds > 2


def test_a_full_disk_stores_nothing_by_halves_and_work_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with FileArchiveWriter(tmp_path) as archive:
        archive.store(ME, LETTERS[:1])
        writer = archive._writers[SHARD]
        pages = writer.change(lambda connection, _: connection.execute("PRAGMA page_count").fetchone()[0]).result()
        writer.change(
            lambda connection, _: connection.execute(f"PRAGMA max_page_count = {pages + 10}").fetchone()
        ).result()
        with pytest.raises(Retryable, match=r"disk that holds .* is full"):
            archive.store(ME, LETTERS[:200])
        writer.change(lambda connection, _: connection.execute("PRAGMA max_page_count = 1000000").fetchone()).result()
        outcomes = {stored.outcome for stored in archive.store(ME, LETTERS[1:200])}
    assert StoreOutcome.STORED in outcomes
    with FileArchiveReader(tmp_path) as reader:
        assert reader.count() == 200
    assert verify(tmp_path).is_sound


def test_a_year_that_grows_too_large_is_continued_in_another_file(tmp_path: Path) -> None:
    settings = ArchiveSettings.model_construct(shard_bytes=200_000)
    with FileArchiveWriter(tmp_path, settings) as archive:
        for start in range(0, 400, 50):
            archive.store(ME, LETTERS[start : start + 50])
            archive.checkpoint()
        again = archive.store(ME, LETTERS)
    assert {stored.outcome for stored in again} == {StoreOutcome.DUPLICATE}
    assert len(shards_on_disk(tmp_path)) > 1
    with FileArchiveReader(tmp_path) as reader:
        assert reader.count() == 400


def test_a_shard_from_a_newer_version_is_refused_and_left_alone(filled: Path) -> None:
    path = path_of(filled, SHARD)
    change(path, "PRAGMA user_version = 99")
    before = path.read_bytes()
    with FileArchiveWriter(filled) as archive, pytest.raises(NewerSchema, match="shard version 99"):
        archive.store(ME, LETTERS[:1])
    with FileArchiveReader(filled) as reader, pytest.raises(NewerSchema, match="Upgrade Postroom"):
        reader.count()
    assert path.read_bytes() == before


def test_the_lock_of_a_killed_owner_is_taken_over(tmp_path: Path) -> None:
    process = start_writer(tmp_path, 0)
    kill(process)
    assert str(process.pid) in (tmp_path / "owner.lock").read_text()
    with FileArchiveWriter(tmp_path) as archive:
        assert archive.store(ME, LETTERS[:1])[0].outcome is StoreOutcome.STORED


def test_mail_for_a_damaged_shard_is_refused_and_other_years_are_stored(filled: Path) -> None:
    path = path_of(filled, SHARD)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 100_000)
    other_year = IncomingMail(plain_letter(date="Tue, 01 Jan 2019"), Provenance.IMPORT)
    with FileArchiveWriter(filled) as archive, pytest.raises(Fatal, match=r"2026.db is damaged .* `postroom verify`"):
        archive.store(ME, LETTERS[:1])
    path.rename(path.with_name("set-aside"))
    with FileArchiveWriter(filled) as archive:
        assert archive.store(ME, [other_year])[0].outcome is StoreOutcome.STORED


def test_a_damaged_catalogue_is_named_and_made_anew_when_it_is_moved_away(filled: Path) -> None:
    catalogue = filled / "catalogue.db"
    catalogue.write_bytes(b"\xff" * 8_192)
    for _ in range(2):  # the second time is no `OwnedElsewhere`
        with pytest.raises(Fatal, match=r"catalogue.db is damaged .* Move it away"):
            FileArchiveWriter(filled)
        with pytest.raises(Fatal, match=r"catalogue.db is damaged"):
            verify(filled)
    catalogue.unlink()
    FileArchiveWriter(filled).close()
    path_of(filled, SHARD).unlink()
    assert [finding.flaw for finding in verify(filled).findings] == [ArchiveFlaw.SHARD_MISSING]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named_and_its_shards_are_left_alone(filled: Path) -> None:
    path = path_of(filled, SHARD)
    before = path.read_bytes()
    for folder in (path.parent, filled):
        folder.chmod(0o500)
    try:
        (filled / "owner.lock").chmod(0o400)
        with pytest.raises(Fatal, match="archive cannot be written in"):
            FileArchiveWriter(filled)
    finally:
        for folder in (filled, path.parent):
            folder.chmod(0o700)
    assert path.read_bytes() == before


def test_an_archive_on_a_read_only_medium_can_be_read(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup disc: nothing can be written beside the shards, not even for a moment."""
    monkeypatch.setattr(shard_file, "_cannot_change", lambda path: True)
    with FileArchiveReader(filled) as reader, search_shards(filled) as search:
        assert reader.count() == 400
        assert len(search.search("number").hits) == 20
        assert [file.name for file in path_of(filled, SHARD).parent.iterdir()] == ["2026.db"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file where the folder should be")
    with pytest.raises(Fatal, match="archive cannot be written in"):
        FileArchiveWriter(tmp_path / "archive")


@pytest.mark.req("SY-17")
def test_a_sound_archive_is_proved_message_by_message(filled: Path) -> None:
    seen: list[int] = []
    report = verify(filled, progress=seen.append)
    assert report.is_sound
    assert (report.shards, report.messages, sum(seen)) == (1, 400, 400)
    assert report.bytes == sum(len(mail.raw) for mail in LETTERS)


@pytest.mark.req("SY-17")
def test_one_changed_byte_is_found_and_named(filled: Path) -> None:
    change(path_of(filled, SHARD), "UPDATE raw SET data = zeroblob(length(data)) WHERE id = (SELECT max(id) FROM raw)")
    [finding] = verify(filled).findings
    assert finding.flaw is ArchiveFlaw.BYTES_WRONG
    salvaged = rebuild(filled, SHARD)
    assert (salvaged.recovered, salvaged.lost) == (399, 1)


@pytest.mark.req("SY-17")
def test_a_missing_shard_is_missed(filled: Path) -> None:
    path_of(filled, SHARD).unlink()
    [finding] = verify(filled).findings
    assert (finding.flaw, finding.shard) == (ArchiveFlaw.SHARD_MISSING, str(SHARD))
    assert "at least 400 messages" in finding.detail


@pytest.mark.req("SY-17")
def test_a_shard_that_vanished_is_still_missed_after_new_mail_made_it_anew(filled: Path) -> None:
    path_of(filled, SHARD).unlink()
    with FileArchiveWriter(filled) as archive:
        archive.store(ME, LETTERS[:10])
    [finding] = verify(filled).findings
    assert finding.flaw is ArchiveFlaw.LOST_BEFORE
    assert finding.detail.startswith("390 messages")


@pytest.mark.req("SY-17")
def test_missing_messages_and_a_wrong_index_are_found(filled: Path) -> None:
    change(path_of(filled, SHARD), "DELETE FROM messages WHERE id IN (SELECT id FROM messages LIMIT 3)")
    flaws = {finding.flaw for finding in verify(filled).findings}
    assert flaws == {ArchiveFlaw.SHARD_SHORT, ArchiveFlaw.INDEX_WRONG}


@pytest.mark.req("SY-17")
@pytest.mark.parametrize("damage", ["pages", "torn", "header", "empty"])
def test_a_damaged_shard_is_found_quarantined_and_rebuilt_without_hiding_the_loss(filled: Path, damage: str) -> None:
    path = path_of(filled, SHARD)
    content = path.read_bytes()
    middle = len(content) // 2
    damaged = {
        "pages": content[:middle] + b"\xff" * 16_384 + content[middle + 16_384 :],
        "torn": content[: len(content) * 2 // 3],
        "header": b"\0" * 100 + content[100:],
        "empty": b"",
    }[damage]
    path.write_bytes(damaged)
    assert ArchiveFlaw.SHARD_DAMAGED in {finding.flaw for finding in verify(filled).findings}

    salvaged = rebuild(filled, SHARD)
    assert salvaged.recovered + salvaged.lost == 400
    assert Path(salvaged.quarantine).read_bytes() == damaged
    report = verify(filled)
    assert report.messages == salvaged.recovered
    assert {finding.flaw for finding in report.findings} <= {ArchiveFlaw.LOST_BEFORE}
    assert bool(report.findings) == bool(salvaged.lost)
    with FileArchiveWriter(filled) as archive:
        stored = archive.store(ME, LETTERS)
    assert sum(answer.outcome is StoreOutcome.STORED for answer in stored) == salvaged.lost


def change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(sql)
    connection.commit()
    connection.close()
