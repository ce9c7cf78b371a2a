"""The one way in: envelopes are checked, told apart from what is here already, stored and queued, in one transaction.

A delivery is known by its key, else by its event, and never by its content. A duplicate is a success with the first
id. An envelope that is wrong is refused by itself, and nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from sqlalchemy import bindparam, select, update

from postroom.accounts.store import find_account
from postroom.archive.service import ArchiveService
from postroom.db import Database, Tx
from postroom.db.tables.mail import ingest_inbox, messages
from postroom.db.upsert import insert
from postroom.domain.envelope import Envelope, IngestionTier, parse_envelope
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.domain.money import Micros
from postroom.domain.refusals import to_wire
from postroom.domain.roles import Caller
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.admission import Admission, open_gate
from postroom.switchboard.evidence import Evidence, gather
from postroom.switchboard.instruments import Outcome, count_envelopes
from postroom.switchboard.jobs import CLASSIFY
from postroom.switchboard.toolbox import require_own_mailbox

_RUNS = 5


class Meter(Protocol):
    """Knows what asking the model about a text can cost at most; None where nobody knows, and then nothing is spent."""

    def most(self, text: str) -> Micros | None: ...


class _NoMeter:
    def most(self, text: str) -> Micros | None:
        return None


NO_METER = _NoMeter()
"""Where no model is configured: backfill brings metadata only."""


@dataclass(frozen=True, slots=True)
class Accepted:
    request_id: str
    duplicate: bool

    def answer(self) -> dict[str, Any]:
        return {"request_id": self.request_id, "status": "accepted", "duplicate": self.duplicate}


@dataclass(frozen=True, slots=True)
class Refused:
    """Right, but not now: the job that brings it may bring no more, for a while or at all."""

    admission: Admission

    def answer(self) -> dict[str, Any]:
        said = self.admission
        why = {"reason": said.verdict, "message": said.reason, "retry_after": said.retry_after}
        return {"request_id": None, "status": "refused", "duplicate": False, "job_status": said.status, **why}


@dataclass(frozen=True, slots=True)
class Rejected:
    error: PostroomError

    def answer(self) -> dict[str, Any]:
        return {"request_id": None, "status": "rejected", "duplicate": False, **to_wire(self.error)}


Result = Accepted | Refused | Rejected


@dataclass(frozen=True, slots=True)
class _Delivery:
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


class _Overtaken(Exception):
    """Another process brought one of these in between our look and our write."""


class Ingest:
    def __init__(
        self, database: Database, archive: ArchiveService, queue: JobQueue, backfill: BackfillSettings, meter: Meter
    ) -> None:
        self._database = database
        self._archive = archive
        self._queue = queue
        self._backfill = backfill
        self._meter = meter

    async def take(self, given: Sequence[object], caller: Caller) -> list[Result]:
        """A result for each, in order."""
        results: dict[int, Result] = {}
        envelopes = [_checked(number, value, caller, results) for number, value in enumerate(given)]
        deliveries = []
        for number, found in enumerate(await gather(self._archive, envelopes)):
            envelope = envelopes[number]
            if isinstance(found, BadInput):
                results[number] = Rejected(found)
            elif envelope is not None:
                deliveries.append(_Delivery(number, envelope.dedupe_key, envelope, found, new_id(), new_id()))
        results |= await self._store(deliveries, caller)
        ordered = [results[number] for number in range(len(given))]
        _count(envelopes, ordered)
        return ordered

    async def _store(self, deliveries: Sequence[_Delivery], caller: Caller) -> dict[int, Result]:
        if not deliveries:
            return {}
        now = self._queue.clock.now()
        for _ in range(_RUNS):
            try:
                return await self._database.write(lambda tx: self._within(tx, deliveries, caller, now))
            except _Overtaken:
                continue
        raise Retryable("Others bring the same mail at the same time; try again.")

    def _within(self, tx: Tx, deliveries: Sequence[_Delivery], caller: Caller, now: datetime) -> dict[int, Result]:
        known = _known(tx, [delivery.key for delivery in deliveries])
        fresh: dict[str, _Delivery] = {}
        for delivery in deliveries:
            if delivery.key not in known:
                fresh.setdefault(delivery.key, delivery)
        kept_out = self._kept_out(tx, list(fresh.values()), now)
        self._insert(tx, [delivery for delivery in fresh.values() if delivery.key not in kept_out], caller, now)
        results: dict[int, Result] = {}
        for delivery in deliveries:
            first = fresh.get(delivery.key)
            if first is None:
                results[delivery.number] = Accepted(known[delivery.key], duplicate=True)
            else:
                accepted = Accepted(first.request_id, duplicate=first is not delivery)
                results[delivery.number] = kept_out.get(delivery.key, accepted)
        _count_duplicates(tx, results.values(), now)
        return results

    def _kept_out(self, tx: Tx, fresh: Sequence[_Delivery], now: datetime) -> dict[str, Result]:
        """What the gates of backfill jobs refuse, by key. Live mail passes by them."""
        by_job: dict[tuple[str, str], list[_Delivery]] = {}
        for delivery in fresh:
            if (job_id := delivery.envelope.control.backfill_job_id) is not None:
                by_job.setdefault((job_id, delivery.envelope.source.endpoint_identity), []).append(delivery)
        refused: dict[str, Result] = {}
        for (job_id, identity), mine in sorted(by_job.items()):  # in order, so that rivals never wait in a circle
            try:
                gate = open_gate(tx, self._backfill, job_id, identity, now)
            except BadInput as error:
                wrong = Rejected(type(error)("control.backfill_job_id", error.problem))
                refused |= {delivery.key: wrong for delivery in mine}
                continue
            for delivery in mine:
                admission = gate.admit(delivery.message_id, self._most(delivery))
                if not admission.is_admitted:
                    refused[delivery.key] = Refused(admission)
        return refused

    def _most(self, delivery: _Delivery) -> Micros | None:
        if not delivery.is_full or delivery.evidence is None:
            return Micros(0)
        return self._meter.most(delivery.evidence.text)

    def _insert(self, tx: Tx, admitted: Sequence[_Delivery], caller: Caller, now: datetime) -> None:
        if not admitted:
            return
        accounts = _accounts(tx, {delivery.envelope.source.endpoint_identity for delivery in admitted})
        rows = [_message(delivery, accounts[delivery.envelope.source.endpoint_identity], now) for delivery in admitted]
        # In the order of their keys, so that rivals with the same mail wait for each other and never in a circle.
        in_order = sorted(rows, key=lambda row: str(row["idempotency_key"]))
        statement = insert(tx, messages).on_conflict_do_nothing(index_elements=["idempotency_key"])
        if len(tx.execute(statement.returning(messages.c.id), in_order).all()) != len(rows):
            raise _Overtaken
        tx.execute(ingest_inbox.insert(), [_inbox(delivery, caller, now) for delivery in admitted])
        jobs = [_classify(row) for row in rows if row["ingestion_tier"] == IngestionTier.FULL]
        if jobs:
            self._queue.add(tx, *jobs)


def _checked(number: int, value: object, caller: Caller, results: dict[int, Result]) -> Envelope | None:
    try:
        envelope = parse_envelope(value)
        require_own_mailbox(envelope.source.endpoint_identity, caller)
        _require_own_key(envelope, caller)
    except PostroomError as error:
        results[number] = Rejected(error)
        return None
    return envelope


def _require_own_key(envelope: Envelope, caller: Caller) -> None:
    """A token made for one mailbox must not take the keys of another, whose mail would then pass for a duplicate."""
    beginning = f"{envelope.source.provider}:{envelope.source.endpoint_identity}:"
    if caller.endpoint_identity is not None and not envelope.dedupe_key.startswith(beginning):
        raise BadInput("control.idempotency_key", f"must begin with {beginning} for this token")


def _known(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """The first request of each key that was taken in before."""
    rows = tx.execute(
        select(ingest_inbox.c.idempotency_key, ingest_inbox.c.request_id).where(
            ingest_inbox.c.idempotency_key.in_(sorted(set(keys)))
        )
    )
    return {key: request_id for key, request_id in rows}


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


def _message(delivery: _Delivery, account_id: str | None, now: datetime) -> dict[str, Any]:
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
        "headers": dict(evidence.headers),
        "labels": list(message.labels),
        "direction": "outbound" if "SENT" in message.labels else "inbound",
        "archive_key": message.key,
        "archive_shard": message.shard,
        "archive_sha256": message.sha256,
        "raw_by_ingest": evidence.brought_by_ingest,
        "received_at": message.date,
    }


def _unarchived(envelope: Envelope) -> dict[str, Any]:
    nothing: Mapping[str, Any] = dict.fromkeys(("headers", "labels", "archive_key", "archive_shard", "archive_sha256"))
    subject = envelope.payload.normalized_text
    known = {"subject": subject, "direction": "inbound", "raw_by_ingest": False, "received_at": envelope.observed_at}
    return {**nothing, **known}


def _inbox(delivery: _Delivery, caller: Caller, now: datetime) -> dict[str, Any]:
    return {
        "request_id": delivery.request_id,
        "message_id": delivery.message_id,
        "idempotency_key": delivery.key,
        "accepted_at": now,
        "accepted_from": caller.name,
        "duplicates": 0,
        "trace_context": delivery.envelope.control.trace_context,
    }


def _classify(row: Mapping[str, Any]) -> NewJob:
    """Mail of a backfill job keeps its tier, in the queue that live mail leaves the slots of."""
    owner = row["account_id"] or row["endpoint_identity"]
    return NewJob(
        CLASSIFY.name,
        {"account_id": row["account_id"], "message_id": row["id"]},
        QueueName.LIVE if row["backfill_job_id"] is None else QueueName.HISTORY,
        row["policy_tier"],
        key=f"classify:{owner}:{row['id']}",
    )


def _count_duplicates(tx: Tx, results: Any, now: datetime) -> None:
    repeated = [{"request": r.request_id} for r in results if isinstance(r, Accepted) and r.duplicate]
    if repeated:
        values = {"duplicates": ingest_inbox.c.duplicates + 1, "last_duplicate_at": now}
        here = ingest_inbox.c.request_id == bindparam("request")
        tx.execute(update(ingest_inbox).where(here).values(**values), sorted(repeated, key=lambda r: r["request"]))


def _count(envelopes: Sequence[Envelope | None], results: Sequence[Result]) -> None:
    for envelope, result in zip(envelopes, results, strict=True):
        count_envelopes(envelope, _outcome(result))


def _outcome(result: Result) -> Outcome:
    match result:
        case Accepted(duplicate=True):
            return Outcome.DUPLICATE
        case Accepted():
            return Outcome.ACCEPTED
        case Refused():
            return Outcome.REFUSED
        case Rejected():
            return Outcome.REJECTED
