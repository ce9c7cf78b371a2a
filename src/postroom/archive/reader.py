"""What the readers of both archives share: a row as a message, stored bytes put together and checked, and a message
parsed from its bytes.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Self

from postroom.archive.messages import ArchivedMessage, Provenance
from postroom.archive.preparing import Cut, join
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

    def headers_of(self, message: ArchivedMessage) -> Headers:
        return read_headers(self.raw_of(message))

    def parsed(self, message: ArchivedMessage) -> ParsedMail:
        return read_mail(self.raw_of(message))
