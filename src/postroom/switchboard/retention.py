"""How long mail stays in the control database, by its tier, its sender's domain and its category (BF-21).

Backfilled and live mail alike, counted from when the mailbox received it. Rows of the control database are pruned;
raw bytes stay in the archive, which has no way to let go of a message yet. Spend and audit outlive the mail. What was
reserved for a message that is not judged yet is released when it goes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import delete, func, select, tuple_, update

from postroom import audit
from postroom.archive.backend import ArchiveBackend
from postroom.archive.layout import account_name
from postroom.audit import SYSTEM
from postroom.db import Database, Tx
from postroom.db.tables.mail import backfill_reservations as reservations
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import model_calls
from postroom.domain.clock import Clock
from postroom.domain.envelope import IngestionTier
from postroom.domain.errors import BadInput
from postroom.domain.money import Micros
from postroom.queue import Handler, JobContext
from postroom.settings import RetentionSettings
from postroom.switchboard.backfill.admission import JobSpending, message_of
from postroom.switchboard.backfill.ledger import RESERVED

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Kept:
    """What the rule looks at in a message."""

    id: str
    tier: IngestionTier
    sender: str
    category: str | None
    received_at: datetime
    accepted_at: datetime
    raw_by_ingest: bool
    mailbox: str
    source_id: str
    backfill_job_id: str | None


Protected = Callable[[Sequence[Kept]], set[str]]
"""The ids of messages that must be kept whatever their age. Reads the disk, so call it in a thread."""


def nothing_protected(some: Sequence[Kept]) -> set[str]:
    return set()


def certified(archive: ArchiveBackend) -> Protected:
    """Messages with a removal certificate: the row here may be all that is left of them."""

    def among(some: Sequence[Kept]) -> set[str]:
        found: set[str] = set()
        for mailbox in {mail.mailbox for mail in some if _has_archive(mail.mailbox)}:
            mine = {mail.source_id: mail.id for mail in some if mail.mailbox == mailbox}
            found |= {mine[source_id] for source_id in archive.ledger(mailbox).certified(list(mine))}
        return found

    return among


def _has_archive(mailbox: str) -> bool:
    try:
        account_name(mailbox)
    except BadInput:
        return False
    return True


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Pure: which messages are past their time. 0 years is for ever."""

    metadata: timedelta
    grace: timedelta
    years: int
    by_category: Mapping[str, int]
    by_domain: Mapping[str, int]

    @classmethod
    def from_settings(cls, settings: RetentionSettings) -> RetentionRule:
        domains = {domain.lower(): years for domain, years in settings.domain_years.items()}
        metadata, grace = timedelta(days=settings.metadata_days), timedelta(days=settings.grace_days)
        return cls(metadata, grace, settings.years, settings.category_years, domains)

    def is_over(self, mail: Kept, now: datetime) -> bool:
        if mail.accepted_at > now - self.grace:
            return False
        if mail.tier is IngestionTier.METADATA:
            return mail.received_at < now - self.metadata
        years = self.years_of(mail)
        return years > 0 and mail.received_at < years_before(now, years)

    def years_of(self, mail: Kept) -> int:
        """The closest match of the sender's domain decides, then the category, then the default."""
        for domain in _domain_and_parents(mail.sender):
            if domain in self.by_domain:
                return self.by_domain[domain]
        return self.by_category.get(mail.category or "", self.years)

    def horizon(self, tier: IngestionTier, now: datetime) -> datetime | None:
        """Nothing received since then can be past its time; None if nothing of this tier ever is."""
        if tier is IngestionTier.METADATA:
            return now - self.metadata
        limits = [years for years in (self.years, *self.by_category.values(), *self.by_domain.values()) if years > 0]
        return years_before(now, min(limits)) if limits else None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or in a dry run would be."""

    dry_run: bool
    metadata: int = 0
    full: int = 0
    by_category: Mapping[str, int] = field(default_factory=dict)
    protected: int = 0
    raw_kept: int = 0
    """Of the deleted messages, those whose bytes came with ingest; the archive still has them."""

    @property
    def total(self) -> int:
        return self.metadata + self.full


def years_before(moment: datetime, years: int) -> datetime:
    """The same day so many years earlier; the 29th of February becomes the 28th."""
    year = max(1, moment.year - years)
    try:
        return moment.replace(year=year)
    except ValueError:
        return moment.replace(year=year, day=28)


async def prune(
    database: Database,
    rule: RetentionRule,
    clock: Clock,
    *,
    protected: Protected = nothing_protected,
    spending: JobSpending | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove what is past its time, in short transactions."""
    now, counts, categories = clock.now(), Counter[str](), Counter[str]()
    for tier in IngestionTier:
        horizon, after = rule.horizon(tier, now), None
        while horizon is not None:
            page = await database.read(partial(_page, tier=tier, horizon=horizon, after=after))
            if not page:
                break
            after = page[-1]
            over = [mail for mail in page if rule.is_over(mail, now)]
            must_stay = await asyncio.to_thread(protected, over) if over else set()
            gone = [mail for mail in over if mail.id not in must_stay]
            if gone and not dry_run:
                await database.write(partial(_remove, gone=gone, spending=spending))
            counts["protected"] += len(over) - len(gone)
            counts[tier] += len(gone)
            counts["raw_kept"] += sum(mail.raw_by_ingest for mail in gone)
            categories.update(mail.category or "none" for mail in gone)
    pruned = Pruned(
        dry_run, counts["metadata"], counts["full"], dict(categories), counts["protected"], counts["raw_kept"]
    )
    if pruned.total and not dry_run:
        await database.write(lambda tx: _note(tx, pruned, now))
    return pruned


Forget = Callable[[datetime], Awaitable[int]]
"""Deletes what is stored apart from messages and is past its time; returns how much that was."""


def prune_handler(
    rule: RetentionRule,
    protected: Protected = nothing_protected,
    spending: JobSpending | None = None,
    forget_prompts: Forget | None = None,
) -> Handler:
    """The scheduled job. With `{"dry_run": true}` as its payload it only reports."""

    async def handle(context: JobContext) -> dict[str, object]:
        dry_run = context.job.payload.get("dry_run") is True
        queue = context.queue
        pruned = await prune(queue.database, rule, queue.clock, protected=protected, spending=spending, dry_run=dry_run)
        forgotten = await forget_prompts(queue.clock.now()) if forget_prompts is not None and not dry_run else 0
        return describe_pruned(pruned) | {"prompts": forgotten}

    return handle


def _page(tx: Tx, tier: IngestionTier, horizon: datetime, after: Kept | None) -> list[Kept]:
    query = (
        select(messages)
        .with_only_columns(*(messages.c[name] for name in _COLUMNS))
        .where(messages.c.ingestion_tier == tier, messages.c.received_at < horizon)
        .order_by(messages.c.received_at, messages.c.id)
        .limit(_AT_ONCE)
    )
    if after is not None:
        place = tuple_(messages.c.received_at, messages.c.id)
        here = messages.c.received_at, messages.c.id
        query = query.where(place > tuple_(after.received_at, after.id, types=[column.type for column in here]))
    return [Kept(row.id, tier, row.sender_identity, *row[2:]) for row in tx.execute(query)]


_COLUMNS = (
    "id",
    "sender_identity",
    "category",
    "received_at",
    "accepted_at",
    "raw_by_ingest",
    "endpoint_identity",
    "external_event_id",
    "backfill_job_id",
)


def _remove(tx: Tx, gone: Sequence[Kept], spending: JobSpending | None) -> None:
    """Messages with their inbox rows and decisions; the cost of their model calls stays, without the text."""
    ids = [mail.id for mail in gone]
    if spending is not None:
        for job_id, message_id in _open_money(tx, gone):
            spending.settle(tx, job_id, message_id, _spent_on(tx, message_id))
    tx.execute(update(model_calls).where(model_calls.c.message_id.in_(ids)).values(prompt=None))
    tx.execute(delete(messages).where(messages.c.id.in_(ids)))


def _open_money(tx: Tx, gone: Sequence[Kept]) -> list[tuple[str, str]]:
    """Job and id of messages with an open reservation, in the order in which all transactions lock jobs."""
    jobs = {mail.backfill_job_id for mail in gone if mail.backfill_job_id is not None}
    opened = (reservations.c.state == RESERVED) & reservations.c.job_id.in_(sorted(jobs))
    rows = tx.execute(select(reservations.c.job_id, reservations.c.message_ref).where(opened)) if jobs else ()
    ids = {mail.id for mail in gone}
    return sorted({(job_id, message_of(ref)) for job_id, ref in rows if message_of(ref) in ids})


def _spent_on(tx: Tx, message_id: str) -> Micros:
    total = func.coalesce(func.sum(model_calls.c.cost_microdollars), 0)
    return Micros(int(tx.execute(select(total).where(model_calls.c.message_id == message_id)).scalar_one()))


def _note(tx: Tx, pruned: Pruned, now: datetime) -> None:
    audit.record(tx, SYSTEM, "retention.prune", ("messages", "control database"), now, after=describe_pruned(pruned))


def describe_pruned(pruned: Pruned) -> dict[str, object]:
    return {
        "dry_run": pruned.dry_run,
        "metadata": pruned.metadata,
        "full": pruned.full,
        "by_category": dict(pruned.by_category),
        "protected": pruned.protected,
        "raw_kept": pruned.raw_kept,
    }


def _domain_and_parents(sender: str) -> Iterator[str]:
    """`mail.bank.example`, then `bank.example`, then `example`."""
    labels = sender.rpartition("@")[2].lower().split(".")
    for start in range(len(labels)):
        yield ".".join(labels[start:])
