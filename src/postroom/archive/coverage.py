"""What of the archived mail can be found by its words: every part of every message is indexed, or has a reason.

A message's own text is one part, and each of its attachments is another. Nothing here is kept beside the mail: how many
parts wait follows from the attachments that are stored and the readings of them that are recorded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from postroom.archive.messages import ArchivedMessage
from postroom.archive.preparing import Texts
from postroom.domain.extras import Extra, is_installed
from postroom.reading.documents import EXTRACTOR_VERSION, OCR_VERSION, Unread, plain_version
from postroom.settings import Settings

MOST_OF_A_MESSAGE = 2_000_000
"""Characters that the attachments of one message have in the index, all together."""
SEPARATOR = "\n\ue000\n"
"""Between the texts of two attachments: a word of its own, so that no phrase reaches from one into the next."""


class PartState(StrEnum):
    INDEXED = "indexed"
    ENCRYPTED = "encrypted"
    TOO_LARGE = "too large"
    UNREADABLE = "unreadable"
    UNSUPPORTED = "kind not supported"
    EMPTY = "empty"
    WAITS = "waits"
    """To be read, for the first time or by a newer version of what reads attachments."""


def read_again_before(version: int) -> dict[PartState, int]:
    """The states that are no last word, each with the version before which a reading is repeated. That pictures are
    read too changes nothing about what is broken."""
    return {PartState.UNREADABLE: plain_version(version), PartState.UNSUPPORTED: version}


def reader_version(settings: Settings) -> int:
    """Of what reads attachments here: with the words in pictures, if the extra is installed and nothing forbids it."""
    return OCR_VERSION if settings.ocr.enabled and is_installed(Extra.OCR) else EXTRACTOR_VERSION


STATE_OF = {
    Unread.ENCRYPTED: PartState.ENCRYPTED,
    Unread.TOO_LARGE: PartState.TOO_LARGE,
    Unread.UNREADABLE: PartState.UNREADABLE,
    Unread.UNSUPPORTED: PartState.UNSUPPORTED,
    Unread.PICTURES: PartState.UNSUPPORTED,
}


class PartKind(StrEnum):
    BODY = "body"
    ATTACHMENT = "attachment"


@dataclass(frozen=True, slots=True)
class TextCoverage:
    """How many parts there are in each state."""

    bodies: Mapping[PartState, int] = field(default_factory=dict)
    attachments: Mapping[PartState, int] = field(default_factory=dict)

    @property
    def parts(self) -> int:
        return sum(self.bodies.values()) + sum(self.attachments.values())

    @property
    def by_state(self) -> dict[PartState, int]:
        """Every state, in the order of `PartState`."""
        return {state: self.bodies.get(state, 0) + self.attachments.get(state, 0) for state in PartState}

    @property
    def waiting(self) -> int:
        return self.by_state[PartState.WAITS]


def added_up(coverages: Iterable[TextCoverage]) -> TextCoverage:
    bodies, attachments = Counter[PartState](), Counter[PartState]()
    for each in coverages:
        bodies.update(each.bodies)
        attachments.update(each.attachments)
    return TextCoverage(dict(bodies), dict(attachments))


def body_states(messages: int, with_text: int, unreadable: int, empty: int) -> dict[PartState, int]:
    """Of messages, those that have a row in the index, and of these the unreadable ones and the other empty ones."""
    states = {
        PartState.INDEXED: with_text - unreadable - empty,
        PartState.UNREADABLE: unreadable,
        PartState.EMPTY: empty,
        PartState.WAITS: messages - with_text,
    }
    return {state: count for state, count in states.items() if count}


@dataclass(frozen=True, slots=True)
class UnindexedPart:
    """A part that cannot be found by its words, and why."""

    message: ArchivedMessage
    kind: PartKind
    number: int | None
    """Of an attachment."""
    filename: str
    state: PartState
    note: str = ""


@dataclass(frozen=True, slots=True)
class WaitingAttachments:
    message: ArchivedMessage
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttachmentReading:
    """What became of an attachment: its text, or the reason why there is none."""

    state: PartState
    text: str = ""
    note: str = ""
    version: int = EXTRACTOR_VERSION


@dataclass(frozen=True, slots=True)
class MessageReadings:
    message: ArchivedMessage
    texts: Texts | None
    """What the index holds of the message itself; None if its bytes are damaged."""
    readings: Mapping[int, AttachmentReading]
    """By the numbers of its attachments."""


def merged_readings(
    before: Mapping[int, AttachmentReading], now: Mapping[int, AttachmentReading], numbers: Iterable[int]
) -> dict[int, AttachmentReading]:
    """All readings of a message's attachments, in their order, with no more text than the index takes."""
    merged: dict[int, AttachmentReading] = {}
    left = MOST_OF_A_MESSAGE
    for number in sorted(set(numbers)):
        reading = now.get(number) or before.get(number)
        if reading is None:
            continue
        if len(reading.text) > left:
            reading = too_large(reading)
        left -= len(reading.text)
        merged[number] = reading
    return merged


def too_large(reading: AttachmentReading) -> AttachmentReading:
    note = "the attachments of this message have more text than the index takes"
    return AttachmentReading(PartState.TOO_LARGE, note=note, version=reading.version)


def joined_text(readings: Mapping[int, AttachmentReading]) -> str:
    """The text that the index has of a message's attachments."""
    return SEPARATOR.join(reading.text for reading in readings.values() if reading.text)


def cut_text(joined: str, lengths: Sequence[int]) -> list[str]:
    """`joined_text` taken apart again, by the lengths of all texts in their order; those of length 0 are not in it."""
    texts, start = [], 0
    for length in lengths:
        texts.append(joined[start : start + length])
        start += length + len(SEPARATOR) if length else 0
    return texts
