"""Fills what is made of archived mail: reads the attachments that wait and has their text indexed, newest mail first;
and adds to the index of conversations what it lacks. Both in small batches.

What waits is asked of the archive before each batch, and a batch of attachments is recorded in one transaction of each
shard: a kill repeats at most the batch under way, and nothing is recorded or counted twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from postroom.archive import coverage
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.messages import ArchivedMessage
from postroom.archive.preparing import clean_text, texts_of
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import Fatal
from postroom.mail.mime import Attachment
from postroom.mail.parsing import ParsedMail
from postroom.reading.documents import EXTRACTOR_VERSION, OCR_VERSION, read_document

_MESSAGES = 20
_CHARACTERS = 4_000_000
_LONGEST_S = 20.0
_LONGEST_NOTE = 300


@dataclass(frozen=True, slots=True)
class ReadBatch:
    messages: tuple[coverage.MessageReadings, ...]
    last: ArchivedMessage
    """Where the next batch goes on, towards older mail."""

    @property
    def attachments(self) -> int:
        return sum(len(each.readings) for each in self.messages)


def read_batch(
    archive: ArchiveBackend,
    email: str,
    after: ArchivedMessage | None = None,
    *,
    messages: int = _MESSAGES,
    version: int = EXTRACTOR_VERSION,
    is_over: Callable[[], bool] = lambda: False,
    clock: Clock | None = None,
) -> ReadBatch | None:
    """Read the newest attachments that wait for this version and are older than `after`; None if there are none. Takes
    about 20 s at most, but for what a single message takes; ends early once it is over."""
    clock = clock or SystemClock()
    until = clock.monotonic() + _LONGEST_S
    read: list[coverage.MessageReadings] = []
    characters = 0
    with archive.reader() as reader:
        for waiting in reader.waiting_attachments(email, after, messages, version):
            read.append(read_attachments(reader, waiting, version))
            characters += sum(len(each.text) for each in read[-1].readings.values())
            if characters > _CHARACTERS or clock.monotonic() > until or is_over():
                break
    return ReadBatch(tuple(read), read[-1].message) if read else None


def versions_in_turn(version: int) -> tuple[int, ...]:
    """What attachments are read with, one after the other: pictures after everything else, because they take long."""
    return (EXTRACTOR_VERSION, OCR_VERSION) if version == OCR_VERSION else (version,)


def read_attachments(
    reader: MailReader, waiting: coverage.WaitingAttachments, version: int = EXTRACTOR_VERSION
) -> coverage.MessageReadings:
    """Never raises because of what the message holds."""
    message = waiting.message
    try:
        parsed = reader.parsed(message)
    except Fatal:
        note = "the stored bytes are damaged; run `postroom verify`"
        broken = coverage.AttachmentReading(coverage.PartState.UNREADABLE, note=note, version=version)
        return coverage.MessageReadings(message, None, dict.fromkeys(waiting.numbers, broken))
    readings = {number: replace(_reading(parsed, number, version), version=version) for number in waiting.numbers}
    return coverage.MessageReadings(message, texts_of(parsed), readings)


def _reading(parsed: ParsedMail, number: int, version: int) -> coverage.AttachmentReading:
    if number >= len(parsed.attachments):
        note = parsed.trouble or "the message is parsed in another way than it was before"
        return coverage.AttachmentReading(coverage.PartState.UNREADABLE, note=clean_text(note)[:_LONGEST_NOTE])
    return _read(parsed.attachments[number], with_ocr=version == OCR_VERSION)


def _read(attachment: Attachment, *, with_ocr: bool) -> coverage.AttachmentReading:
    if not attachment.size:
        return coverage.AttachmentReading(coverage.PartState.EMPTY)
    found = read_document(attachment.content(), attachment.filename, attachment.content_type, with_ocr=with_ocr)
    note = clean_text(found.note)[:_LONGEST_NOTE]
    if found.unread is not None:
        return coverage.AttachmentReading(coverage.STATE_OF[found.unread], note=note)
    text = clean_text(found.text).strip()
    return coverage.AttachmentReading(coverage.PartState.INDEXED if text else coverage.PartState.EMPTY, text, note)


_HEADS = 500


@dataclass(frozen=True, slots=True)
class IndexedConversations:
    added: int
    is_done: bool
    """False: it was over before all that waits was indexed."""


def index_conversations(
    archive: ArchiveBackend,
    progress: Callable[[int], None] = lambda done: None,
    is_over: Callable[[], bool] = lambda: False,
    *,
    messages: int = _HEADS,
) -> IndexedConversations:
    """Blocks until nothing waits, or it is over; needs no owner of the archive. `progress` is called with the number of
    messages added since its last call."""
    added = 0
    with archive.conversations() as index:
        for batch in index.waiting(messages):
            here = index.add(batch)
            added += here
            progress(here)
            if is_over():
                return IndexedConversations(added, False)
    return IndexedConversations(added, True)
