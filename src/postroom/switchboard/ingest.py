"""The one way in: envelopes are checked, told apart from what is here already, stored and queued, in one transaction.

A delivery is known by its key, else by its event, and never by its content. A duplicate is a success with the first
id. An envelope that is wrong is refused by itself, and nothing of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any, Protocol

from postroom.accounts.troubled import Lane, Trouble, TroubleKind, record_trouble
from postroom.archive.service import ArchiveService
from postroom.db import Database, Tx
from postroom.domain.envelope import Envelope, parse_envelope
from postroom.domain.errors import BadInput, PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.domain.jobs import CLASSIFY
from postroom.domain.money import Micros
from postroom.domain.roles import Caller
from postroom.mail.addresses import canonical_address
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.admission import open_gate
from postroom.switchboard.contacts import note_mailboxes
from postroom.switchboard.evidence import gather
from postroom.switchboard.inbox import (
    Delivery,
    count_duplicates,
    enter,
    insert_messages,
    known_contacts,
    known_requests,
    take_back,
)
from postroom.switchboard.ingest_results import Accepted, Refused, Rejected, Result, outcome_of
from postroom.switchboard.instruments import count_envelopes
from postroom.switchboard.toolbox import require_own_mailbox


class Meter(Protocol):
    """Knows the most that one question about a text can cost; None where nobody knows, and then nothing is spent. What
    is asked once more sets the rest aside itself."""

    def most(self, text: str) -> Micros | None: ...


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
        senders = {envelope.sender.identity for envelope in envelopes if envelope is not None}
        contacts = await self._database.read(lambda tx: known_contacts(tx, senders)) if senders else set()
        deliveries = []
        for number, found in enumerate(await gather(self._archive, envelopes, contacts)):
            envelope = envelopes[number]
            if isinstance(found, BadInput):
                results[number] = Rejected(found)
            elif envelope is not None:
                deliveries.append(Delivery(number, envelope.dedupe_key, envelope, found, new_id(), new_id()))
        results |= await self._store(deliveries, contacts, caller)
        ordered = [results[number] for number in range(len(given))]
        _count(envelopes, ordered)
        return ordered

    async def _store(self, deliveries: Sequence[Delivery], contacts: Set[str], caller: Caller) -> dict[int, Result]:
        """`contacts` are the senders whom the owner knows: from now on, contacts of the mailbox that they wrote to."""
        if not deliveries:
            return {}
        now = self._queue.clock.now()
        met = {
            (delivery.envelope.source.endpoint_identity, canonical_address(delivery.envelope.sender.identity))
            for delivery in deliveries
            if delivery.envelope.sender.identity in contacts
        }

        def store(tx: Tx) -> dict[int, Result]:
            note_mailboxes(tx, met)
            return self._within(tx, deliveries, caller, now)

        return await self._database.write(store)

    def _within(self, tx: Tx, deliveries: Sequence[Delivery], caller: Caller, now: datetime) -> dict[int, Result]:
        known = known_requests(tx, [delivery.key for delivery in deliveries])
        fresh: dict[str, Delivery] = {}
        for delivery in deliveries:
            if delivery.key not in known:
                fresh.setdefault(delivery.key, delivery)
        rows = insert_messages(tx, list(fresh.values()), now)
        if overtaken := [key for key in fresh if key not in rows]:
            known |= _by_others(tx, overtaken)
        kept_out = self._kept_out(tx, [fresh[key] for key in rows], now)
        take_back(tx, [rows.pop(key)["id"] for key in kept_out])
        self._enter(tx, [(fresh[key], row) for key, row in rows.items()], caller, now)
        _record_unread(tx, [(fresh[key], row) for key, row in rows.items()], now)
        results: dict[int, Result] = {}
        for delivery in deliveries:
            if delivery.key in rows:
                first = fresh[delivery.key]
                account_id = rows[delivery.key]["account_id"]
                results[delivery.number] = Accepted(first.request_id, first is not delivery, account_id)
            elif delivery.key in kept_out:
                results[delivery.number] = kept_out[delivery.key]
            else:
                results[delivery.number] = Accepted(known[delivery.key], duplicate=True)
        repeated = [r.request_id for r in results.values() if isinstance(r, Accepted) and r.duplicate]
        count_duplicates(tx, repeated, now)
        return results

    def _kept_out(self, tx: Tx, fresh: Sequence[Delivery], now: datetime) -> dict[str, Result]:
        """What the gates of backfill jobs refuse, by key. Live mail passes by them."""
        by_job: dict[tuple[str, str], list[Delivery]] = {}
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

    def _most(self, delivery: Delivery) -> Micros | None:
        if not delivery.is_full:
            return Micros(0)
        return self._meter.most(delivery.evidence.text if delivery.evidence else "")

    def _enter(
        self, tx: Tx, taken: Sequence[tuple[Delivery, Mapping[str, Any]]], caller: Caller, now: datetime
    ) -> None:
        enter(tx, [delivery for delivery, _ in taken], caller, now)
        if jobs := [_classify(row) for _, row in taken]:
            self._queue.add(tx, *jobs)


def _record_unread(tx: Tx, taken: Sequence[tuple[Delivery, Mapping[str, Any]]], now: datetime) -> None:
    for delivery, row in taken:
        evidence = delivery.evidence
        if evidence is not None and evidence.trouble and row["account_id"]:
            lane = Lane.LIVE if row["backfill_job_id"] is None else Lane.BACKFILL
            trouble = Trouble(evidence.message.key, TroubleKind.READ, evidence.trouble)
            record_trouble(tx, row["account_id"], lane, [trouble], now)


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


def _by_others(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """What another process brought between our look and our write; it has committed, or our write would still wait."""
    found = known_requests(tx, keys)
    if len(found) != len(keys):
        raise Retryable("Mail was brought and removed again at the same moment; try again.")
    return found


def _classify(row: Mapping[str, Any]) -> NewJob:
    """Mail of a backfill job keeps its tier, in the queue that live mail leaves the slots of. Of mail without its text,
    rules alone decide."""
    owner = row["account_id"] or row["endpoint_identity"]
    return NewJob(
        CLASSIFY,
        {"account_id": row["account_id"], "message_id": row["id"]},
        QueueName.LIVE if row["backfill_job_id"] is None else QueueName.HISTORY,
        row["policy_tier"],
        key=f"classify:{owner}:{row['id']}",
    )


def _count(envelopes: Sequence[Envelope | None], results: Sequence[Result]) -> None:
    for envelope, result in zip(envelopes, results, strict=True):
        count_envelopes(envelope, outcome_of(result))
