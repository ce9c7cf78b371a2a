"""What the archive knows of the mail that envelopes speak of; raw that comes inside an envelope is stored first.

A full-tier message is on disk before anything in the control database refers to it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage, IncomingMail, Provenance, StoreOutcome
from postroom.archive.place import MailReader
from postroom.archive.service import ArchiveService
from postroom.domain.envelope import LONGEST_TEXT, ArchivedRaw, Envelope, InlineRaw
from postroom.domain.errors import BadInput
from postroom.mail.categories import MailFacts, facts_of, shipped
from postroom.mail.parsing import parse_headers
from postroom.mail.triage_headers import triage_headers

GMAIL = "gmail"
_FOR_EVER = 1_000


@dataclass(frozen=True, slots=True)
class Evidence:
    """An archived message, with what is read from it when it is taken in."""

    message: ArchivedMessage
    headers: Mapping[str, str]
    text: str
    category: str | None = None
    """What kind of mail it is, which decides how long it is kept."""
    brought_by_ingest: bool = False


Wanted = Sequence[Envelope | None]
Found = list[Evidence | BadInput | None]


async def gather(archive: ArchiveService, envelopes: Wanted, contacts: Collection[str] = ()) -> Found:
    """For each envelope its evidence, what is wrong with its reference, or None where the archive has nothing.

    `contacts` are those of the senders whom the owner knows.
    """
    fresh = await _store_inline(archive, envelopes)
    return await archive.read(lambda reader: _read(reader, envelopes, fresh, contacts))


async def _store_inline(archive: ArchiveService, envelopes: Wanted) -> dict[int, tuple[str, bool] | BadInput]:
    """By its number, the key under which each inline message is now on disk, and whether it is new there."""
    by_account: dict[str, list[int]] = defaultdict(list)
    answers: dict[int, tuple[str, bool] | BadInput] = {}
    for number, envelope in enumerate(envelopes):
        if envelope is not None and isinstance(envelope.payload.raw, InlineRaw):
            account = _account(envelope)
            if account is None:
                answers[number] = BadInput("source.endpoint_identity", "is not a mail address")
            else:
                by_account[account].append(number)
    for account, numbers in by_account.items():
        mails = await asyncio.to_thread(_decoded, [envelopes[number] for number in numbers])
        stored = await archive.of(account).store(mails)
        for number, proof in zip(numbers, stored, strict=True):
            answers[number] = (proof.key, proof.outcome is StoreOutcome.STORED)
    return answers


def _decoded(envelopes: Wanted) -> list[IncomingMail]:
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


def _read(
    reader: MailReader,
    envelopes: Wanted,
    fresh: Mapping[int, tuple[str, bool] | BadInput],
    contacts: Collection[str],
) -> Found:
    keys: dict[str, dict[int, str]] = defaultdict(dict)
    found: Found = [None] * len(envelopes)
    for number, envelope in enumerate(envelopes):
        mine = fresh.get(number)
        if isinstance(mine, BadInput):
            found[number] = mine
        elif envelope is not None and (account := _account(envelope)) is not None:
            keys[account][number] = mine[0] if mine else _key(envelope)
    for account, wanted in keys.items():
        archived = reader.find_many(account, list(wanted.values()))
        for number, key in wanted.items():
            envelope = envelopes[number]
            assert envelope is not None  # noqa: S101 (only those have keys)
            is_fresh = number in fresh and fresh[number] == (key, True)
            is_known = envelope.sender.identity in contacts
            found[number] = _judge(reader, envelope, archived.get(key), is_fresh=is_fresh, is_known=is_known)
    for number, envelope in enumerate(envelopes):
        if envelope is not None and found[number] is None and isinstance(envelope.payload.raw, ArchivedRaw):
            found[number] = _missing(envelope)
    return found


def _judge(
    reader: MailReader, envelope: Envelope, message: ArchivedMessage | None, *, is_fresh: bool, is_known: bool
) -> Evidence | BadInput | None:
    if message is None:
        return None
    raw = envelope.payload.raw
    if isinstance(raw, ArchivedRaw) and raw.sha256 != message.sha256:
        return BadInput("payload.raw.sha256", "is not the hash of what the archive holds under this key")
    headers = parse_headers(reader.raw_of(message))
    if raw is None:
        return Evidence(message, triage_headers(headers), "")
    return Evidence(
        message=message,
        headers=triage_headers(headers),
        text=envelope.payload.normalized_text or reader.body_of(message)[:LONGEST_TEXT],
        category=_category(facts_of(headers, is_known=is_known)),
        brought_by_ingest=is_fresh,
    )


def _category(facts: MailFacts) -> str | None:
    """Of several, the one whose mail is worth having for longest."""
    categories = shipped()
    names = categories.matching(facts)
    return max(names, key=lambda name: categories.get(name).years or _FOR_EVER, default=None)


def _key(envelope: Envelope) -> str:
    raw = envelope.payload.raw
    return raw.archive_key if isinstance(raw, ArchivedRaw) else envelope.event.external_event_id


def _account(envelope: Envelope) -> str | None:
    """The mailbox whose archive is meant; None where the source is none."""
    try:
        return account_name(envelope.source.endpoint_identity)
    except BadInput:
        return None


def _missing(envelope: Envelope) -> BadInput:
    owner = envelope.source.endpoint_identity
    return BadInput("payload.raw.archive_key", f"the archive holds no such message of {owner}; store it first")
