"""Looks up in the archive the messages that envelopes refer to, and stores raw bytes that arrive inline.

The bytes of a full-tier message are on disk before any row of the control database refers to them.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
from postroom.mail.headers import Headers, triage_headers

GMAIL = "gmail"
_FOR_EVER = 1_000
_AT_ONCE = 50
"""Messages whose headers are in memory at the same time; a hostile one may have a megabyte of them."""
_NO_HEADERS = Headers()


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


@dataclass(slots=True)
class _Reading:
    """What has been read so far of one message that the archive has."""

    number: int
    envelope: Envelope
    message: ArchivedMessage
    all_headers: Headers = _NO_HEADERS
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    attachments: Sequence[EnvelopeAttachment] = ()
    category: str | None = None
    wrong: BadInput | None = None

    @property
    def is_inline(self) -> bool:
        return isinstance(self.envelope.payload.raw, InlineRaw)

    def facts(self, fresh: StoredMessage | BadInput | None) -> ArchivedFacts | BadInput:
        if self.wrong is not None:
            return self.wrong
        by_ingest, trouble = False, None
        if isinstance(fresh, StoredMessage):
            by_ingest = fresh.outcome is StoreOutcome.STORED and self.envelope.payload.raw is not None
            trouble = fresh.trouble
        return ArchivedFacts(self.message, self.headers, self.text, self.attachments, self.category, by_ingest, trouble)


@dataclass(frozen=True, slots=True)
class _FactsReader:
    archive: ArchiveService
    reader: MailReader
    categories: Categories
    contacts: Collection[str]

    def read(self, envelopes: WantedFacts, fresh: Mapping[int, StoredMessage | BadInput]) -> FoundFacts:
        found: FoundFacts = [None] * len(envelopes)
        waiting = self._archived(envelopes, fresh, found)
        while waiting:
            some, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
            self._read_all(some)
            for each in some:
                found[each.number] = each.facts(fresh.get(each.number))
        for number, envelope in enumerate(envelopes):
            if envelope is not None and found[number] is None and isinstance(envelope.payload.raw, ArchivedRaw):
                found[number] = _missing(envelope)
        return found

    def _archived(
        self, envelopes: WantedFacts, fresh: Mapping[int, StoredMessage | BadInput], found: FoundFacts
    ) -> list[_Reading]:
        """Those that the archive has; why one could not be stored goes into `found`."""
        keys: dict[str, dict[int, str]] = defaultdict(dict)
        for number, envelope in enumerate(envelopes):
            mine = fresh.get(number)
            if isinstance(mine, BadInput):
                found[number] = mine
            elif envelope is not None and (account := _account(envelope)) is not None:
                keys[account][number] = mine.key if mine else _key(envelope)
        readings: list[_Reading] = []
        for account, wanted in keys.items():
            archived = self.reader.find_many(account, list(wanted.values()))
            for number, key in wanted.items():
                envelope, message = envelopes[number], archived.get(key)
                if envelope is not None and message is not None:
                    readings.append(_Reading(number, envelope, message))
        return readings

    def _read_all(self, readings: Sequence[_Reading]) -> None:
        """One step after the other, each for all of these: what a step needs stays in the processor's caches, which
        takes about a third off the time."""
        full = [each for each in readings if each.envelope.payload.raw is not None]
        _each(readings, _check_hash)
        _each(readings, self._read_headers)
        _each(readings, _shorten_headers)
        _each(full, self._read_text)
        _each(full, self._list_attachments)
        _each(full, self._categorise)

    def _read_headers(self, each: _Reading) -> None:
        each.all_headers = self.archive.headers_of(self.reader, each.message)

    def _read_text(self, each: _Reading) -> None:
        """Of what is given by reference, only the archive's text counts, so that the route does not matter. A caller
        that sends the bytes may send a text of its own, and attachments."""
        own = each.envelope.payload.normalized_text if each.is_inline else ""
        each.text = own or self.reader.body_of(each.message)[:LONGEST_TEXT]

    def _list_attachments(self, each: _Reading) -> None:
        own = each.envelope.payload.attachments if each.is_inline else ()
        each.attachments = own or self._attachments(each.message)

    def _categorise(self, each: _Reading) -> None:
        is_known = each.envelope.sender.identity in self.contacts
        facts = facts_of(each.all_headers, is_known=is_known, labels=each.message.labels)
        each.category = _category(self.categories, facts)

    def _attachments(self, message: ArchivedMessage) -> list[EnvelopeAttachment]:
        """As an envelope lists them, whatever their names and types hold."""
        if not message.has_attachment:
            return []
        return [
            EnvelopeAttachment(
                filename=each.filename[:LONGEST_LINE] or None,
                content_type=_printable(each.content_type)[:255] or "application/octet-stream",
                size=min(each.size, LARGEST_RAW),
                sha256=each.sha256,
            )
            for each in islice(self.reader.attachments_of(message), MOST_ATTACHMENTS)
        ]


def _each(readings: Iterable[_Reading], step: Callable[[_Reading], None]) -> None:
    """An exception while one message is read refuses that message only."""
    for each in readings:
        if each.wrong is None:
            try:
                step(each)
            except Retryable:
                raise
            except Exception as error:
                each.wrong = BadInput("payload", f"what the archive holds of it cannot be used ({_kind(error)})")


def _check_hash(each: _Reading) -> None:
    raw = each.envelope.payload.raw
    if isinstance(raw, ArchivedRaw) and raw.sha256 != each.message.sha256:
        each.wrong = BadInput("payload.raw.sha256", "is not the hash of what the archive holds under this key")


def _shorten_headers(each: _Reading) -> None:
    each.headers = triage_headers(each.all_headers)


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
