"""Where envelopes end up in the control database: a message and an inbox entry each, written for a whole batch at once.

Whether a delivery is new is decided by the unique key of the messages, so that several processes may take in mail.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, delete, select, update

from postroom.accounts.store import find_account
from postroom.db import Tx
from postroom.db.tables.mail import contacts, ingest_inbox, messages
from postroom.db.upsert import insert
from postroom.domain.envelope import Envelope, IngestionTier
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller
from postroom.mail.addresses import canonical_address
from postroom.switchboard.evidence import Evidence

_OF_THE_ARCHIVE = (
    "category",
    "headers",
    "labels",
    "has_attachment",
    "size_bytes",
    "archive_key",
    "archive_shard",
    "archive_sha256",
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """An envelope that is right, on its way in."""

    number: int
    key: str
    envelope: Envelope
    evidence: Evidence | None
    message_id: str
    request_id: str

    @property
    def is_full(self) -> bool:
        return self.envelope.control.ingestion_tier is IngestionTier.FULL


def known_contacts(tx: Tx, senders: Iterable[str]) -> set[str]:
    """Those of the senders who are the owner's contacts, as they were given."""
    asked = {canonical_address(sender): sender for sender in senders}
    query = select(contacts.c.address).where(contacts.c.address.in_(sorted(asked)))
    return {asked[address] for (address,) in tx.execute(query)}


def known_requests(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """The first request of each key that was taken in before."""
    rows = tx.execute(
        select(ingest_inbox.c.idempotency_key, ingest_inbox.c.request_id).where(
            ingest_inbox.c.idempotency_key.in_(sorted(set(keys)))
        )
    )
    return {key: request_id for key, request_id in rows}


def insert_messages(tx: Tx, fresh: Sequence[Delivery], now: datetime) -> dict[str, dict[str, Any]]:
    """The rows that are in now, by key, in the order of delivery. One that is missing was brought by another process
    between our look and our write."""
    if not fresh:
        return {}
    accounts = _accounts(tx, {delivery.envelope.source.endpoint_identity for delivery in fresh})
    rows = {d.key: _message(d, accounts[d.envelope.source.endpoint_identity], now) for d in fresh}
    statement = insert(tx, messages).on_conflict_do_nothing(index_elements=["idempotency_key"])
    # In the order of their keys, so that rivals with the same mail wait for each other and never in a circle.
    in_order = [rows[key] for key in sorted(rows)]
    inserted = {key for (key,) in tx.execute(statement.returning(messages.c.idempotency_key), in_order)}
    return {key: row for key, row in rows.items() if key in inserted}


def enter(tx: Tx, deliveries: Sequence[Delivery], caller: Caller, now: datetime) -> None:
    """The inbox's side of messages that are in."""
    if deliveries:
        tx.execute(ingest_inbox.insert(), [_inbox_row(delivery, caller, now) for delivery in deliveries])


def take_back(tx: Tx, ids: Sequence[str]) -> None:
    """Whether a message is new is known once it is in; what the gate refuses then goes out again, unseen by anybody."""
    if ids:
        tx.execute(delete(messages).where(messages.c.id.in_(ids)))


def _accounts(tx: Tx, identities: set[str]) -> dict[str, str | None]:
    """Which of our accounts each mailbox is; None for one that is none of ours."""
    found: dict[str, str | None] = {}
    for identity in identities:
        try:
            account = find_account(tx, identity)
        except BadInput:
            account = None
        found[identity] = None if account is None else account.id
    return found


def _message(delivery: Delivery, account_id: str | None, now: datetime) -> dict[str, Any]:
    envelope, evidence = delivery.envelope, delivery.evidence
    source, event, control, payload = envelope.source, envelope.event, envelope.control, envelope.payload
    return {
        "id": delivery.message_id,
        "account_id": account_id,
        "channel": source.channel,
        "provider": source.provider,
        "endpoint_identity": source.endpoint_identity,
        "external_event_id": event.external_event_id,
        "external_thread_id": event.external_thread_id,
        "idempotency_key": delivery.key,
        "sender_identity": envelope.sender.identity,
        "sender_name": envelope.sender.display_name,
        "attachments": [attachment.model_dump(exclude_none=True) for attachment in payload.attachments],
        "ingestion_tier": control.ingestion_tier,
        "policy_tier": control.policy_tier,
        "backfill_job_id": control.backfill_job_id,
        "observed_at": envelope.observed_at,
        "accepted_at": now,
        **(_archived(evidence) if evidence else _unarchived(envelope)),
        "normalized_text": evidence.text if evidence and delivery.is_full else None,
    }


def _archived(evidence: Evidence) -> dict[str, Any]:
    message = evidence.message
    return {
        "subject": message.subject,
        "category": evidence.category,
        "headers": dict(evidence.headers),
        "labels": list(message.labels),
        "has_attachment": message.has_attachment,
        "size_bytes": message.size,
        "direction": "outbound" if "SENT" in message.labels else "inbound",
        "archive_key": message.key,
        "archive_shard": message.shard,
        "archive_sha256": message.sha256,
        "raw_by_ingest": evidence.brought_by_ingest,
        "received_at": message.date,
    }


def _unarchived(envelope: Envelope) -> dict[str, Any]:
    nothing: Mapping[str, Any] = dict.fromkeys(_OF_THE_ARCHIVE)
    subject = envelope.payload.normalized_text
    known = {"subject": subject, "direction": "inbound", "raw_by_ingest": False, "received_at": envelope.observed_at}
    return {**nothing, **known}


def count_duplicates(tx: Tx, request_ids: Iterable[str], now: datetime) -> None:
    repeated = [{"request": request_id} for request_id in sorted(request_ids)]
    if repeated:
        values = {"duplicates": ingest_inbox.c.duplicates + 1, "last_duplicate_at": now}
        here = ingest_inbox.c.request_id == bindparam("request")
        tx.execute(update(ingest_inbox).where(here).values(**values), repeated)


def _inbox_row(delivery: Delivery, caller: Caller, now: datetime) -> dict[str, Any]:
    return {
        "request_id": delivery.request_id,
        "message_id": delivery.message_id,
        "idempotency_key": delivery.key,
        "accepted_at": now,
        "accepted_from": caller.name,
        "duplicates": 0,
        "trace_context": delivery.envelope.control.trace_context,
    }
