"""Words in pictures and scans: without the extra they are listed with how to add it, and with it they wait until they
are read, after everything else. What recognises words is replaced here; `tests/integration/reading/test_recognition.py`
has the real one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroom.app.archive_runner import index_waiting
from postroom.archive.backend import ArchiveBackend
from postroom.archive.coverage import PartState, reader_version
from postroom.archive.service import owned_archive
from postroom.reading import documents, limited
from postroom.reading.documents import EXTRACTOR_VERSION, OCR_VERSION
from postroom.reading.limited import LimitedReader
from postroom.settings import Settings
from postroom.settings.groups import OcrSettings
from tests.support import reading_tasks
from tests.support.archives import ME
from tests.support.attachments import index_all, with_attachments
from tests.support.documents import pdf

pytestmark = pytest.mark.req("FD-1", "FD-2")

PNG = b"\x89PNG\r\n\x1a\n"
SCAN = pdf("") + b"\n%words: leasescan\n%"
FILES = {
    "photo.png": PNG + b"words: rhubarbpicture",
    "scan.pdf": SCAN,
    "program.bin": bytes(range(256)) * 8,
    "broken.pdf": b"%PDF-1.7\n" + b"\xff" * 500,
    "locked.pdf": pdf("secret", password="letmein"),  # noqa: S106 - of a generated file
    "note.txt": b"plain words",
}


@pytest.fixture
def with_recogniser(monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedReader]:
    reader = LimitedReader(program=reading_tasks.PROGRAM)
    monkeypatch.setattr(documents, "_OCR_TASK", reading_tasks.task(reading_tasks.read_picture))
    monkeypatch.setitem(limited._shared, "pictures", reader)
    yield reader
    reader.close()


def states(place: ArchiveBackend, version: int) -> dict[str, PartState]:
    """Of each attachment that is not indexed; all parts have to add up."""
    with place.reader() as reader:
        counted = reader.coverage(ME, version)
        reasons = [state for state in PartState if state is not PartState.INDEXED]
        parts = [part for state in reasons for part in reader.unindexed(state, 100, ME, version)]
        attachments = sum(len(list(reader.attachments_of(message))) for message in reader.newest_first())
    assert sum(counted.attachments.values()) == attachments
    assert counted.by_state[PartState.INDEXED] == counted.parts - len(parts)
    return {part.filename: part.state for part in parts}


def found(place: ArchiveBackend, query: str) -> list[str]:
    with place.search() as search:
        return [hit.message.subject for hit in search.search(query).hits]


@pytest.mark.timeout(120)
def test_pictures_wait_once_the_extra_is_there_and_are_then_read(
    archive_place: ArchiveBackend, with_recogniser: LimitedReader
) -> None:
    with archive_place.writer("a test") as archive:
        archive.store(ME, [with_attachments(1, FILES.items())])
        index_all(archive_place, archive, ME)
        without = states(archive_place, EXTRACTOR_VERSION)
        assert without == {
            "photo.png": PartState.UNSUPPORTED,
            "scan.pdf": PartState.UNSUPPORTED,
            "program.bin": PartState.UNSUPPORTED,
            "broken.pdf": PartState.UNREADABLE,
            "locked.pdf": PartState.ENCRYPTED,
        }
        with archive_place.reader() as reader:
            notes = {part.filename: part.note for part in reader.unindexed(PartState.UNSUPPORTED, 10)}
        assert "pip install 'postroom[ocr]'" in notes["photo.png"]
        assert "pip install 'postroom[ocr]'" in notes["scan.pdf"]
        waiting = {name for name, state in states(archive_place, OCR_VERSION).items() if state is PartState.WAITS}
        assert waiting == {"photo.png", "scan.pdf", "program.bin"}, "what is broken or locked stays so"
        assert index_all(archive_place, archive, ME, version=OCR_VERSION) == 3
    assert found(archive_place, "attachment:rhubarbpicture") == ["Letter 1"]
    assert found(archive_place, "leasescan") == ["Letter 1"]
    for version in (OCR_VERSION, EXTRACTOR_VERSION):  # also after the extra is gone again
        left = states(archive_place, version)
        assert left.keys() == {"program.bin", "broken.pdf", "locked.pdf"}
        assert PartState.WAITS not in left.values()
    newer = OCR_VERSION + 1
    assert states(archive_place, newer)["program.bin"] is PartState.WAITS
    assert states(archive_place, newer)["broken.pdf"] is PartState.WAITS
    assert archive_place.verify().findings == []


@pytest.mark.timeout(120)
async def test_pictures_are_read_after_all_other_attachments_of_all_mailboxes_newest_first(
    archive_place: ArchiveBackend, with_recogniser: LimitedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, bool]] = []

    def record(content: bytes, filename: str, content_type: str, *, with_ocr: bool) -> documents.DocumentText:
        read.append((filename, with_ocr))
        return documents.read_document(content, filename, content_type, with_ocr=with_ocr)

    monkeypatch.setattr("postroom.archive.indexing.read_document", record)
    other = "other@example.org"
    with archive_place.writer("a test") as archive:
        archive.store(ME, [with_attachments(n, [(f"{n}.png", FILES["photo.png"])]) for n in (2, 1)])
        archive.store(other, [with_attachments(3, [("3.txt", b"words")])])
    async with owned_archive(archive_place, "a test") as service:
        assert await index_waiting(service, lambda done: None, lambda: False, OCR_VERSION) == (5, True)
    plain, pictures = read[:3], read[3:]
    assert sorted(plain) == [("1.png", False), ("2.png", False), ("3.txt", False)]
    assert pictures == [("2.png", True), ("1.png", True)]
    assert "pictures" not in limited._shared, "the memory of what recognises words is given back"


def test_which_version_reads_depends_on_the_extra_and_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for is_there, enabled, version in (
        (False, True, EXTRACTOR_VERSION),
        (True, True, OCR_VERSION),
        (True, False, EXTRACTOR_VERSION),
    ):
        monkeypatch.setattr("postroom.archive.coverage.is_installed", lambda extra, is_there=is_there: is_there)
        assert reader_version(Settings(ocr=OcrSettings(enabled=enabled))) == version
