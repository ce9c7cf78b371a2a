"""Backfill as tools, commands and the dashboard use it: create, pause, resume, cancel, list; poll and report.

Each method of `Backfill` is one transaction on behalf of a named caller. The upkeep job ends expired leases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from sqlalchemy import func, select

from postroom import audit, kill_switch
from postroom.accounts.account import AccountStatus, Provider, find_account, list_accounts
from postroom.accounts.account_jobs import job_of
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.db.tables.access import connectors
from postroom.db.tables.mail import messages, pruned_messages
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from postroom.domain.jobs import BACKFILL
from postroom.domain.model_costs import Meter
from postroom.domain.money import NO_MONEY, Micros
from postroom.domain.roles import Caller
from postroom.domain.terms import BackfillStatus
from postroom.domain.validation import MOST_BACKFILLS
from postroom.kill_switch import SwitchState
from postroom.queue import Handler, JobContext, JobQueue
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job, leases, ledger, rate, undecided
from postroom.switchboard.backfill.job import (
    FINISHED,
    SUBJECT,
    BackfillEvent,
    BackfillJob,
    IllegalTransition,
    find_job,
    job_from_row,
    jobs_table,
    move_job,
)
from postroom.switchboard.backfill.leases import PollReply, ProgressReport, ProgressResponse, take_report
from postroom.switchboard.backfill.ledger import Spend, uncertain_of
from postroom.switchboard.backfill.terms import (
    MOST_AN_HOUR,
    MOST_CENTS,
    NewBackfill,
    checked,
    checked_limit,
    require_enough,
    require_share,
)
from postroom.switchboard.backfill.undecided import JudgedMail
from postroom.switchboard.backfill.waiting import JobWait, waits
from postroom.switchboard.spending import ModelBudget

_KEYS_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class BackfillFilter:
    connector_type: str | None = None
    endpoint_identity: str | None = None
    status: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if self.status is not None and self.status not in set(BackfillStatus):
            raise BadInput("status", f"{self.status!r} is not one of {', '.join(BackfillStatus)}")
        if not 1 <= self.limit <= MOST_BACKFILLS:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_BACKFILLS}")


@dataclass(frozen=True, slots=True)
class BackfillView:
    """A job with its money, its speed and what it waits for."""

    job: BackfillJob
    today: Spend
    days: list[Spend]
    uncertain: Micros
    """Of what counts as spent: what calls may have cost whose answer never came."""
    undecided: int
    """Messages that are in and wait to be decided."""
    admitted_last_hour: int
    taken_in: int
    """New messages that it brought, without those that it found known."""
    never_judged: int
    """Of these, those that were given up; they can be tried again."""
    judged: JudgedMail
    waiting: JobWait | None
    """Why it is not at work, until when, and its place in line; None for a job that waits for nothing or a person."""


def create_job(
    tx: Tx,
    budget: ModelBudget,
    categories: Collection[str],
    who: Actor,
    new: NewBackfill,
    now: datetime,
    dearest: Micros | None,
) -> BackfillJob:
    """Creates a pending job, with the consent of `who`. A refusal names the field, and nothing is written. `dearest` is
    the most that one message can cost."""
    kill_switch.require_on(tx, budget.backfill)
    values = checked(budget.backfill, categories, new, dearest)
    if values["uses_model"]:
        require_share(budget.ceiling(tx), dearest)
    identity = _known_identity(tx, new.connector_type, new.endpoint_identity)
    jobs = jobs_table(tx)
    row = tx.execute(
        jobs.insert()
        .values(
            id=new_id(),
            connector_type=new.connector_type,
            endpoint_identity=identity,
            date_from=new.date_from,
            date_to=new.date_to,
            status=BackfillStatus.PENDING,
            estimate=None if new.estimate is None else dict(new.estimate),
            consent_at=now,
            consent_by=f"{who.role} {who.name}",
            created_at=now,
            updated_at=now,
            **values,
        )
        .returning(jobs)
    ).one()
    job = job_from_row(row)
    terms = (
        "endpoint_identity",
        "target_categories",
        "rate_limit_per_hour",
        "daily_cost_cap_cents",
        "mode",
        "uses_model",
    )
    agreed = {name: getattr(job, name) for name in terms} | {
        "date_from": job.date_from.isoformat(),
        "date_to": job.date_to.isoformat(),
        "category_from": {name: day.isoformat() for name, day in job.category_from.items()},
    }
    audit.record(tx, who, "backfill.create", (SUBJECT, job.id), now, after=job.audited | agreed)
    return job


def pause_job(tx: Tx, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    return move_job(tx, job, BackfillEvent.PAUSE, who, now, status_reason=f"paused by {who.name}")


def resume_job(tx: Tx, budget: ModelBudget, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    if job.status is BackfillStatus.COST_CAPPED and not budget.has_room(tx, job, now):  # it would stop again at once
        turn = ledger.next_day(now, budget.backfill.zone).strftime("%Y-%m-%d %H:%M UTC")
        raise IllegalTransition("status", f"the day's budget is spent; the job can be resumed from {turn} on")
    job = move_job(tx, job, BackfillEvent.RESUME, who, now, error=None)
    return undecided.complete_if_decided(tx, job, now)


def cancel_job(tx: Tx, job_id: str, who: Actor, now: datetime) -> BackfillJob:
    job = find_job(tx, job_id, lock=True)
    return move_job(tx, job, BackfillEvent.CANCEL, who, now, completed_at=now, status_reason=f"cancelled by {who.name}")


def change_limits(
    tx: Tx,
    budget: ModelBudget,
    job_id: str,
    rate: int | None,
    cap_cents: int | None,
    who: Actor,
    now: datetime,
    dearest: Micros | None,
) -> BackfillJob:
    """A new speed or cap for a job that is not over. A job that a cap had stopped goes on if it has room now."""
    found = find_job(tx, job_id, lock=True)
    if found.status in FINISHED:
        raise IllegalTransition("status", f"a job that is {found.status} cannot be changed")
    if rate is None and cap_cents is None:
        raise BadInput("rate_limit_per_hour", "give a new rate, a new cap, or both")
    limits = {
        "rate_limit_per_hour": checked_limit("rate_limit_per_hour", rate, found.rate_limit_per_hour, MOST_AN_HOUR),
        "daily_cost_cap_cents": checked_limit(
            "daily_cost_cap_cents", cap_cents, found.daily_cost_cap_cents, MOST_CENTS
        ),
    }
    if found.uses_model and cap_cents is not None:
        require_enough(limits["daily_cost_cap_cents"], dearest)
    changed = job.change_job(tx, found, now, **limits)
    before = {name: getattr(found, name) for name in limits}
    audit.record(
        tx,
        who,
        "backfill.change",
        (SUBJECT, found.id),
        now,
        before=found.audited | before,
        after=changed.audited | limits,
    )
    return budget.free_room(tx, changed, now)


def judge_again(tx: Tx, queue: JobQueue, job_id: str, who: Actor, now: datetime) -> int:
    """Queue the job's messages that were given up once more; answers how many."""
    found = find_job(tx, job_id, lock=True)
    count = undecided.try_again(tx, queue, found.id)
    audit.record(tx, who, "backfill.judge_again", (SUBJECT, found.id), now, after=found.audited | {"messages": count})
    return count


def list_jobs(tx: Tx, which: BackfillFilter) -> list[BackfillJob]:
    """Newest first."""
    jobs = jobs_table(tx)
    query = select(jobs).order_by(jobs.c.created_at.desc(), jobs.c.id.desc()).limit(which.limit)
    for name in ("connector_type", "endpoint_identity", "status"):
        if (value := getattr(which, name)) is not None:
            query = query.where(jobs.c[name] == value)
    return [job_from_row(row) for row in tx.execute(query)]


def show_job(tx: Tx, settings: BackfillSettings, job_id: str, now: datetime) -> BackfillView:
    job = find_job(tx, job_id)
    return BackfillView(
        job=job,
        today=ledger.spend_on(tx, job.id, ledger.day_of(now, settings.zone)),
        days=ledger.days_of(tx, job.id),
        uncertain=uncertain_of(tx, [job.id]).get(job.id, NO_MONEY),
        undecided=undecided.count_undecided(tx, job.id),
        admitted_last_hour=rate.used(rate.last_hours(tx, [job.id], now)[job.id], now),
        taken_in=taken_in(tx, job.id),
        never_judged=undecided.count_unjudged(tx, job.id),
        judged=undecided.judged(tx, job.id),
        waiting=waits(tx, settings, [job], now).get(job.id),
    )


def taken_in(tx: Tx, job_id: str) -> int:
    """How many new messages the job brought, with those that retention has removed since."""
    counts = (select(func.count()).where(table.c.backfill_job_id == job_id) for table in (messages, pruned_messages))
    return sum(int(tx.execute(count).scalar_one()) for count in counts)


def _known_identity(tx: Tx, connector_type: str, identity: str) -> str:
    """The identity as its connector writes it: one that has reported here, or that of one of our accounts."""
    if connector_type != Provider.GMAIL:  # the connector of all mailboxes, whatever their provider
        raise BadInput("connector_type", f"{connector_type!r} is not one of {Provider.GMAIL}")
    here = (connectors.c.connector_type == connector_type) & (connectors.c.endpoint_identity == identity)
    if tx.execute(select(connectors.c.endpoint_identity).where(here)).first() is not None:
        return identity
    account = find_account(tx, identity)
    if account is None or account.status is AccountStatus.REMOVED:
        raise BadInput("endpoint_identity", f"no {connector_type} connector or account of {identity} is known")
    return account.email


T = TypeVar("T")


class _TakenBack(Exception):
    """A dry run ends here: what the transaction did is undone."""


@dataclass(frozen=True)
class Backfill:
    budget: ModelBudget
    categories: Collection[str]
    meter: Meter
    workers_poll: bool = False
    """Whether workers ask for work here, so that a job need not wait for their next look."""

    @property
    def queue(self) -> JobQueue:
        return self.budget.queue

    @property
    def settings(self) -> BackfillSettings:
        return self.budget.backfill

    @property
    def database(self) -> Database:
        return self.queue.database

    @property
    def clock(self) -> Clock:
        return self.queue.clock

    async def create(self, who: Caller, new: NewBackfill, *, dry_run: bool = False) -> BackfillJob:
        actor = Actor.of(who)

        def create(tx: Tx, now: datetime) -> BackfillJob:
            created = create_job(tx, self.budget, self.categories, actor, new, now, self.meter.dearest)
            self._start_soon(tx, created)
            return created

        return await self._write(create, dry_run)

    async def pause(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        return await self._write(lambda tx, now: pause_job(tx, job_id, Actor.of(who), now), dry_run)

    async def resume(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        def resume(tx: Tx, now: datetime) -> BackfillJob:
            resumed = resume_job(tx, self.budget, job_id, Actor.of(who), now)
            undecided.release_first(tx, self.queue, [resumed.id])
            self._start_soon(tx, resumed)
            return resumed

        return await self._write(resume, dry_run)

    async def cancel(self, who: Caller, job_id: str, *, dry_run: bool = False) -> BackfillJob:
        def cancel(tx: Tx, now: datetime) -> BackfillJob:
            cancelled = cancel_job(tx, job_id, Actor.of(who), now)
            undecided.release_all(tx, self.queue, cancelled.id)
            return cancelled

        return await self._write(cancel, dry_run)

    async def change(
        self, who: Caller, job_id: str, rate: int | None = None, cap_cents: int | None = None, *, dry_run: bool = False
    ) -> BackfillJob:
        actor = Actor.of(who)

        def change(tx: Tx, now: datetime) -> BackfillJob:
            dearest = self.meter.dearest
            changed = change_limits(tx, self.budget, job_id, rate, cap_cents, actor, now, dearest)
            undecided.release_first(tx, self.queue, [changed.id])
            self._start_soon(tx, changed)
            return changed

        return await self._write(change, dry_run)

    async def judge_again(self, who: Caller, job_id: str, *, dry_run: bool = False) -> int:
        return await self._write(lambda tx, now: judge_again(tx, self.queue, job_id, Actor.of(who), now), dry_run)

    async def list(self, which: BackfillFilter) -> list[BackfillJob]:
        return await self.database.read(lambda tx: list_jobs(tx, which))

    async def waits(self, jobs: Sequence[BackfillJob]) -> dict[str, JobWait]:
        """What those of the jobs that wait are waiting for, by job id."""
        return await self.database.read(lambda tx: waits(tx, self.settings, jobs, self.clock.now()))

    async def show(self, job_id: str) -> BackfillView:
        return await self.database.read(lambda tx: show_job(tx, self.settings, job_id, self.clock.now()))

    async def poll(self, who: Caller, connector_type: str, endpoint_identity: str) -> PollReply:
        return await self._write(
            lambda tx, now: leases.poll(tx, self.settings, who, connector_type, endpoint_identity, now)
        )

    async def progress(self, who: Caller, report: ProgressReport) -> ProgressResponse:
        return await self._write(lambda tx, now: take_report(tx, self.settings, who, report, now))

    async def switch(self) -> SwitchState:
        return await self.database.read(lambda tx: kill_switch.state(tx, self.settings))

    async def turn_switch(self, who: Caller, on: bool, *, dry_run: bool = False) -> SwitchState:
        def turn(tx: Tx, now: datetime) -> SwitchState:
            turned = job.turn_switch(tx, self.settings, on, Actor.of(who), now)
            undecided.release_first(tx, self.queue)
            return turned

        return await self._write(turn, dry_run)

    async def upkeep(self) -> dict[str, int]:
        """What becomes due without a call: calls that were never answered are settled at their most, leases expire,
        capped jobs get a new day, running jobs stop while backfill is switched off, mail that was given up is listed,
        and mail that waits for money looks again."""
        return await self._write(lambda tx, now: upkeep(tx, self.budget, now))

    def _start_soon(self, tx: Tx, created: BackfillJob) -> None:
        """Have a worker ask for it as soon as its mailbox may be polled for again."""
        if not self.workers_poll:
            return
        mine = [each for each in list_accounts(tx) if each.email == created.endpoint_identity]
        self.queue.add(tx, *(job_of(BACKFILL.name, account) for account in mine))

    async def _write(self, change: Callable[[Tx, datetime], T], dry_run: bool = False) -> T:
        outcome: list[T] = []

        def run(tx: Tx) -> T:
            value = change(tx, self.clock.now())
            if dry_run:
                outcome[:] = [value]
                raise _TakenBack
            return value

        try:
            return await self.database.write(run)
        except _TakenBack:
            return outcome[0]


def upkeep(tx: Tx, budget: ModelBudget, now: datetime) -> dict[str, int]:
    settings, queue = budget.backfill, budget.queue
    uncertain = budget.settle_expired(tx, now)  # first: a day is locked before any job
    on = kill_switch.state(tx, settings)
    stopped = [] if on.in_force else job.stop_running(tx, on, now)
    lost, turned = leases.expire_leases(tx, now), leases.turn_day(tx, settings, now)
    given_up = undecided.give_up(tx, now)
    if on.in_force:
        undecided.release_first(tx, queue, [None, *_at_work(tx)])
    return {
        "switched_off": len(stopped),
        "leases_lost": len(lost),
        "days_turned": len(turned),
        "given_up": given_up,
        "uncertain": uncertain,
    }


def _at_work(tx: Tx) -> list[str]:
    jobs = jobs_table(tx)
    going = jobs.c.status.in_((BackfillStatus.ACTIVE, BackfillStatus.PENDING))
    return list(tx.execute(select(jobs.c.id).where(going)).scalars())


def upkeep_handler(backfill: Backfill) -> Handler:
    async def handle(context: JobContext) -> dict[str, int]:
        return await backfill.upkeep()

    return handle
