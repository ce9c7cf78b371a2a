"""One archived message as it is read: its headers, its text, its HTML made safe, its files, and its conversation.

Everything is bounded, whatever a sender made of it; what was left out is said, and the exact bytes can be downloaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TypeVar

from postroom.app.serving import House
from postroom.archive.lookup import attachment_of
from postroom.archive.model import ArchivedAttachment, ArchivedMessage, Provenance
from postroom.archive.place import MailReader
from postroom.archive.search import ShardProblem, Thread
from postroom.dashboard.reading.mail import Sender, sender_of
from postroom.dashboard.showing.html import SafeHtml, safe_html
from postroom.domain.errors import NotFound
from postroom.mail.addresses import Address
from postroom.mail.encoded_words import decode_words
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_mail

T = TypeVar("T")

MOST_ADDRESSES = 200
MOST_OF_A_THREAD = 100
LONGEST_TEXT = 200_000
_MOST_HEADERS = 200
_MOST_ATTACHMENTS = 200
_LONGEST_HEADER = 2_000
_LONGEST_IN_THREAD = 3_000


@dataclass(frozen=True, slots=True)
class Addresses:
    shown: tuple[Sender, ...]
    left_out: int
    """How many more there are, of those that could be read."""


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Letter:
    account: str
    key: str
    message_id: str | None
    thread_id: str
    date: datetime
    """When the mailbox received it."""
    sent_at: datetime | None
    """When its sender says that it was sent."""
    subject: str
    sender: Addresses
    reply_to: Addresses
    to: Addresses
    cc: Addresses
    bcc: Addresses
    labels: tuple[str, ...]
    size: int
    provenance: Provenance
    deleted_at_source: datetime | None
    text: str
    """The plain body; where there is none, the words of the HTML."""
    is_text_cut: bool
    html: SafeHtml | None
    attachments: tuple[ArchivedAttachment, ...]
    headers: tuple[Header, ...]
    are_headers_cut: bool
    problems: tuple[str, ...]
    """What of it could not be read."""
    trouble: str | None
    """Why nothing of it could be read but a few headers."""


@dataclass(frozen=True, slots=True)
class ThreadEntry:
    account: str
    key: str
    date: datetime
    sender: Sender
    subject: str
    has_attachment: bool
    labels: tuple[str, ...]
    text: str
    """The beginning of what it says."""
    is_text_cut: bool


@dataclass(frozen=True, slots=True)
class Conversation:
    subject: str
    entries: Sequence[ThreadEntry]
    """Oldest first."""
    before: int | None
    """There are older ones; asks for them. Null: these are the oldest."""
    problems: tuple[ShardProblem, ...]


async def read_letter(house: House, account: str, key: str) -> Letter:
    def read(archive: MailReader, message: ArchivedMessage) -> Letter:
        attachments = tuple(islice(archive.attachments_of(message), _MOST_ATTACHMENTS))
        return _letter(message, read_mail(archive.raw_of(message)), attachments)

    return await _read(house, account, key, read)


async def read_raw(house: House, account: str, key: str) -> bytes:
    """The exact bytes."""
    return await _read(house, account, key, lambda archive, message: archive.raw_of(message))


async def read_attachment(house: House, account: str, key: str, number: int) -> tuple[str, bytes]:
    """Its name and its content."""

    def read(archive: MailReader, message: ArchivedMessage) -> tuple[str, bytes]:
        attachment = attachment_of(read_mail(archive.raw_of(message)), number)
        return attachment.filename or f"attachment-{number}", attachment.content()

    return await _read(house, account, key, read)


async def read_html(house: House, account: str, key: str) -> SafeHtml:
    """Only the HTML body, for the frame that shows it."""

    def read(archive: MailReader, message: ArchivedMessage) -> SafeHtml:
        return safe_html(read_mail(archive.raw_of(message)).html or "")

    return await _read(house, account, key, read)


async def read_conversation(house: House, account: str, key: str, before: int | None = None) -> Conversation:
    """The messages of a message's thread; of a very long one the newest, or those before a place."""
    message = await _find(house, account, key)
    most = MOST_OF_A_THREAD
    thread = await asyncio.to_thread(
        house.search.thread, message.account, message.thread_id, newest=most + 1, before=before
    )
    ids = sorted((one.row_id for one in thread.messages), reverse=True)
    start = ids[most] + 1 if len(ids) > most else None  # so that the first that is left out begins the next part
    shown = [one for one in thread.messages if start is None or one.row_id >= start]
    entries = await house.archive.read_apart(lambda archive: [_entry(archive, one) for one in shown])
    return Conversation(message.subject, entries, start, thread.problems)


async def thread_of(house: House, letter: Letter) -> Thread:
    """The newest messages of its thread, as a list shows them."""
    return await asyncio.to_thread(house.search.thread, letter.account, letter.thread_id, newest=MOST_OF_A_THREAD)


async def _find(house: House, account: str, key: str) -> ArchivedMessage:
    message = await asyncio.to_thread(house.search.message, account, key)
    if message is None:
        raise NotFound("message", f"the archive has no message {key} of {account}")
    return message


async def _read(house: House, account: str, key: str, work: Callable[[MailReader, ArchivedMessage], T]) -> T:
    """Off the event loop: bytes are unpacked, parsed and sanitised there too."""
    message = await _find(house, account, key)
    return await house.archive.read_apart(lambda archive: work(archive, message))


def _letter(message: ArchivedMessage, parsed: ParsedMail, attachments: tuple[ArchivedAttachment, ...]) -> Letter:
    text = parsed.best_text
    return Letter(
        account=message.account,
        key=message.key,
        message_id=None if parsed.message_id is None else whole(parsed.message_id),
        thread_id=message.thread_id,
        date=message.date,
        sent_at=parsed.date,
        subject=whole(parsed.subject),
        sender=_addresses(parsed.from_),
        reply_to=_addresses(parsed.reply_to),
        to=_addresses(parsed.to),
        cc=_addresses(parsed.cc),
        bcc=_addresses(parsed.bcc),
        labels=message.labels,
        size=message.size,
        provenance=message.provenance,
        deleted_at_source=message.deleted_at_source,
        text=whole(text[:LONGEST_TEXT]),
        is_text_cut=len(text) > LONGEST_TEXT,
        html=None if not parsed.html or parsed.html.isspace() else safe_html(parsed.html),
        attachments=attachments,
        headers=tuple(_header(name, value) for name, value in parsed.headers.pairs[:_MOST_HEADERS]),
        are_headers_cut=len(parsed.headers) > _MOST_HEADERS,
        problems=() if parsed.trouble else tuple(whole(problem) for problem in parsed.problems),
        trouble=parsed.trouble,
    )


def _header(name: str, value: str) -> Header:
    return Header(whole(name), whole(decode_words(value[: 2 * _LONGEST_HEADER]))[:_LONGEST_HEADER])


def _addresses(found: tuple[Address, ...]) -> Addresses:
    shown = tuple(Sender(whole(one.display_name), whole(one.address)) for one in found[:MOST_ADDRESSES])
    return Addresses(shown, len(found) - len(shown))


def _entry(archive: MailReader, message: ArchivedMessage) -> ThreadEntry:
    text = archive.body_of(message)
    return ThreadEntry(
        account=message.account,
        key=message.key,
        date=message.date,
        sender=sender_of(message.sender),
        subject=message.subject,
        has_attachment=message.has_attachment,
        labels=message.labels,
        text=text[:_LONGEST_IN_THREAD].strip(),
        is_text_cut=len(text) > _LONGEST_IN_THREAD,
    )


def whole(text: str) -> str:
    """Without halves of characters, which no page and no JSON can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
