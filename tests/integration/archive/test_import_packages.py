"""Zips of mail, sound and hostile; and files that are not what the command says."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import pytest

from postroom.archive.backend import ArchiveBackend
from postroom.archive.importing import packages
from postroom.archive.importing.run import import_mail
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
