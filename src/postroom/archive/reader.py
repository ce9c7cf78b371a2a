"""What the readers of both archives share: a row as a message, stored bytes put together and checked, and a message
parsed from its bytes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from postroom.archive.messages import ArchivedAttachment, ArchivedMessage, Provenance
from postroom.archive.preparing import LARGE_BYTES, Cut, Packed, join, unpack
from postroom.domain.errors import Fatal
from postroom.mail.headers import Headers
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_headers, read_mail

PORTION = 500
"""Messages that a walk reads at a time."""
FACTS = (
    "key",
    "gmail_id",
    "thread_id",
    "message_id",
    "date_ms",
    "sender",
    "subject",
    "size",
    "sha256",
    "provenance",
    "has_attachment",
)
"""The columns that `archived_message` expects, in this order."""
_PROVENANCES = {str(each): each for each in Provenance}


def archived_message(
    account: str, shard: str, row_id: int, facts: Sequence[Any], deleted: datetime | None, labels: Iterable[str]
) -> ArchivedMessage:
    key, gmail_id, thread_id, message_id, date_ms, sender, subject, size, sha256, provenance, has_attachment = facts
    return ArchivedMessage(
        account=account,
        key=key,
        shard=shard,
        row_id=row_id,
        date=datetime.fromtimestamp(date_ms / 1_000, UTC),
        gmail_id=gmail_id,
        thread_id=thread_id,
        message_id=None if message_id.startswith("sha256:") else message_id,
        sender=sender,
        subject=subject,
        size=size,
        sha256=sha256.hex(),
        provenance=_PROVENANCES[provenance],
        has_attachment=bool(has_attachment),
        labels=tuple(sorted(labels)),
        deleted_at_source=deleted,
    )


def whole_message(rest: bytes, cuts: Sequence[Cut], sha256: bytes, row_id: int, shard: str) -> bytes:
    """The exact bytes. Raises Fatal unless they have the hash that was taken when they were stored."""
    whole = join(rest, cuts) if cuts else rest
    if hashlib.sha256(whole).digest() != sha256:
        raise Fatal(f"message {row_id} in {shard} is not what was stored; run `postroom verify`.")
    return whole


@dataclass(frozen=True, slots=True)
class MessageContent:
    headers: Headers
    body: str
    """The text that the search index was made from."""
    attachments: tuple[ArchivedAttachment, ...]


class PackedMail(NamedTuple):
    """What is stored of a message from which nothing was cut out."""

    message: ArchivedMessage
    packed: Packed
    sha256: bytes
    body: str
    attachments: tuple[ArchivedAttachment, ...]


class ArchiveReader(ABC):
    """The part of `MailReader` that follows from finding a message and reading its bytes."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def message(self, email: str, key: str) -> ArchivedMessage | None: ...

    @abstractmethod
    def raw_of(self, message: ArchivedMessage) -> bytes: ...

    def raw(self, email: str, key: str) -> bytes | None:
        found = self.message(email, key)
        return None if found is None else self.raw_of(found)

    @abstractmethod
    def _packed(self, messages: Sequence[ArchivedMessage]) -> Iterator[PackedMail]: ...

    def contents_of(self, messages: Sequence[ArchivedMessage]) -> dict[str, MessageContent]:
        found: dict[str, MessageContent] = {}
        with suppress(Fatal):  # what is left out is read by itself, which says why
            for each in self._packed([message for message in messages if message.size < LARGE_BYTES]):
                with suppress(Fatal):
                    raw = whole_message(unpack(each.packed), (), each.sha256, each.message.row_id, each.message.shard)
                    found[each.message.key] = MessageContent(read_headers(raw), each.body, each.attachments)
        return found

    def headers_of(self, message: ArchivedMessage) -> Headers:
        return read_headers(self.raw_of(message))

    def parsed(self, message: ArchivedMessage) -> ParsedMail:
        return read_mail(self.raw_of(message))
