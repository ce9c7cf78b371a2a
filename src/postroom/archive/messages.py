"""The archive's values: mail on its way in, mail that waits to be stored, mail that is stored, and which message is
meant by a typed reference.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from postroom.domain.errors import BadInput, NotFound
from postroom.mail.headers import Headers


class Provenance(StrEnum):
    """Where the raw bytes were read. Only the API's are known to be what Gmail holds."""

    API = "api"
    TAKEOUT = "takeout"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class IncomingMail:
    """A message to store. `received` is when the mailbox received it; without it the Date header decides."""

    raw: bytes
    provenance: Provenance
    gmail_id: str | None = None
    thread_id: str | None = None
    labels: frozenset[str] | None = None  # None: nothing is known of its labels
    received: datetime | None = None


class Relabelling(NamedTuple):
    """Labels that a message gained and lost at the source; a label on both sides was gained."""

    gmail_id: str
    add: frozenset[str] = frozenset()
    remove: frozenset[str] = frozenset()


class StoreOutcome(StrEnum):
    STORED = "stored"
    DUPLICATE = "duplicate"  # it was there already, with these bytes
    ADOPTED = "adopted"  # it was imported without a Gmail id, and has one now
    REPLACED = "replaced"  # the API's own bytes took the place of another source's
    REREAD = "reread"  # it was there already, could not be read then, and can be now


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """Proof of a stored message: where it is, under which key, and the hash of its bytes."""

    key: str
    shard: str
    row_id: int
    sha256: str
    outcome: StoreOutcome
    trouble: str | None = None
    """Why it could not be parsed, if so. Its bytes are stored in any case."""
    headers: Headers | None = field(default=None, repr=False, compare=False)
    """As parsed on the way in; None from a writer, which gets prepared mail."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message as a list shows it."""

    account: str
    key: str
    shard: str
    row_id: int
    date: datetime
    gmail_id: str | None
    thread_id: str
    message_id: str | None
    sender: str
    subject: str
    size: int
    sha256: str
    provenance: Provenance
    has_attachment: bool
    labels: tuple[str, ...]
    deleted_at_source: datetime | None


@dataclass(frozen=True, slots=True)
class ArchivedAttachment:
    number: int
    filename: str
    content_type: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class KnownId:
    """What the archive knows of a message with this id at the source."""

    gmail_id: str
    date_s: int
    """When the mailbox received it; for imported mail, the Date header."""
    is_deleted: bool
    """Marked as deleted at the source."""


@dataclass(frozen=True, slots=True)
class PersonWrittenTo:
    address: str
    name: str
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ArchivedSentMail:
    message_id: str
    """As the header has it, in angle brackets."""
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class AccountHolding:
    """How much of an account the archive has."""

    messages: int
    at_source: int
    """With a Gmail id, and not deleted at the source."""
    bytes: int
    """On disk, with the index."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Mail on its way to disk."""

    count: int
    parts: list[tuple[list[int], Future[list[StoredMessage]]]]

    def result(self) -> list[StoredMessage]:
        """Wait until all of it is on disk; results are in the order of the mail."""
        answers = {
            number: stored
            for numbers, future in self.parts
            for number, stored in zip(numbers, future.result(), strict=True)
        }
        return [answers[number] for number in range(self.count)]


SHORTEST_PREFIX = 8

_SHOWN = 5

MOST_FOUND = _SHOWN + 1

_KEY = re.compile(r"[0-9A-Za-z_-]+")


class MessageReference(NamedTuple):
    """A Message-ID, or else the keys from one to before another."""

    message_id: str | None = None
    keys: tuple[str, str] = ("", "")


def wanted_by(text: str) -> MessageReference:
    """What a person refers to. Raises BadInput for text that is neither."""
    if text.startswith("<") and text.endswith(">"):
        return MessageReference(message_id=text)
    if not _KEY.fullmatch(text):
        raise BadInput("id", f"{text!r} is neither a message's key nor a Message-ID in angle brackets")
    if len(text) < SHORTEST_PREFIX:
        return MessageReference(keys=(text, f"{text}-"))  # the first of all that begin with it
    return MessageReference(keys=(text, text[:-1] + chr(ord(text[-1]) + 1)))


def only_match(wanted: str, found: Sequence[ArchivedMessage]) -> ArchivedMessage:
    exact = [message for message in found if message.key == wanted]
    candidates = exact or found
    if not candidates:
        hint = (
            "" if len(wanted) >= SHORTEST_PREFIX else f" (a beginning must have {SHORTEST_PREFIX} characters or more)"
        )
        raise NotFound("id", f"the archive has no message {wanted}{hint}")
    if len(candidates) > 1:
        names = ", ".join(f"{message.key} ({message.account})" for message in candidates[:_SHOWN])
        raise BadInput("id", f"{wanted} is several messages: {names}; write more of the key, or use --account")
    return candidates[0]
