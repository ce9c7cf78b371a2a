"""The archive's values: mail on its way in, mail that waits to be stored, mail that is stored, where it is, and which
message is meant by a typed reference.

Shards are `archive/<account>/<year>.db`, further parts of a full year `<year>-2.db`. A row id is the date in
milliseconds shifted by 16 bits, plus a slot that tells messages of the same millisecond apart: newest first needs no
sort, and a range of dates is a range of ids, also for old mail that arrives late.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from postroom.domain.errors import BadInput, NotFound
from postroom.mail.addresses import canonical_address
from postroom.mail.headers import Headers

_FILE = re.compile(r"(\d{4})(?:-([2-9]|[1-9]\d+))?\.db")


class ShardName(NamedTuple):
    """An account's year; `part` counts the files that it was split into."""

    account: str
    year: int
    part: int = 1

    @property
    def filename(self) -> str:
        return f"{self.year:04}.db" if self.part == 1 else f"{self.year:04}-{self.part}.db"

    def __str__(self) -> str:
        return f"{self.account}/{self.filename}"


def account_name(email: str) -> str:
    """The form of an address that names an account, and its folder."""
    account = canonical_address(email)
    if "@" not in account or len(account) > 200 or account.startswith("."):
        raise BadInput("account", f"{email!r} is not a mail address")
    return account


def folder_of(root: Path, account: str) -> Path:
    return root / quote(account, safe="@+-_.")


def path_of(root: Path, name: ShardName) -> Path:
    return folder_of(root, name.account) / name.filename


def year_of(date: datetime) -> int:
    """The year of the shard of a message, within 1970 and 9999."""
    return min(max(date.year, 1970), 9999)


def parse_name(text: str) -> ShardName:
    """A shard's name as `str` gives it."""
    account, _, filename = text.rpartition("/")
    name = parse_filename(account, filename)
    if name is None:
        raise BadInput("shard", f"{text!r} is not the name of a shard")
    return name


@lru_cache(4_096)
def parse_filename(account: str, filename: str) -> ShardName | None:
    match = _FILE.fullmatch(filename)
    return ShardName(account, int(match[1]), int(match[2] or 1)) if match else None


SLOT_BITS = 16
SLOTS = 1 << SLOT_BITS
LARGEST_ID = (1 << 63) - 1
_DAY_MS = 86_400_000
_LATEST_MS = (1 << (63 - SLOT_BITS)) - 1_025  # far past the year 6000, with room above for what flows over


def first_id(date_ms: int) -> int:
    """The smallest id of this millisecond; dates before 1970 share the first one."""
    return min(max(date_ms, 0), _LATEST_MS) << SLOT_BITS


def free_id(date_ms: int, largest_taken: Callable[[int], int | None]) -> int:
    """A free id: of this millisecond, or of the next one that is not full.

    `largest_taken` is asked for the largest id taken in a millisecond, by its first.
    """
    first = first_id(date_ms)
    while (taken := largest_taken(first)) == first + SLOTS - 1:
        first += SLOTS
    return first if taken is None else taken + 1


def id_range(first: date, last: date) -> tuple[int, int]:
    """The first id of the first day, and the first id after the last day; days are in UTC."""
    return first_id(_day_ms(first)), first_id(_day_ms(last) + _DAY_MS)


def _day_ms(day: date) -> int:
    return round(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000)


def cursor_of(row_id: int, part: int = 1) -> str:
    """Where a page of a walk ended."""
    return f"{row_id:x}.{part}"


def read_cursor(text: str) -> tuple[int, int]:
    """A row id and a part."""
    row_id, _, part = text.partition(".")
    try:
        found = int(row_id, 16), int(part)
    except ValueError:
        raise BadInput("cursor", "is not one that this tool gave") from None
    if not (0 <= found[0] <= LARGEST_ID and 0 < found[1] < 1 << 31):
        raise BadInput("cursor", "is not one that this tool gave")
    return found


def date_of_id(row_id: int) -> datetime:
    return datetime.fromtimestamp((row_id >> SLOT_BITS) / 1_000, UTC)


class TextRow(NamedTuple):
    """A message by where it lies in its account, for what is made of its text."""

    year: int
    part: int
    """Of its shard; year and part are 0 in PostgreSQL, where a row id is enough."""
    row_id: int
    check: int
    """The first four bytes of its hash: they differ once it has other bytes."""


def check_of(sha256: bytes) -> int:
    return int.from_bytes(sha256[:4])


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
