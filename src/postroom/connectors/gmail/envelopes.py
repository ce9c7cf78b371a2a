"""From a message to its `ingest.v1` envelope. Pure; whatever a message holds, the envelope keeps within its bounds."""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.connectors.gmail.mail import SourceMail
from postroom.connectors.priority import Assignment
from postroom.domain.envelope import (
    LARGEST_RAW,
    LONGEST_LINE,
    LONGEST_TEXT,
    MOST_ATTACHMENTS,
    UNKNOWN_SENDER,
    ArchivedRaw,
    Attachment,
    Control,
    Envelope,
    Event,
    IngestionTier,
    Payload,
    Sender,
    Source,
    event_key,
)
from postroom.mail.addresses import parse_addresses
from postroom.mail.parsing import ParsedMail
from postroom.reading.mail import read_mail

PROVIDER = "gmail"
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_LATEST_MS = 253_402_300_799_999


def envelope_of(
    mail: SourceMail, endpoint_identity: str, assignment: Assignment, payload: Payload, job_id: str | None
) -> Envelope:
    tier = IngestionTier.METADATA if payload.raw is None else IngestionTier.FULL
    return Envelope(
        schema_version="ingest.v1",
        source=Source(channel="email", provider=PROVIDER, endpoint_identity=endpoint_identity),
        event=Event(
            external_event_id=mail.id,
            external_thread_id=mail.thread_id or None,
            observed_at=_EPOCH + timedelta(milliseconds=min(max(0, mail.received_ms), _LATEST_MS)),
        ),
        sender=_sender(mail),
        payload=payload,
        control=Control(
            idempotency_key=event_key(PROVIDER, endpoint_identity, mail.id),
            policy_tier=assignment.tier,
            ingestion_tier=tier,
            backfill_job_id=job_id,
        ),
    )


def metadata_payload(mail: SourceMail) -> Payload:
    """Tier 2: the subject in one line, and nothing of the body."""
    subject = " ".join((mail.headers.text("Subject") or "").splitlines())
    return Payload(raw=None, normalized_text=_clean(subject)[:LONGEST_LINE].strip())


def full_payload(mail: SourceMail) -> Payload:
    """Tier 1. Where the archive had the bytes already, it has the text too, and none is sent."""
    if mail.archived is None:
        raise ValueError("a message is in the archive before an envelope speaks of it")
    raw = ArchivedRaw(archive_key=mail.archived.archive_key, sha256=mail.archived.sha256)
    if mail.raw is None:
        return Payload(raw=raw, normalized_text="")
    parsed = read_mail(mail.raw)
    return Payload(raw=raw, normalized_text=_clean(parsed.best_text)[:LONGEST_TEXT], attachments=_attachments(parsed))


def _sender(mail: SourceMail) -> Sender:
    found = next(iter(parse_addresses(*mail.headers.get_all("From"))), None)
    if found is None:
        return Sender(identity=UNKNOWN_SENDER)
    identity = "".join(char for char in found.canonical if char.isprintable())[:LONGEST_LINE]
    name = _clean(found.display_name)[:LONGEST_LINE]
    return Sender(identity=identity or UNKNOWN_SENDER, display_name=name or None)


def _attachments(parsed: ParsedMail) -> list[Attachment]:
    return [
        Attachment(
            filename=_clean(each.filename)[:LONGEST_LINE] or None,
            content_type="".join(char for char in each.content_type if char.isprintable())[:255]
            or "application/octet-stream",
            size=min(each.size, LARGEST_RAW),
            sha256=each.sha256,
        )
        for each in parsed.attachments[:MOST_ATTACHMENTS]
    ]


def _clean(text: str) -> str:
    """Without what JSON or a database cannot hold: NUL, and halves of characters."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8")
