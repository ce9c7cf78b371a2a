"""A message as the passes see it: its place in the mailbox, its labels, its headers, and its bytes where at hand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from postroom.connectors.wire import ArchivedMail, ArchivedRef
from postroom.gmail.resources import Message
from postroom.mail.headers import Headers
from postroom.reading.mail import read_headers

INBOX, SENT, DRAFT, CHAT, SPAM, TRASH = "INBOX", "SENT", "DRAFT", "CHAT", "SPAM", "TRASH"
Position = tuple[int, str]
"""When the mailbox received a message, in milliseconds, and its id: no two messages share one."""


@dataclass(frozen=True, eq=False)
class SourceMail:
    id: str
    thread_id: str
    label_ids: frozenset[str]
    received_ms: int
    headers: Headers
    raw: bytes | None = field(default=None, repr=False)
    archived: ArchivedRef | None = None

    @property
    def position(self) -> Position:
        return self.received_ms, self.id

    @property
    def is_outbound(self) -> bool:
        """The user's own mail, unless it came back to the inbox: a note to oneself is to be read."""
        return SENT in self.label_ids and INBOX not in self.label_ids

    @property
    def is_unfinished(self) -> bool:
        """A draft or a chat line: no mail that anybody has sent."""
        return bool(self.label_ids & {DRAFT, CHAT})

    def found_at(self, archived: ArchivedRef | None) -> SourceMail:
        return replace(self, archived=archived)


def from_gmail(message: Message) -> SourceMail:
    """A message fetched whole, or by its headers."""
    headers = read_headers(message.raw) if message.raw is not None else _metadata_headers(message)
    return SourceMail(
        message.id, message.thread_id, message.label_ids, message.internal_date_ms or 0, headers, message.raw
    )


def from_archive(mail: ArchivedMail) -> SourceMail:
    """A message that the archive describes. Its labels are names there, which system labels share with their ids."""
    return SourceMail(
        mail.gmail_id,
        mail.thread_id or "",
        frozenset(mail.labels),
        mail.internal_date,
        Headers(tuple((line.name, line.value) for line in mail.headers)),
        archived=ArchivedRef(archive_key=mail.archive_key, sha256=mail.sha256),
    )


def newest_first(mails: Iterable[SourceMail]) -> list[SourceMail]:
    return sorted(mails, key=lambda mail: mail.position, reverse=True)


def _metadata_headers(message: Message) -> Headers:
    pairs = message.payload.headers if message.payload else ()
    return Headers(tuple((name, value.replace("\r", "").replace("\n", "")) for name, value in pairs))
