"""The text of a file that came with a message, or why there is none.

It is read by a confined child process, which can be killed; `extraction` is what runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.reading.limited import Failure, ReadingFailed, ReadingLimits, close_shared_reader, shared_reader

LARGEST_FILE = 50 << 20
_GENERATION = 1
"""To be raised when more can be read: what could not be read before is then read again."""
EXTRACTOR_VERSION = 2 * _GENERATION - 1
OCR_VERSION = EXTRACTOR_VERSION + 1
"""Of a reading that also looks for words in pictures. Recorded with each reading; a higher one can read more."""
_LIMITS = ReadingLimits(cpu_seconds=20.0, wall_seconds=90.0, memory_bytes=768 << 20)
_OCR_LIMITS = ReadingLimits(cpu_seconds=240.0, wall_seconds=900.0, memory_bytes=2 << 30)
_PICTURES = "pictures"
_OCR_TASK = "postroom.reading.recognition:answer"


class DocumentKind(StrEnum):
    PDF = "PDF"
    WORD = "Word document"
    SHEET = "spreadsheet"
    SLIDES = "presentation"
    OPEN_DOCUMENT = "OpenDocument text"
    RTF = "RTF"
    HTML = "HTML"
    TEXT = "text"
    MAIL = "message"
    ARCHIVE = "archive of files"
    PICTURE = "picture"
    OTHER = "other"


class Unread(StrEnum):
    """Why a file has no text in the index."""

    ENCRYPTED = "encrypted"
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    UNSUPPORTED = "not supported"
    PICTURES = "only pictures"


@dataclass(frozen=True, slots=True)
class DocumentText:
    kind: DocumentKind
    text: str = ""
    unread: Unread | None = None
    note: str = ""
    """What was left out, or went wrong. Never a quotation from the file."""


def read_document(
    content: bytes, filename: str = "", content_type: str = "", *, with_ocr: bool = False
) -> DocumentText:
    """Blocks for as long as the limits allow. Raises ReadingFailed only if no child process can be started."""
    found = _read_document(content, filename, content_type)
    is_picture = found.kind is DocumentKind.PICTURE or found.unread is Unread.PICTURES
    return _recognise(content, found.kind) if with_ocr and is_picture else found


def end_recognition() -> None:
    """Give back the memory of the child that reads pictures, a few hundred megabytes; the next picture starts one."""
    close_shared_reader(_PICTURES)


def plain_version(version: int) -> int:
    """Of what reads the same but for pictures."""
    return version - 1 if version % 2 == 0 else version


def _read_document(content: bytes, filename: str, content_type: str) -> DocumentText:
    if len(content) > LARGEST_FILE:
        note = f"{len(content) >> 20} MB; files up to {LARGEST_FILE >> 20} MB are read"
        return DocumentText(DocumentKind.OTHER, unread=Unread.TOO_LARGE, note=note)
    declared = {"filename": filename, "content_type": content_type}
    return _read_apart("documents", "postroom.reading.extraction:answer", declared, content, _LIMITS)


def _recognise(content: bytes, kind: DocumentKind) -> DocumentText:
    return _read_apart(_PICTURES, _OCR_TASK, {"kind": kind}, content, _OCR_LIMITS)


def _read_apart(
    purpose: str, task: str, header: Mapping[str, Any], content: bytes, limits: ReadingLimits
) -> DocumentText:
    try:
        answer, text = shared_reader(purpose).run(task, header, content, limits)
    except ReadingFailed as error:
        if error.kind is Failure.START:
            raise
        kind = DocumentKind(header.get("kind", DocumentKind.OTHER))
        return DocumentText(kind, unread=Unread.UNREADABLE, note=error.reason)
    unread = answer["unread"]
    return DocumentText(DocumentKind(answer["kind"]), text.decode(), unread and Unread(unread), answer["note"])
