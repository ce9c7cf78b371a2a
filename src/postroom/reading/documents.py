"""The text of a file that came with a message, or why there is none.

It is read by a confined child process, which can be killed; `extraction` is what runs there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.reading.limited import Failure, ReadingFailed, ReadingLimits, shared_reader

LARGEST_FILE = 50 << 20
EXTRACTOR_VERSION = 1
"""To be raised when more can be read: what could not be read before is then read again."""
_LIMITS = ReadingLimits(cpu_seconds=20.0, wall_seconds=90.0, memory_bytes=768 << 20)


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


def read_document(content: bytes, filename: str = "", content_type: str = "") -> DocumentText:
    """Blocks for as long as the limits allow. Raises ReadingFailed only if no child process can be started."""
    if len(content) > LARGEST_FILE:
        note = f"{len(content) >> 20} MB; files up to {LARGEST_FILE >> 20} MB are read"
        return DocumentText(DocumentKind.OTHER, unread=Unread.TOO_LARGE, note=note)
    declared = {"filename": filename, "content_type": content_type}
    try:
        header, text = shared_reader("documents").run("postroom.reading.extraction:answer", declared, content, _LIMITS)
    except ReadingFailed as error:
        if error.kind is Failure.START:
            raise
        return DocumentText(DocumentKind.OTHER, unread=Unread.UNREADABLE, note=error.reason)
    unread = header["unread"]
    return DocumentText(DocumentKind(header["kind"]), text.decode(), unread and Unread(unread), header["note"])
