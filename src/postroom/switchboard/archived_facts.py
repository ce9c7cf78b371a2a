"""Looks up in the archive the messages that envelopes refer to, and stores raw bytes that arrive inline.

The bytes of a full-tier message are on disk before any row of the control database refers to them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from postroom.archive.backend import MailReader
from postroom.archive.messages import (
    ArchivedMessage,
    IncomingMail,
    Provenance,
    StoredMessage,
    StoreOutcome,
    account_name,
)
from postroom.archive.reader import MessageContent
from postroom.archive.service import AccountStore, ArchiveService
from postroom.domain.envelope import (
    LARGEST_RAW,
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_ATTACHMENTS,
    ArchivedRaw,
    Envelope,
    EnvelopeAttachment,
    InlineRaw,
)
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.mail.categories import Categories, CategoryFacts, facts_of
from postroom.mail.headers import triage_headers

GMAIL = "gmail"
_FOR_EVER = 1_000


@dataclass(frozen=True, slots=True)
class ArchivedFacts:
    """An archived message, with what is read from it when it is taken in."""

    message: ArchivedMessage
    headers: Mapping[str, str]
    text: str
    attachments: Sequence[EnvelopeAttachment] = ()
    category: str | None = None
    """What kind of mail it is, which decides how long it is kept."""
    brought_by_ingest: bool = False
    trouble: str | None = None
    """Why it could not be read when ingest brought it."""


WantedFacts = Sequence[Envelope | None]
FoundFacts = list[ArchivedFacts | BadInput | None]


async def gather(
    archive: ArchiveService, envelopes: WantedFacts, categories: Categories, contacts: Collection[str] = ()
) -> FoundFacts:
    """For each envelope its evidence, what is wrong with its reference, or None where the archive has nothing.

    `contacts` are those of the senders whom the owner knows.
    """
    fresh = await _store_inline(archive, envelopes)
    return await archive.read(lambda reader: _FactsReader(archive, reader, categories, contacts).read(envelopes, fresh))


async def _store_inline(archive: ArchiveService, envelopes: WantedFacts) -> dict[int, StoredMessage | BadInput]:
    """By its number, where each inline message is now on disk."""
    by_account: dict[str, list[int]] = defaultdict(list)
    answers: dict[int, StoredMessage | BadInput] = {}
    for number, envelope in enumerate(envelopes):
        if envelope is not None and isinstance(envelope.payload.raw, InlineRaw):
            account = _account(envelope)
            if account is None:
                answers[number] = BadInput("source.endpoint_identity", "is not a mail address")
            else:
                by_account[account].append(number)
    for account, numbers in by_account.items():
        mails = await asyncio.to_thread(_decoded, [envelopes[number] for number in numbers])
        stored = await _stored(archive.of(account), mails)
        archive.recent.add([proof for proof in stored if isinstance(proof, StoredMessage)])
        answers |= zip(numbers, stored, strict=True)
    return answers


async def _stored(store: AccountStore, mails: Sequence[IncomingMail]) -> list[StoredMessage | BadInput]:
    """Where each lies. One that cannot be stored does not affect the others."""
    try:
        return list(await store.store(mails))
    except Retryable:
        raise
    except Exception as error:
        if len(mails) == 1:
            return [BadInput("payload.raw", f"cannot be stored ({_kind(error)})")]
        return [answer for mail in mails for answer in await _stored(store, [mail])]


def _decoded(envelopes: WantedFacts) -> list[IncomingMail]:
    return [
        _incoming(envelope, envelope.payload.raw)
        for envelope in envelopes
        if envelope is not None and isinstance(envelope.payload.raw, InlineRaw)
    ]


def _incoming(envelope: Envelope, raw: InlineRaw) -> IncomingMail:
    is_gmail = envelope.source.provider == GMAIL
    return IncomingMail(
        raw=raw.content,
        provenance=Provenance.API if is_gmail else Provenance.IMPORT,
        gmail_id=envelope.event.external_event_id if is_gmail else None,
        thread_id=envelope.event.external_thread_id if is_gmail else None,
        received=envelope.observed_at,
    )


@dataclass(frozen=True, slots=True)
class _FactsReader:
    archive: ArchiveService
    reader: MailReader
    categories: Categories
    contacts: Collection[str]

    def read(self, envelopes: WantedFacts, fresh: Mapping[int, StoredMessage | BadInput]) -> FoundFacts:
        keys: dict[str, dict[int, str]] = defaultdict(dict)
        found: FoundFacts = [None] * len(envelopes)
        for number, envelope in enumerate(envelopes):
            mine = fresh.get(number)
            if isinstance(mine, BadInput):
                found[number] = mine
            elif envelope is not None and (account := _account(envelope)) is not None:
                keys[account][number] = mine.key if mine else _key(envelope)
        for account, wanted in keys.items():
            archived = self.reader.find_many(account, list(wanted.values()))
            contents = self._contents(list(archived.values()))
            for number, key in wanted.items():
                envelope = envelopes[number]
                assert envelope is not None  # noqa: S101 (only those have keys)
                found[number] = self._judged(envelope, archived.get(key), contents.get(key), fresh.get(number))
        for number, envelope in enumerate(envelopes):
            if envelope is not None and found[number] is None and isinstance(envelope.payload.raw, ArchivedRaw):
                found[number] = _missing(envelope)
        return found

    def _contents(self, messages: Sequence[ArchivedMessage]) -> Mapping[str, MessageContent]:
        """Of those whose headers are not in memory, so that a batch is one query and not two for each message."""
        unknown = [message for message in messages if self.archive.recent.get(message.sha256) is None]
        return self.reader.contents_of(unknown) if len(unknown) > 1 else {}

    def _judged(
        self,
        envelope: Envelope,
        message: ArchivedMessage | None,
        content: MessageContent | None,
        fresh: StoredMessage | BadInput | None,
    ) -> ArchivedFacts | BadInput | None:
        """An exception while one message is read refuses that message only."""
        if message is None:
            return None
        try:
            facts = self._judge(envelope, message, content)
        except Retryable:
            raise
        except Exception as error:
            return BadInput("payload", f"what the archive holds of it cannot be used ({_kind(error)})")
        if isinstance(facts, BadInput) or not isinstance(fresh, StoredMessage):
            return facts
        is_new = fresh.outcome is StoreOutcome.STORED
        return replace(facts, brought_by_ingest=is_new and envelope.payload.raw is not None, trouble=fresh.trouble)

    def _judge(
        self, envelope: Envelope, message: ArchivedMessage, content: MessageContent | None
    ) -> ArchivedFacts | BadInput:
        payload = envelope.payload
        if isinstance(payload.raw, ArchivedRaw) and payload.raw.sha256 != message.sha256:
            return BadInput("payload.raw.sha256", "is not the hash of what the archive holds under this key")
        headers = content.headers if content else self.archive.headers_of(self.reader, message)
        if payload.raw is None:
            return ArchivedFacts(message, triage_headers(headers), "")
        # Of what is given by reference, only the archive's text counts, so that the route does not matter. A
        # caller that sends the bytes may send a text of its own.
        own_words = payload.normalized_text if isinstance(payload.raw, InlineRaw) else ""
        own_files = payload.attachments if isinstance(payload.raw, InlineRaw) else ()
        return ArchivedFacts(
            message=message,
            headers=triage_headers(headers),
            text=own_words or (content.body if content else self.reader.body_of(message))[:LONGEST_TEXT],
            attachments=own_files or self._attachments(message, content),
            category=_category(
                self.categories,
                facts_of(headers, is_known=envelope.sender.identity in self.contacts, labels=message.labels),
            ),
        )

    def _attachments(self, message: ArchivedMessage, content: MessageContent | None) -> list[EnvelopeAttachment]:
        """As an envelope lists them, whatever their names and types hold."""
        if not message.has_attachment:
            return []
        listed = content.attachments if content else self.reader.attachments_of(message)
        return [
            EnvelopeAttachment(
                filename=each.filename[:LONGEST_LINE] or None,
                content_type=_printable(each.content_type)[:255] or "application/octet-stream",
                size=min(each.size, LARGEST_RAW),
                sha256=each.sha256,
            )
            for each in islice(listed, MOST_ATTACHMENTS)
        ]


def _printable(text: str) -> str:
    return "".join(char for char in text if char.isprintable())


def _kind(error: Exception) -> str:
    """The message of our error; of a foreign one only its type, because its text may quote the mail."""
    return error.message if isinstance(error, PostroomError) else type(error).__name__


def _category(categories: Categories, facts: CategoryFacts) -> str | None:
    """Of several, the one whose mail is worth having for longest."""
    names = categories.matching(facts)
    return max(names, key=lambda name: categories.get(name).years or _FOR_EVER, default=None)


def _key(envelope: Envelope) -> str:
    raw = envelope.payload.raw
    return raw.key if isinstance(raw, ArchivedRaw) else envelope.event.external_event_id


def _account(envelope: Envelope) -> str | None:
    """The mailbox whose archive is meant; None where the source is none."""
    try:
        return account_name(envelope.source.endpoint_identity)
    except BadInput:
        return None


def _missing(envelope: Envelope) -> BadInput:
    owner = envelope.source.endpoint_identity
    return BadInput("payload.raw.key", f"the archive holds no such message of {owner}; store it first")
