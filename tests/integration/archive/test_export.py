"""Mail out of the archive: the same bytes, under safe names, never over anything."""

from __future__ import annotations

import mailbox as stdlib_mailbox
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from postroom.archive.exporting import count_messages, eml_name, export_eml, export_mbox
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.sources import open_eml, open_mbox
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.errors import BadInput, Fatal, NotFound
from tests.support.archives import ME, generated_mail, plain_letter

pieces = st.sampled_from(
    [b"From ", b"\nFrom ", b"\n\nFrom x 10:00", b">From ", b"\n>From ", b"\n", b"\r\n", b"\r", b"\0"]
)
raws = st.lists(st.lists(st.one_of(pieces, st.binary(max_size=20)), max_size=10).map(b"".join), min_size=1, max_size=8)


def archived(root: Path, mails: list[bytes]) -> None:
    with FileArchiveWriter(root) as archive:
        archive.store(ME, [IncomingMail(raw, Provenance.IMPORT) for raw in mails])


def all_raw(root: Path) -> list[bytes]:
    with FileArchiveReader(root) as archive:
        return sorted(archive.raw_of(message) for message in archive.oldest_first())


@pytest.mark.req("SY-16")
@settings(
    max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(mails=raws)
@example(mails=[b"", b"\0", b"no header"])
def test_what_is_exported_and_imported_again_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, mails: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("round")
    archived(folder / "one", mails)
    with FileArchiveReader(folder / "one") as archive:
        export_mbox(archive, archive.oldest_first(), folder / "out.mbox")
        export_eml(archive, archive.oldest_first(), folder / "eml")
    for name, source in (("two", open_mbox(folder / "out.mbox")), ("three", open_eml(folder / "eml"))):
        with FileArchiveWriter(folder / name) as again:
            import_mail(again, ME, source)
        assert all_raw(folder / name) == all_raw(folder / "one") == sorted(set(mails))


@pytest.mark.req("SY-16")
def test_an_exported_mbox_is_read_by_other_programs(tmp_path: Path) -> None:
    mails = generated_mail(40)
    with FileArchiveWriter(tmp_path / "archive") as archive:
        archive.store(ME, mails)
    with FileArchiveReader(tmp_path / "archive") as reader:
        report = export_mbox(reader, reader.oldest_first(ME), tmp_path / "out.mbox")
    assert (report.exported, report.bytes) == (40, sum(len(mail.raw) for mail in mails))
    box = stdlib_mailbox.mbox(tmp_path / "out.mbox", create=False)
    assert len(box) == 40
    box.close()


def test_exporting_to_eml_twice_writes_once_and_names_are_unique(tmp_path: Path) -> None:
    mails = [plain_letter(str(number), message_id=f"<{number}@example.org>") for number in range(5)]
    archived(tmp_path / "archive", mails)
    with FileArchiveReader(tmp_path / "archive") as archive:
        first = export_eml(archive, archive.oldest_first(), tmp_path / "out")
        again = export_eml(archive, archive.oldest_first(), tmp_path / "out")
    assert (first.exported, first.already_there) == (5, 0)
    assert (again.exported, again.already_there) == (0, 5)
    assert sorted(file.read_bytes() for file in (tmp_path / "out").iterdir()) == sorted(mails)


def test_a_file_of_the_same_name_is_never_overwritten(tmp_path: Path) -> None:
    archived(tmp_path / "archive", [plain_letter()])
    with FileArchiveReader(tmp_path / "archive") as archive:
        export_eml(archive, archive.oldest_first(), tmp_path / "out")
        [file] = (tmp_path / "out").iterdir()
        file.write_bytes(b"mine")
        export_eml(archive, archive.oldest_first(), tmp_path / "out")
        (tmp_path / "out.mbox").write_bytes(b"mine")
        with pytest.raises(BadInput, match="exists"):
            export_mbox(archive, archive.oldest_first(), tmp_path / "out.mbox")
    assert sorted(path.read_bytes() for path in (tmp_path / "out").iterdir()) == sorted([b"mine", plain_letter()])
    assert (tmp_path / "out.mbox").read_bytes() == b"mine"


def test_an_export_that_fails_leaves_no_half_file(tmp_path: Path) -> None:
    archived(
        tmp_path / "archive", [plain_letter("a", message_id="<a@x.org>"), plain_letter("b", message_id="<b@x.org>")]
    )
    with FileArchiveReader(tmp_path / "archive") as archive:
        first, second = archive.oldest_first()
        with pytest.raises(Fatal):
            export_mbox(archive, [first, replace(second, row_id=second.row_id + 1)], tmp_path / "out" / "x.mbox")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_count_writes_nothing(tmp_path: Path) -> None:
    archived(tmp_path / "archive", [plain_letter()])
    with FileArchiveReader(tmp_path / "archive") as archive:
        assert count_messages(archive.oldest_first()).exported == 1
        assert count_messages(archive.oldest_first("other@example.org")).exported == 0


@given(st.text(max_size=300))
def test_no_subject_makes_a_path_or_a_name_that_is_too_long(subject: str) -> None:
    name = eml_name("i0123456789abcde", datetime(2026, 1, 1, tzinfo=UTC), subject)
    assert "/" not in name
    assert "\\" not in name
    assert "\0" not in name
    assert name.startswith("2026-01-01 ")
    assert name.endswith(" i0123456789abcde.eml") or name == "2026-01-01 i0123456789abcde.eml"
    assert len(name.encode()) < 200


def test_a_message_is_found_by_key_beginning_or_message_id(tmp_path: Path) -> None:
    archived(
        tmp_path / "archive", [plain_letter("a", message_id="<a@x.org>"), plain_letter("b", message_id="<b@x.org>")]
    )
    with FileArchiveReader(tmp_path / "archive") as archive:
        message = archive.find("<a@x.org>")
        for wanted in (message.key, message.key[:8]):
            assert archive.find(wanted) == message
        for wanted, problem in (("i1234567", "has no message"), (message.key[:5], "8 characters"), ("a b", "neither")):
            with pytest.raises(BadInput, match=problem):
                archive.find(wanted)
        with pytest.raises(NotFound):
            archive.find(message.key, "other@example.org")


def test_a_beginning_of_several_keys_names_them(tmp_path: Path) -> None:
    with FileArchiveWriter(tmp_path / "archive") as archive:
        archive.store(ME, [IncomingMail(plain_letter(k), Provenance.API, gmail_id=f"18c0ffee0000000{k}") for k in "12"])
    with FileArchiveReader(tmp_path / "archive") as reader:
        with pytest.raises(BadInput, match=r"is several messages: .*18c0ffee00000001.*18c0ffee00000002"):
            reader.find("18c0ffee")
        assert reader.find("18c0ffee00000002").key == "18c0ffee00000002"
