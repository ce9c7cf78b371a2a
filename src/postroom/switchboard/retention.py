"""How long mail stays in the control database, by its tier, its sender's domain and its category (BF-21).

Backfilled and live mail alike, counted from when it was taken in; mail that nothing has decided yet, or that waits
for a person or an action, stays. Rows of the control database are pruned; raw bytes stay in the archive, which has no
way to let go of a message yet. Spend and audit outlive the mail, and so does its idempotency key: a job that meets the
mail again neither pays nor acts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import partial
from types import MappingProxyType

from sqlalchemy import ColumnElement, and_, delete, exists, or_, select, tuple_, update

from postroom import audit
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import account_name
from postroom.audit import SYSTEM
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import ingest_inbox, messages, pruned_messages
from postroom.db.tables.triage import actions, decisions, model_calls
from postroom.domain.actions import UNDER_WAY
from postroom.domain.clock import Clock
from postroom.domain.envelope import IngestionTier
from postroom.domain.errors import BadInput
from postroom.queue import Handler, JobContext
from postroom.settings import RetentionSettings

_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class Kept:
    """What the rule looks at in a message."""

    id: str
    tier: IngestionTier
    sender: str
    category: str | None
    accepted_at: datetime
    raw_by_ingest: bool
    mailbox: str
    source_id: str
    is_decided: bool


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
    years: int
    by_category: Mapping[str, int]
    by_domain: Mapping[str, int]

    @classmethod
    def from_settings(cls, settings: RetentionSettings) -> RetentionRule:
        domains = {domain.lower(): years for domain, years in settings.domain_years.items()}
        return cls(timedelta(days=settings.metadata_days), settings.years, settings.category_years, domains)

    def is_over(self, mail: Kept, now: datetime) -> bool:
        if mail.tier is IngestionTier.METADATA:
            return mail.accepted_at < now - self.metadata
        years = self.years_of(mail)
        return years > 0 and mail.accepted_at < years_before(now, years)

    def years_of(self, mail: Kept) -> int:
        """The closest match of the sender's domain decides, then the category, then the default."""
        for domain in _domain_and_parents(mail.sender):
            if domain in self.by_domain:
                return self.by_domain[domain]
        return self.by_category.get(mail.category or "", self.years)

    def horizon(self, tier: IngestionTier, now: datetime) -> datetime | None:
        """Nothing taken in since then can be past its time; None if nothing of this tier ever is."""
        if tier is IngestionTier.METADATA:
            return now - self.metadata
        limits = [years for years in (self.years, *self.by_category.values(), *self.by_domain.values()) if years > 0]
        return years_before(now, min(limits)) if limits else None

    def terms(self, categories: Sequence[str]) -> list[RetentionTerm]:
        """How long mail of these categories, or without any all mail, is kept once it is taken in."""
        named = categories or [*self.by_category, "other mail"]
        full = [RetentionTerm(name, years=self.by_category.get(name, self.years)) for name in named]
        by_domain = [RetentionTerm(f"mail of {domain}", years=years) for domain, years in self.by_domain.items()]
        return [*full, *by_domain, RetentionTerm("mail kept by its headers only", days=self.metadata.days)]


@dataclass(frozen=True, slots=True)
class RetentionTerm:
    """How long one kind of mail is kept; neither years nor days: for ever."""

    kind: str
    years: int = 0
    days: int = 0

    def over_on(self, taken_in: date) -> date | None:
        """The day on which mail taken in on this one may be removed; None: never."""
        if self.days:
            return taken_in + timedelta(days=self.days)
        return None if self.years == 0 else years_after(taken_in, self.years)

    def describe(self, taken_in: date) -> str:
        over = self.over_on(taken_in)
        if over is None:
            return f"{self.kind}: kept for ever"
        length = f"{self.days} days" if self.days else "a year" if self.years == 1 else f"{self.years} years"
        return f"{self.kind}: kept for {length}, removed from {over} on"


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted, or in a dry run would be."""

    dry_run: bool
    metadata: int = 0
    full: int = 0
    by_category: Mapping[str, int] = field(default_factory=dict)
    protected: int = 0
    undecided: int = 0
    """Past their time, and kept because nothing has decided them yet, or a person still has to."""
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


def years_after(day: date, years: int) -> date:
    try:
        return day.replace(year=day.year + years)
    except ValueError:
        return day.replace(year=day.year + years, day=28)


async def prune(
    database: Database,
    rule: RetentionRule,
    clock: Clock,
    *,
    protected: Protected = nothing_protected,
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
            past = [mail for mail in page if rule.is_over(mail, now)]
            over = [mail for mail in past if mail.is_decided]
            must_stay = await asyncio.to_thread(protected, over) if over else set()
            gone = [mail for mail in over if mail.id not in must_stay]
            if gone and not dry_run:
                await database.write(partial(_remove, gone=gone, now=now))
            counts["undecided"] += len(past) - len(over)
            counts["protected"] += len(over) - len(gone)
            counts[tier] += len(gone)
            counts["raw_kept"] += sum(mail.raw_by_ingest for mail in gone)
            categories.update(mail.category or "none" for mail in gone)
    kept = {name: counts[name] for name in ("protected", "undecided", "raw_kept")}
    pruned = Pruned(dry_run, counts["metadata"], counts["full"], dict(categories), **kept)
    if pruned.total and not dry_run:
        await database.write(lambda tx: _note(tx, pruned, now))
    return pruned


Forget = Callable[[datetime], Awaitable[int]]
"""Deletes what is stored apart from messages and is past its time; returns how much that was."""


def prune_handler(
    rule: RetentionRule,
    protected: Protected = nothing_protected,
    forget: Mapping[str, Forget] = MappingProxyType({}),
) -> Handler:
    """The scheduled job. With `{"dry_run": true}` as its payload it only reports. `forget` is by the name under which
    its result says how much was deleted."""

    async def handle(context: JobContext) -> dict[str, object]:
        dry_run = context.job.payload.get("dry_run") is True
        queue = context.queue
        pruned = await prune(queue.database, rule, queue.clock, protected=protected, dry_run=dry_run)
        forgotten = {} if dry_run else {name: await each(queue.clock.now()) for name, each in forget.items()}
        return describe_pruned(pruned) | forgotten

    return handle


def _page(tx: Tx, tier: IngestionTier, horizon: datetime, after: Kept | None) -> list[Kept]:
    query = (
        select(*(messages.c[name] for name in _COLUMNS), _is_decided())
        .where(messages.c.ingestion_tier == tier, messages.c.accepted_at < horizon)
        .order_by(messages.c.accepted_at, messages.c.id)
        .limit(_AT_ONCE)
    )
    if after is not None:
        here = messages.c.accepted_at, messages.c.id
        place = tuple_(after.accepted_at, after.id, types=[column.type for column in here])
        query = query.where(tuple_(*here) > place)
    return [Kept(row[0], tier, *row[1:]) for row in tx.execute(query)]


def _is_decided() -> ColumnElement[bool]:
    """Nothing waits for a person or for its turn: neither a review nor an approval nor an action."""
    reviewed = or_(~decisions.c.needs_review, decisions.c.reviewed_at.is_not(None))
    decided = exists().where(decisions.c.message_id == messages.c.id, reviewed)
    return and_(decided, ~exists().where(actions.c.message_id == messages.c.id, actions.c.status.in_(UNDER_WAY)))


_COLUMNS = (
    "id",
    "sender_identity",
    "category",
    "accepted_at",
    "raw_by_ingest",
    "endpoint_identity",
    "external_event_id",
)


def _remove(tx: Tx, gone: Sequence[Kept], now: datetime) -> None:
    """Messages with their inbox rows and decisions; their keys stay, and the cost of their model calls, without the
    text."""
    ids = [mail.id for mail in gone]
    accepted = select(ingest_inbox.c.idempotency_key, ingest_inbox.c.request_id, messages.c.backfill_job_id).where(
        ingest_inbox.c.message_id == messages.c.id, messages.c.id.in_(ids)
    )
    if left := [{**row, "pruned_at": now} for row in tx.execute(accepted).mappings()]:
        tx.execute(insert(tx, pruned_messages).on_conflict_do_nothing(), left)
    tx.execute(update(model_calls).where(model_calls.c.message_id.in_(ids)).values(prompt=None))
    tx.execute(delete(messages).where(messages.c.id.in_(ids)))


def _note(tx: Tx, pruned: Pruned, now: datetime) -> None:
    audit.record(tx, SYSTEM, "retention.prune", ("messages", "control database"), now, after=describe_pruned(pruned))


def describe_pruned(pruned: Pruned) -> dict[str, object]:
    return {
        "dry_run": pruned.dry_run,
        "metadata": pruned.metadata,
        "full": pruned.full,
        "by_category": dict(pruned.by_category),
        "protected": pruned.protected,
        "undecided": pruned.undecided,
        "raw_kept": pruned.raw_kept,
    }


def _domain_and_parents(sender: str) -> Iterator[str]:
    """`mail.bank.example`, then `bank.example`, then `example`."""
    labels = sender.rpartition("@")[2].lower().split(".")
    for start in range(len(labels)):
        yield ".".join(labels[start:])
