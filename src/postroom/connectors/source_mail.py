"""A message as the passes see it (position, labels, headers, bytes if fetched), and its `ingest.v1` envelope. Pure.
Whatever a message holds, its envelope stays within the limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

from postroom.connectors.priority import TierAssignment
from postroom.contract.mail import ArchivedMail, ArchivedRef, HeaderLine, StoredRef
from postroom.domain.envelope import (
    LONGEST_LINE,
    UNKNOWN_SENDER,
    ArchivedRaw,
    Envelope,
    EnvelopeControl,
    EnvelopeEvent,
    EnvelopeSender,
    EnvelopeSource,
    IngestionTier,
    Payload,
    event_key,
)
from postroom.mail.addresses import parse_addresses
from postroom.mail.composing import REPORT_HEADER
from postroom.mail.headers import Headers
from postroom.mailboxes.protocol import RemoteMessage

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
    def day(self) -> date:
        """The day in UTC on which the mailbox received it."""
        return (_EPOCH + timedelta(milliseconds=min(max(0, self.received_ms), _LATEST_MS))).date()

    @property
    def is_outbound(self) -> bool:
        """The user's own mail, unless it came back to the inbox: a note to oneself is to be read, a report by Postroom
        is not. Only what the mailbox sent itself can be one: others can write the header too."""
        return SENT in self.label_ids and (INBOX not in self.label_ids or REPORT_HEADER in self.headers)

    @property
    def is_unfinished(self) -> bool:
        """A draft or a chat line: not a message that was sent."""
        return bool(self.label_ids & {DRAFT, CHAT})

    def found_at(self, archived: ArchivedRef | None) -> SourceMail:
        return replace(self, archived=archived)

    def stored_at(self, archived: StoredRef) -> SourceMail:
        """The archive has read it, and says what its headers are."""
        return replace(self, archived=archived, headers=_as_headers(archived.headers))


def from_mailbox(message: RemoteMessage) -> SourceMail:
    """A message fetched by its headers, or whole: then it has none until it is stored, because the archive reads it."""
    return SourceMail(
        message.id,
        message.thread_id,
        message.label_ids,
        message.received_ms or 0,
        Headers(message.headers),
        message.raw,
    )


def from_archive(mail: ArchivedMail) -> SourceMail:
    """A message that the archive describes. Its labels are names there, which system labels share with their ids."""
    return SourceMail(
        mail.gmail_id,
        mail.thread_id or "",
        frozenset(mail.labels),
        mail.internal_date,
        _as_headers(mail.headers),
        archived=ArchivedRef(key=mail.key, sha256=mail.sha256),
    )


def newest_first(mails: Iterable[SourceMail]) -> list[SourceMail]:
    return sorted(mails, key=lambda mail: mail.position, reverse=True)


def _as_headers(lines: Iterable[HeaderLine]) -> Headers:
    return Headers(tuple((line.name, line.value) for line in lines))


PROVIDER = "gmail"
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_LATEST_MS = 253_402_300_799_999


def envelope_of(
    mail: SourceMail, endpoint_identity: str, assignment: TierAssignment, payload: Payload, job_id: str | None
) -> Envelope:
    tier = IngestionTier.METADATA if payload.raw is None else IngestionTier.FULL
    return Envelope(
        schema_version="ingest.v1",
        source=EnvelopeSource(channel="email", provider=PROVIDER, endpoint_identity=endpoint_identity),
        event=EnvelopeEvent(
            external_event_id=mail.id,
            external_thread_id=mail.thread_id or None,
            observed_at=_EPOCH + timedelta(milliseconds=min(max(0, mail.received_ms), _LATEST_MS)),
        ),
        sender=_sender(mail),
        payload=payload,
        control=EnvelopeControl(
            idempotency_key=event_key(PROVIDER, endpoint_identity, mail.id),
            policy_tier=assignment.tier,
            assignment_rule=assignment.rule,
            ingestion_tier=tier,
            backfill_job_id=job_id,
        ),
    )


def metadata_payload(mail: SourceMail) -> Payload:
    """Tier 2: the subject in one line, and nothing of the body."""
    subject = " ".join((mail.headers.text("Subject") or "").splitlines())
    return Payload(raw=None, normalized_text=_clean(subject)[:LONGEST_LINE].strip())


def full_payload(mail: SourceMail) -> Payload:
    """Tier 1, by reference: text and attachments are the archive's."""
    if mail.archived is None:
        raise ValueError("a message is in the archive before an envelope speaks of it")
    raw = ArchivedRaw(key=mail.archived.key, sha256=mail.archived.sha256)
    return Payload(raw=raw, normalized_text="")


def _sender(mail: SourceMail) -> EnvelopeSender:
    found = next(iter(parse_addresses(*mail.headers.get_all("From"))), None)
    if found is None:
        return EnvelopeSender(identity=UNKNOWN_SENDER)
    identity = "".join(char for char in found.canonical if char.isprintable())[:LONGEST_LINE]
    name = _clean(found.display_name)[:LONGEST_LINE]
    return EnvelopeSender(identity=identity or UNKNOWN_SENDER, display_name=name or None)


def _clean(text: str) -> str:
    """Without what JSON or a database cannot hold: NUL, and halves of characters."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
