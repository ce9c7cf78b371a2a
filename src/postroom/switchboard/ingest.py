"""Ingest, the only way in for mail: envelopes are checked, deduplicated, stored and queued in one transaction.

A delivery is identified by its key, else by its event, never by its content. A duplicate succeeds with the first
request id. One wrong envelope does not affect the others of its batch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, bindparam, delete, select, update

from postroom import kill_switch
from postroom.accounts.account import find_account, mailbox_id
from postroom.accounts.troubled import ArrivalLane, MessageTrouble, TroubleKind, record_trouble
from postroom.archive.backend import MailReader
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import ArchiveService
from postroom.contract.mail import IngestResult, RefusalDetail
from postroom.db import Database, Dialect, Prepared, Tx
from postroom.db.database import Statement, driver_sql, insert_for
from postroom.db.tables.mail import ingest_inbox, messages
from postroom.db.tables.restores import restore_items, restore_runs
from postroom.domain.actions import ItemState
from postroom.domain.envelope import Envelope, IngestionTier, parse_envelope
from postroom.domain.errors import BadInput, PostroomError, Retryable, error_to_wire
from postroom.domain.ids import new_id
from postroom.domain.jobs import CLASSIFY
from postroom.domain.roles import Caller
from postroom.mail.addresses import canonical_address
from postroom.mail.categories import Categories
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import BackfillSettings
from postroom.switchboard.archived_facts import ArchivedFacts, gather
from postroom.switchboard.backfill import undecided
from postroom.switchboard.backfill.admission import Admission, open_gate
from postroom.switchboard.contacts import note_mailboxes
from postroom.switchboard.definitions import CategoryBook
from postroom.switchboard.toolbox import require_own_mailbox
from postroom.telemetry.metrics import meter


class EnvelopeOutcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    REJECTED = "rejected"


_envelopes = meter.create_counter("postroom.switchboard.ingest.envelopes", description="envelopes, by their outcome")


def _labels(envelope: Envelope | None, outcome: EnvelopeOutcome) -> tuple[tuple[str, str], ...]:
    """What an envelope is counted by."""
    said = ("outcome", outcome.value)
    if envelope is None:
        return (said,)
    control = envelope.control
    lane = "live" if control.backfill_job_id is None else "backfill"
    tiers = ("policy_tier", control.policy_tier.value), ("ingestion_tier", control.ingestion_tier.value)
    return said, ("lane", lane), *tiers


@dataclass(frozen=True, slots=True)
class IngestAccepted:
    request_id: str
    duplicate: bool
    account_id: str | None = None
    """For new mail: the opaque account id that a connector's metrics carry instead of an address."""

    def reply(self) -> IngestResult:
        account = {} if self.account_id is None else {"account_id": self.account_id}
        return IngestResult(request_id=self.request_id, status="accepted", duplicate=self.duplicate, **account)


@dataclass(frozen=True, slots=True)
class IngestRefused:
    """Valid, but refused for now or for good: its backfill job admits no more."""

    admission: Admission

    def reply(self) -> IngestResult:
        said = self.admission
        return IngestResult(
            request_id=None,
            status="refused",
            duplicate=False,
            job_status=said.status,
            reason=said.verdict,
            message=said.reason,
            retry_after=said.retry_after,
        )


@dataclass(frozen=True, slots=True)
class IngestRejected:
    error: PostroomError

    def reply(self) -> IngestResult:
        error = RefusalDetail(**error_to_wire(self.error)["error"])
        return IngestResult(request_id=None, status="rejected", duplicate=False, error=error)


IngestOutcome = IngestAccepted | IngestRefused | IngestRejected


@dataclass(frozen=True, slots=True)
class IngestAnswer:
    outcomes: list[IngestOutcome]
    """For each envelope, in order."""
    backfill_enabled: bool | None = None
    """The kill switch, as the transaction that stored them found it; None: nothing was to be stored."""


def outcome_of(result: IngestOutcome) -> EnvelopeOutcome:
    match result:
        case IngestAccepted(duplicate=True):
            return EnvelopeOutcome.DUPLICATE
        case IngestAccepted():
            return EnvelopeOutcome.ACCEPTED
        case IngestRefused():
            return EnvelopeOutcome.REFUSED
        case IngestRejected():
            return EnvelopeOutcome.REJECTED


_PUT_BACK = (
    ItemState.APPENDING,
    ItemState.UNTRASHING,
    ItemState.APPENDED,
    ItemState.VERIFIED,
    ItemState.TRASHED,
)
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
    """A valid envelope on its way in."""

    number: int
    key: str
    envelope: Envelope
    evidence: ArchivedFacts | None
    message_id: str
    request_id: str

    @property
    def is_full(self) -> bool:
        return self.envelope.control.ingestion_tier is IngestionTier.FULL


# Made once: to build a statement takes longer than to run it.
_WANTED: BindParameter[Any] = bindparam("wanted", expanding=True)
_CONTACTS_AMONG = "SELECT address FROM contacts WHERE address"
# In this order: what is removed in between was in the first when that was read.
_REQUESTS_AMONG = (
    "SELECT idempotency_key, request_id FROM ingest_inbox WHERE idempotency_key",
    "SELECT idempotency_key, request_id FROM pruned_messages WHERE idempotency_key",
)
_INBOX_ENTRY = Prepared(ingest_inbox.insert())
_PUT_BACK_AMONG = (
    select(restore_runs.c.target_account_id, restore_items.c.sha256, restore_items.c.wire_sha256)
    .join(restore_runs, restore_runs.c.id == restore_items.c.run_id)
    .where(restore_items.c.sha256.in_(_WANTED) | restore_items.c.wire_sha256.in_(_WANTED))
    .where(restore_items.c.state.in_(_PUT_BACK))
)


@cache
def _insert_new(dialect: Dialect) -> Prepared:
    return Prepared(insert_for(dialect, messages).on_conflict_do_nothing(index_elements=["idempotency_key"]))


@cache
def _query_among(dialect: Dialect, query: str) -> str:
    is_among = "= ANY(:wanted)" if dialect is Dialect.POSTGRESQL else "IN (SELECT value FROM json_each(:wanted))"
    return driver_sql(dialect, f"{query} {is_among}")


def _among(tx: Tx, query: str, wanted: list[str]) -> Statement:
    """A query for the rows whose last column is one of these."""
    given = wanted if tx.dialect is Dialect.POSTGRESQL else json.dumps(wanted)
    return _query_among(tx.dialect, query), {"wanted": given}


def known_contacts(tx: Tx, senders: Iterable[str]) -> set[str]:
    """Those of the senders who are the owner's contacts, as given."""
    asked = {canonical_address(sender): sender for sender in senders}
    return {asked[address] for (address,) in tx.rows(*_among(tx, _CONTACTS_AMONG, sorted(asked)))}


def known_requests(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """The first request of each key that was ingested before, also of mail that retention has removed since."""
    wanted = sorted(set(keys))
    found: dict[str, str] = {}
    for rows in tx.batch(*(_among(tx, query, wanted) for query in _REQUESTS_AMONG)):
        found |= {str(key): str(request_id) for key, request_id in rows}
    return found


def insert_messages(tx: Tx, fresh: Sequence[Delivery], now: datetime) -> dict[str, dict[str, Any]]:
    """The rows that are stored now, by key, in the order of delivery. A missing one was ingested by another process
    between our read and our write."""
    if not fresh:
        return {}
    accounts = _accounts(tx, {delivery.envelope.source.endpoint_identity for delivery in fresh})
    rows = {d.key: _message(d, accounts[d.envelope.source.endpoint_identity], now) for d in fresh}
    # In the order of their keys, so that rivals with the same mail wait for each other and never in a circle.
    in_order = [rows[key] for key in sorted(rows)]
    if tx.run_many(_insert_new(tx.dialect), in_order) == len(rows):  # nearly always, and faster than asking which
        return rows
    mine = messages.c.id.in_([row["id"] for row in in_order])
    inserted = {key for (key,) in tx.execute(select(messages.c.idempotency_key).where(mine))}
    return {key: row for key, row in rows.items() if key in inserted}


def insert_inbox_entries(tx: Tx, deliveries: Sequence[Delivery], caller: Caller, now: datetime) -> None:
    """The inbox rows of messages that are stored."""
    if deliveries:
        tx.run_many(_INBOX_ENTRY, [_inbox_row(delivery, caller, now) for delivery in deliveries])


def restored_among(tx: Tx, rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids of live messages that the owner had put back from the archive: they are not new, so nothing judges them
    again. The journal of a restore has a message before the mailbox does, also as it is with other line ends."""
    live = [row for row in rows if row["backfill_job_id"] is None and row["archive_sha256"] is not None]
    if not live:
        return set()
    hashes = sorted({row["archive_sha256"] for row in live})
    put_back = {
        (account_id, each) for account_id, *both in tx.execute(_PUT_BACK_AMONG, {"wanted": hashes}) for each in both
    }
    return {row["id"] for row in live if (row["account_id"], row["archive_sha256"]) in put_back}


def delete_messages(tx: Tx, ids: Sequence[str]) -> None:
    """Remove messages that the gate refused: only the insert showed that they were new."""
    if ids:
        tx.execute(delete(messages).where(messages.c.id.in_(ids)))


def _accounts(tx: Tx, identities: set[str]) -> dict[str, str | None]:
    """The account of each mailbox; None for a mailbox that is no account here."""
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
    source, event, control = envelope.source, envelope.event, envelope.control
    attachments = evidence.attachments if evidence and delivery.is_full else envelope.payload.attachments
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
        "attachments": [each.model_dump(exclude_none=True) for each in attachments],
        "ingestion_tier": control.ingestion_tier,
        "policy_tier": control.policy_tier,
        "assignment_rule": control.assignment_rule,
        "backfill_job_id": control.backfill_job_id,
        "observed_at": envelope.observed_at,
        "accepted_at": now,
        **(_archived(evidence) if evidence else _unarchived(envelope)),
        "normalized_text": evidence.text if evidence and delivery.is_full else None,
    }


def _archived(evidence: ArchivedFacts) -> dict[str, Any]:
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


class Ingest:
    def __init__(
        self,
        database: Database,
        archive: ArchiveService,
        queue: JobQueue,
        backfill: BackfillSettings,
        book: CategoryBook | None = None,
    ) -> None:
        self._database = database
        self._archive = archive
        self._queue = queue
        self._backfill = backfill
        self._book = book or CategoryBook()

    async def take(self, given: Sequence[object], caller: Caller) -> IngestAnswer:
        results: dict[int, IngestOutcome] = {}
        envelopes = [_checked(number, value, caller, results) for number, value in enumerate(given)]
        contacts, categories = await self._needed_to_judge(envelopes)
        deliveries = []
        for number, found in enumerate(await gather(self._archive, envelopes, categories, contacts or ())):
            envelope = envelopes[number]
            if isinstance(found, BadInput):
                results[number] = IngestRejected(found)
            elif envelope is not None:
                deliveries.append(Delivery(number, envelope.dedupe_key, envelope, found, new_id(), new_id()))
        stored, backfill_enabled = await self._store(deliveries, contacts, caller)
        results |= stored
        new = {d.message_id: d.evidence.message for d in deliveries if d.evidence and _is_new(results[d.number])}
        await self._follow_changes(new)
        ordered = [results[number] for number in range(len(given))]
        _count(envelopes, ordered)
        return IngestAnswer(ordered, backfill_enabled)

    async def _needed_to_judge(self, envelopes: Sequence[Envelope | None]) -> tuple[set[str] | None, Categories]:
        """Those of the senders whom the owner knows, and the categories. Metadata alone is put into no category: for
        that neither is read (None)."""
        given = [envelope for envelope in envelopes if envelope is not None]
        if all(envelope.payload.raw is None for envelope in given):
            return None, self._book.defined
        senders = {envelope.sender.identity for envelope in given}
        return await self._database.read(lambda tx: (known_contacts(tx, senders), self._book.in_force(tx)))

    async def _store(
        self, deliveries: Sequence[Delivery], contacts: Set[str] | None, caller: Caller
    ) -> tuple[dict[int, IngestOutcome], bool | None]:
        """With the kill switch. `contacts` are the senders whom the owner knows (None: not looked up yet); they become
        contacts of the mailbox that they wrote to."""
        if not deliveries:
            return {}, None
        now = self._queue.clock.now()

        def store(tx: Tx) -> tuple[dict[int, IngestOutcome], bool]:
            note_mailboxes(tx, _met(tx, deliveries, contacts))
            results = self._within(tx, deliveries, caller, now)
            return results, kill_switch.state(tx, self._backfill).in_force

        return await self._database.write(store)

    async def _follow_changes(self, new: Mapping[str, ArchivedMessage]) -> None:
        """Record what changed at the source between the reading of the archive and the storing of the rows: those who
        recorded it, first in the archive, found no row here."""
        keys: dict[str, list[str]] = defaultdict(list)
        for message in new.values():
            keys[message.account].append(message.key)

        def read(reader: MailReader) -> dict[tuple[str, str], ArchivedMessage]:
            found = {account: reader.find_many(account, wanted) for account, wanted in keys.items()}
            return {(account, key): message for account, mine in found.items() for key, message in mine.items()}

        current = await self._archive.read(read) if keys else {}
        changed = {
            message_id: (message, now)
            for message_id, message in new.items()
            if (now := current.get((message.account, message.key))) is not None and now != message
        }
        if changed:
            await self._database.write(lambda tx: _correct(tx, changed))

    def _within(
        self, tx: Tx, deliveries: Sequence[Delivery], caller: Caller, now: datetime
    ) -> dict[int, IngestOutcome]:
        known = known_requests(tx, [delivery.key for delivery in deliveries])
        fresh: dict[str, Delivery] = {}
        for delivery in deliveries:
            if delivery.key not in known:
                fresh.setdefault(delivery.key, delivery)
        rows = insert_messages(tx, list(fresh.values()), now)
        if overtaken := [key for key in fresh if key not in rows]:
            known |= _by_others(tx, overtaken)
        kept_out = self._kept_out(tx, [fresh[key] for key in rows], now)
        delete_messages(tx, [rows.pop(key)["id"] for key in kept_out])
        self._enter(tx, [(fresh[key], row) for key, row in rows.items()], caller, now)
        _record_unread(tx, [(fresh[key], row) for key, row in rows.items()], now)
        results: dict[int, IngestOutcome] = {}
        for delivery in deliveries:
            if delivery.key in rows:
                first = fresh[delivery.key]
                account_id = rows[delivery.key]["account_id"]
                results[delivery.number] = IngestAccepted(first.request_id, first is not delivery, account_id)
            elif delivery.key in kept_out:
                results[delivery.number] = kept_out[delivery.key]
            else:
                results[delivery.number] = IngestAccepted(known[delivery.key], duplicate=True)
        repeated = [r.request_id for r in results.values() if isinstance(r, IngestAccepted) and r.duplicate]
        count_duplicates(tx, repeated, now)
        return results

    def _kept_out(self, tx: Tx, fresh: Sequence[Delivery], now: datetime) -> dict[str, IngestOutcome]:
        """What the gates of backfill jobs refuse, by key. Live mail has no gate."""
        by_job: dict[tuple[str, str], list[Delivery]] = {}
        for delivery in fresh:
            if (job_id := delivery.envelope.control.backfill_job_id) is not None:
                by_job.setdefault((job_id, delivery.envelope.source.endpoint_identity), []).append(delivery)
        refused: dict[str, IngestOutcome] = {}
        for (job_id, identity), mine in sorted(by_job.items()):  # in order, so that rivals never wait in a circle
            try:
                gate = open_gate(tx, self._backfill, job_id, identity, now)
            except BadInput as error:
                wrong = IngestRejected(type(error)("control.backfill_job_id", error.problem))
                refused |= {delivery.key: wrong for delivery in mine}
                continue
            for delivery in mine:
                admission = gate.admit()
                if not admission.is_admitted:
                    refused[delivery.key] = IngestRefused(admission)
        return refused

    def _enter(
        self, tx: Tx, taken: Sequence[tuple[Delivery, Mapping[str, Any]]], caller: Caller, now: datetime
    ) -> None:
        insert_inbox_entries(tx, [delivery for delivery, _ in taken], caller, now)
        if not taken:
            return
        restored = restored_among(tx, [row for _, row in taken])
        to_judge = [row for _, row in taken if row["id"] not in restored]
        queued = self._queue.add(tx, *map(_classify, to_judge)) if to_judge else []
        of_jobs = [
            (row["id"], row["backfill_job_id"], job.job_id)
            for row, job in zip(to_judge, queued, strict=True)
            if row["backfill_job_id"] is not None
        ]
        undecided.enter(tx, of_jobs, now)


def _met(tx: Tx, deliveries: Sequence[Delivery], contacts: Set[str] | None) -> set[tuple[str, str]]:
    """Each contact that wrote, with the mailbox."""
    if contacts is None:
        contacts = known_contacts(tx, {delivery.envelope.sender.identity for delivery in deliveries})
    return {
        (delivery.envelope.source.endpoint_identity, canonical_address(delivery.envelope.sender.identity))
        for delivery in deliveries
        if delivery.envelope.sender.identity in contacts
    }


def _is_new(outcome: IngestOutcome) -> bool:
    return isinstance(outcome, IngestAccepted) and not outcome.duplicate


def _correct(tx: Tx, changed: Mapping[str, tuple[ArchivedMessage, ArchivedMessage]]) -> None:
    """By id, each message as its row has it and as it is. What was recorded in the row since is newer, and stays."""
    for message_id, (was, now) in sorted(changed.items()):
        mine = messages.c.id == message_id
        labels = tx.execute(tx.locking(select(messages.c.labels).where(mine))).scalar_one_or_none()
        if labels == list(was.labels):
            tx.execute(update(messages).where(mine).values(labels=list(now.labels)))
        if now.deleted_at_source is not None:
            gone = mine & messages.c.deleted_at_source.is_(None)
            tx.execute(update(messages).where(gone).values(deleted_at_source=now.deleted_at_source))


def _record_unread(tx: Tx, taken: Sequence[tuple[Delivery, Mapping[str, Any]]], now: datetime) -> None:
    for delivery, row in taken:
        evidence = delivery.evidence
        if evidence is not None and evidence.trouble:
            lane = ArrivalLane.LIVE if row["backfill_job_id"] is None else ArrivalLane.BACKFILL
            trouble = MessageTrouble(evidence.message.key, TroubleKind.READ, evidence.trouble)
            with suppress(BadInput):  # an identity that is no address
                owner = row["account_id"] or mailbox_id(tx, delivery.envelope.source.endpoint_identity, now)
                record_trouble(tx, owner, lane, [trouble], now)


def _checked(number: int, value: object, caller: Caller, results: dict[int, IngestOutcome]) -> Envelope | None:
    try:
        envelope = parse_envelope(value)
        require_own_mailbox(envelope.source.endpoint_identity, caller)
        _require_own_key(envelope, caller)
    except PostroomError as error:
        results[number] = IngestRejected(error)
        return None
    return envelope


def _require_own_key(envelope: Envelope, caller: Caller) -> None:
    """A token bound to one mailbox must not use the keys of another, whose mail would then count as a duplicate."""
    beginning = f"{envelope.source.provider}:{envelope.source.endpoint_identity}:"
    if caller.endpoint_identity is not None and not envelope.dedupe_key.startswith(beginning):
        raise BadInput("control.idempotency_key", f"must begin with {beginning} for this token")


def _by_others(tx: Tx, keys: Sequence[str]) -> dict[str, str]:
    """What another process ingested between our read and our write; it has committed, or our write would still wait."""
    found = known_requests(tx, keys)
    if len(found) != len(keys):
        raise Retryable("Mail was brought and removed again at the same moment; try again.")
    return found


def _classify(row: Mapping[str, Any]) -> NewJob:
    """Mail of a backfill job keeps its tier, in the queue that gets the slots live mail leaves idle. Mail without text
    is decided by rules only."""
    owner = row["account_id"] or row["endpoint_identity"]
    return NewJob(
        CLASSIFY.name,
        {"account_id": row["account_id"], "message_id": row["id"]},
        QueueName.LIVE if row["backfill_job_id"] is None else QueueName.HISTORY,
        row["policy_tier"],
        key=f"classify:{owner}:{row['id']}",
    )


def _count(envelopes: Sequence[Envelope | None], results: Sequence[IngestOutcome]) -> None:
    """Those that are counted alike together: in a batch these are nearly all."""
    for labels, count in Counter(map(_labels, envelopes, map(outcome_of, results))).items():
        _envelopes.add(count, dict(labels))
