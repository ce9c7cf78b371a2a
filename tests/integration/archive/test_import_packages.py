"""Packages of mail, sound and hostile; and files that are not what the command says."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.importing import packages
from postroom.archive.importing.run import count_mail, import_mail
from postroom.archive.importing.sources import MailFormat, open_source, open_takeout
from postroom.archive.importing.state import ImportReport
from postroom.archive.messages import Provenance
from postroom.domain.errors import BadInput
from tests.support.archives import ME, plain_letter
from tests.support.mail import generated_mailbox, write_maildir, write_mbox, write_takeout

pytestmark = pytest.mark.req("SY-16")


def zipped(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as package:
        for name, content in members:
            package.writestr(zipfile.ZipInfo(name), content, method)
    return path


def imported(place: ArchiveBackend, path: Path) -> ImportReport:
    with place.writer("a test") as archive:
        return import_mail(archive, ME, open_takeout(path))


def mbox(tmp_path: Path, *bodies: str) -> bytes:
    write_mbox(tmp_path / "made.mbox", [letter(body) for body in bodies])
    return (tmp_path / "made.mbox").read_bytes()


def letter(body: str) -> bytes:
    return plain_letter(body, message_id=f"<{body}@example.org>").replace(b"\r\n", b"\n")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_zip_of_mbox_and_eml_files_is_imported_whatever_its_names_say(
    archive_place: ArchiveBackend, tmp_path: Path
) -> None:
    """Names lead nowhere, since nothing is unpacked; two files of one name are two files; other files are left out."""
    path = zipped(
        tmp_path / "mail.zip",
        ("../../escaped.eml", letter("up")),
        ("/etc/absolute.eml", letter("root")),
        ("Inbox", mbox(tmp_path, "in", "box")),
        ("same.mbox", mbox(tmp_path, "first")),
        ("same.mbox", mbox(tmp_path, "second")),
        ("archive_browser.html", b"<html>From here to there</html>"),
        ("notes", b"From time to time I write notes.\n"),
        ("folder.eml/", b""),
    )
    before = sorted(tmp_path.parent.rglob("*"))
    report = imported(archive_place, path)
    assert (report.found, report.stored, report.unreadable) == (6, 6, [])
    assert [each for each in tmp_path.parent.rglob("*escaped*")] == []
    assert [each for each in sorted(tmp_path.parent.rglob("*.eml")) if each not in before] == []
    with archive_place.reader() as reader:
        provenances = {message.provenance for message in reader.oldest_first(ME)}
        assert reader.count(ME) == 6
    assert Provenance.IMPORT in provenances  # an .eml file is no Takeout
    assert imported(archive_place, path).duplicates == 6


def test_a_zip_that_unpacks_to_far_more_than_mail_would_is_given_up_early(
    archive_place: ArchiveBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(packages, "MOST_RATIO", 20)
    bomb = mbox(tmp_path, "good") + b"From x Mon Jan  5 10:00:00 2026\n" + bytes(8 << 20)
    path = zipped(tmp_path / "bomb.zip", ("good.eml", letter("before")), ("bomb.mbox", bomb))
    with pytest.raises(BadInput, match="unpacks to more than 20 times its size"):
        imported(archive_place, path)
    with archive_place.reader() as reader:
        assert reader.count(ME) == 2  # what stands before it is kept


def test_a_zip_whose_list_of_files_is_too_long_or_that_is_packed_otherwise_is_refused(
    archive_place: ArchiveBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="packed with a method that is not read here"):
        imported(archive_place, zipped(tmp_path / "a.zip", ("a.eml", letter("a")), method=zipfile.ZIP_LZMA))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as package:
        package.writestr("a.eml", letter("a"))
    claims = bytearray(data.getvalue())
    end = claims.rindex(b"PK\x05\x06")
    struct.pack_into("<L", claims, end + 12, packages.LONGEST_LIST + 1)
    (tmp_path / "b.zip").write_bytes(bytes(packages.LONGEST_LIST + 1) + claims)
    with pytest.raises(BadInput, match="lists too many files"):
        imported(archive_place, tmp_path / "b.zip")
    with archive_place.reader() as reader:
        assert reader.count(ME) == 0


def tarred(path: Path, *members: tuple[tarfile.TarInfo | str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as package:  # type: ignore[call-overload]
        for info, content in members:
            member = tarfile.TarInfo(info) if isinstance(info, str) else info
            member.size = len(content)
            package.addfile(member, io.BytesIO(content))
    return path


def special(name: str, kind: bytes, leads_to: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, leads_to
    return member


@pytest.mark.parametrize(("name", "mode"), [("a.tgz", "w:gz"), ("a.tar.gz", "w:gz"), ("a.tar", "w"), ("a", "w:gz")])
def test_a_tar_is_imported_and_nothing_in_it_leads_anywhere(
    archive_place: ArchiveBackend, tmp_path: Path, name: str, mode: str
) -> None:
    """Not by its name, nor by a link or a device; what is not mail is passed over."""
    (tmp_path / "secret.eml").write_bytes(letter("not in the package"))
    path = tarred(
        tmp_path / name,
        ("../../escaped.eml", letter("up")),
        ("/etc/absolute.eml", letter("root")),
        ("Takeout/Mail/Inbox.mbox", mbox(tmp_path, "in", "box")),
        (special("link.eml", tarfile.SYMTYPE, str(tmp_path / "secret.eml")), b""),
        (special("hard.eml", tarfile.LNKTYPE, str(tmp_path / "secret.eml")), b""),
        (special("null.eml", tarfile.CHRTYPE), b""),
        ("photo.jpg", bytes(3 << 20)),
        ("same.mbox", mbox(tmp_path, "first")),
        ("same.mbox", mbox(tmp_path, "second")),
        (f"{'deep/' * 60}last.eml", letter("last")),
        mode=mode,
    )
    before = sorted(tmp_path.parent.rglob("*"))
    report = imported(archive_place, path)
    assert (report.found, report.stored, report.unreadable) == (7, 7, [])
    new = [each for each in sorted(tmp_path.parent.rglob("*")) if each not in before]
    assert [each for each in new if each.name.endswith((".eml", ".mbox", ".jpg"))] == []
    assert imported(archive_place, path).duplicates == 7


@pytest.mark.parametrize("name", ["bomb.mbox", "bomb.jpg"])
def test_a_tgz_that_unpacks_to_far_more_than_mail_would_is_given_up_early(
    archive_place: ArchiveBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Also where the bomb is nothing that would be imported."""
    monkeypatch.setattr(packages, "ALWAYS_ALLOWED", 1 << 20)
    monkeypatch.setattr(packages, "MOST_RATIO", 20)
    bomb = b"From x Mon Jan  5 10:00:00 2026\n" + bytes(8 << 20)
    path = tarred(tmp_path / "bomb.tgz", ("good.eml", letter("before")), (name, bomb), ("a.eml", letter("after")))
    with pytest.raises(BadInput, match="unpacks to more than 20 times its size"):
        imported(archive_place, path)
    with archive_place.reader() as reader:
        assert reader.count(ME) == 1


@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.XGLTYPE])
def test_a_tar_whose_headers_are_endless_is_refused_before_they_fill_the_memory(
    archive_place: ArchiveBackend, tmp_path: Path, kind: bytes
) -> None:
    """A few kilobytes unpack to headers of 64 MB, which `tarfile` would read in one piece."""
    path = tarred(tmp_path / "a.tgz", ("a.eml", letter("a")), (special("long", kind), bytes(64 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match="file name that is too long"):
            imported(archive_place, path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    with archive_place.reader() as reader:
        assert reader.count(ME) == 1


@pytest.mark.parametrize(("name", "mode"), [("cut.tgz", "w:gz"), ("cut.tar", "w")])
def test_a_tar_that_was_cut_off_gives_what_stands_before_the_cut(
    archive_place: ArchiveBackend, tmp_path: Path, name: str, mode: str
) -> None:
    content = b"".join(hashlib.sha256(bytes([number % 251])).digest() for number in range(60_000))
    path = tarred(tmp_path / name, ("a.eml", letter("a")), ("b.eml", letter("b") + content.hex().encode()), mode=mode)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 3])
    with pytest.raises(BadInput, match="is damaged or cut off"):
        imported(archive_place, path)
    with archive_place.reader() as reader:
        assert reader.count(ME) == 1


def test_a_gzip_file_that_holds_no_tar_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mail.gz"
    path.write_bytes(gzip.compress(mbox(tmp_path, "a")))
    with pytest.raises(BadInput, match="not an mbox"):
        open_takeout(path)


MAIL = b"Received: from a by b; Mon, 5 Jan 2026 10:00:00 +0000\r\nFrom: ann@example.org\r\n\r\nHello\r\n"
ODD_MAIL = {
    "plain": MAIL,
    "lf": MAIL.replace(b"\r\n", b"\n"),
    "cr": MAIL.replace(b"\r\n", b"\r"),
    "bom": b"\xef\xbb\xbf" + MAIL,
    "utf-16": MAIL.decode().encode("utf-16"),
    "blank lines": b"\r\n\n \r\n" + MAIL,
    "bom, then blank lines": b"\xef\xbb\xbf\r\n\r\n" + MAIL,
    "from line": b"From ann@example.org Mon Jan  5 10:00:00 2026\n" + MAIL,
    "from line, then a blank one": b"From ann@example.org Mon Jan  5 10:00:00 2026\n\n" + MAIL,
    "quoted from line": b">From ann@example.org Mon Jan  5 10:00:00 2026\n" + MAIL,
    "a line of a program": b"Saved by a program\n" + MAIL,
    "space before the colon": b"SUBJECT : Hi\n\nHello\n",
    "only a subject": b"subject:\n",
    "only headers": b"X-Odd: 1\nMessage-ID: <a@b>",
    "bytes of no charset": b"Subject: \xff\xfe\x80\n\n\x00\x01",
    "folded": b"X-Long:\n a\n b\nDate: Mon, 5 Jan 2026 10:00:00 +0000\n\nHello",
}
NO_MAIL = {
    "text": b"Shopping:\n- milk\n- bread\n",
    "quoted later": b"Notes of today\n\nFrom: ann@example.org\nSubject: Hi\n",
    "markup": b"<!doctype html>\n<title>From: a</title>\n",
    "settings": b"[mail]\naccount: me\n",
    "picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8,
    "program": b"\x7fELF" + bytes(900),
    "empty": b"",
    "blank": b"\n\n",
}


@pytest.mark.parametrize("kind", ODD_MAIL)
def test_mail_is_imported_however_oddly_it_begins(archive_place: ArchiveBackend, tmp_path: Path, kind: str) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "odd.eml").write_bytes(ODD_MAIL[kind])
    with archive_place.writer("a test") as archive:
        report = import_mail(archive, ME, open_source(MailFormat.EML, tmp_path / "letters", ME))
    assert (report.stored, report.not_mail) == (1, 0)
    with archive_place.reader() as reader:
        [message] = reader.oldest_first(ME)
        assert reader.raw(ME, message.key) == ODD_MAIL[kind]


@pytest.mark.parametrize("kind", NO_MAIL)
def test_a_file_that_is_no_message_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes.eml"
    path.write_bytes(NO_MAIL[kind])
    with pytest.raises(BadInput, match=r"notes\.eml is not a message: .* such as From, Date or Subject"):
        open_source(MailFormat.EML, path, ME)


def test_files_of_a_folder_and_of_a_package_that_are_no_messages_are_skipped_and_listed(
    archive_place: ArchiveBackend, tmp_path: Path
) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "good.eml").write_bytes(letter("good"))
    for kind, content in NO_MAIL.items():
        (folder / f"{kind}.eml").write_bytes(content)
    source = open_source(MailFormat.EML, folder, ME)
    assert (count_mail(source).found, count_mail(source).not_mail) == (1, len(NO_MAIL))
    with archive_place.writer("a test") as archive:
        report = import_mail(archive, ME, source)
    assert (report.stored, report.not_mail, report.unreadable_count) == (1, len(NO_MAIL), 0)
    assert {Path(each.where).stem for each in report.unreadable} == set(NO_MAIL)
    assert all("is not a message" in each.problem and not each.is_mail for each in report.unreadable)
    packed = imported(archive_place, zipped(tmp_path / "a.zip", ("a.eml", NO_MAIL["text"]), ("b.eml", letter("b"))))
    assert (packed.stored, packed.not_mail) == (1, 1)


@pytest.fixture
def kinds(tmp_path: Path) -> dict[str, Path]:
    """One of each, with names that say nothing or lie."""
    write_mbox(tmp_path / "box.eml", [letter("a")])
    (tmp_path / "one.mbox").write_bytes(letter("b"))
    zipped(tmp_path / "packed.mbox", ("a.eml", letter("c")))
    write_maildir(tmp_path / "dir", [letter("d")])
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.eml").write_bytes(letter("e"))
    (tmp_path / "takeout").mkdir()
    write_takeout(tmp_path / "takeout" / "All mail.mbox", generated_mailbox(2))
    names = {"mbox": "box.eml", "single": "one.mbox", "zip": "packed.mbox", "maildir": "dir", "folder": "letters"}
    return {kind: tmp_path / name for kind, name in {**names, "takeout": "takeout"}.items()}


@pytest.mark.parametrize(
    ("format", "kind", "command"),
    [
        ("eml", "mbox", "mbox"),
        ("eml", "zip", "takeout"),
        ("eml", "maildir", "maildir"),
        ("eml", "takeout", "takeout"),
        ("mbox", "single", "eml"),
        ("mbox", "zip", "takeout"),
        ("mbox", "maildir", "maildir"),
        ("mbox", "folder", "eml"),
        ("maildir", "mbox", "mbox"),
        ("maildir", "folder", "eml"),
        ("takeout", "single", "eml"),
        ("takeout", "maildir", "maildir"),
    ],
)
def test_a_file_of_another_kind_is_refused_with_the_command_for_it(
    kinds: dict[str, Path], format: str, kind: str, command: str
) -> None:
    """By content: the names of the files say otherwise."""
    with pytest.raises(BadInput) as refused:
        open_source(MailFormat(format), kinds[kind], ME)
    assert f"`postroom import {command} {kinds[kind]} --account {ME}`" in refused.value.problem


def test_what_is_named_rightly_is_opened(kinds: dict[str, Path]) -> None:
    rightly = {"mbox": "mbox", "single": "eml", "maildir": "maildir", "folder": "eml", "takeout": "takeout"}
    for kind, format in rightly.items():
        assert open_source(MailFormat(format), kinds[kind], ME).format == format
    assert open_source(MailFormat.TAKEOUT, kinds["mbox"], ME).format == "takeout"
