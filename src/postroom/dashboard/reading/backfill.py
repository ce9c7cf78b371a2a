"""Backfill as the dashboard shows it: jobs with how far they are, what they spend, and why they stand as they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.store import list_accounts
from postroom.audit import AuditFilter, Entry, list_entries
from postroom.dashboard.paging import PAGE, Order, Paged, paged
from postroom.dashboard.reading.backfill_progress import (
    Comparison,
    came_to,
    comparison,
    expected_messages,
    goes_on_at,
    possible,
    saying,
    seconds_left,
)
from postroom.db import Tx
from postroom.db.tables.backfill import backfill_rate as rates
from postroom.db.tables.backfill import backfill_spend as spends
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros
from postroom.kill_switch import SwitchState
from postroom.mail.categories import shipped
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import jobs as backfill_jobs
from postroom.switchboard.backfill import model
from postroom.switchboard.backfill.ledger import Spend, day_of
from postroom.switchboard.backfill.model import SUBJECT, BackfillJob
from postroom.switchboard.backfill.rate import HOUR
from postroom.switchboard.backfill.transitions import Event, Status

_AUDIT = 100


@dataclass(frozen=True, slots=True)
class Choice:
    """A category that a job may ask for; one that is skipped is shown, so that nobody looks for it."""

    name: str
    title: str
    years: int | None
    """How far back it goes unless told otherwise; null: all there is."""
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """A job, and what can be said about it now."""

    job: BackfillJob
    saying: str
    expected: int | None
    """Messages that it was to bring; null where it was not estimated."""
    came_to: date | None
    last_hour: int
    """Messages let in during the last hour."""
    seconds_left: int | None
    """Time at work that is still to come, about; null where nobody can say, as for a job that is not at work."""
    goes_on_at: datetime | None
    """When a job that stopped at its cap goes on by itself."""
    today: Spend
    can: list[Event]


@dataclass(frozen=True, slots=True)
class Detail:
    standing: Standing
    room_in_s: float | None
    """Seconds until the limit of the hour has room again; null: it has."""
    days: list[Spend]
    """Oldest first."""
    comparison: Comparison | None
    audit: list[Entry]
    has_more_audit: bool


@dataclass(frozen=True, slots=True)
class Switch:
    """The kill switch of all backfill."""

    is_on: bool
    reason: str
    """Why it is off; empty while it is on."""
    can_turn: bool
    """The environment allows backfill, so that this switch decides."""
    changed_at: datetime | None
    changed_by: str | None


@dataclass(frozen=True, slots=True)
class Overview:
    switch: Switch
    statuses: dict[Status, int]
    spent_today: Micros
    reserved_today: Micros


@dataclass(frozen=True, slots=True)
class BackfillsWanted:
    status: Status | None = None
    account: str | None = None
    after: str | None = None
    limit: int = PAGE


def choices() -> list[Choice]:
    return [Choice(each.name, each.title, each.years, each.skipped) for each in shipped()]


def mailboxes(tx: Tx) -> list[str]:
    """Those that a job can be made for, by their addresses."""
    return [account.email for account in list_accounts(tx)]


def overview(tx: Tx, settings: BackfillSettings, now: datetime) -> Overview:
    jobs = model.table(tx)
    counted = {row.status: row.jobs for row in tx.execute(_by_status(jobs))}
    today = select(func.sum(spends.c.settled_microdollars), func.sum(spends.c.reserved_microdollars)).where(
        spends.c.day == day_of(now, settings.zone)
    )
    settled, reserved = tx.execute(today).one()
    statuses = {status: counted.get(status, 0) for status in Status}
    return Overview(switch(tx, settings), statuses, Micros(int(settled or 0)), Micros(int(reserved or 0)))


def switch(tx: Tx, settings: BackfillSettings) -> Switch:
    state = kill_switch.state(tx, settings)
    return Switch(state.in_force, state.reason, state.environment, state.changed_at, state.changed_by)


def list_backfills(tx: Tx, settings: BackfillSettings, wanted: BackfillsWanted, now: datetime) -> Paged[Standing]:
    """Newest first: ids sort by time."""
    jobs = model.table(tx)
    query = select(jobs).limit(wanted.limit + 1)
    for name, value in (("status", wanted.status), ("endpoint_identity", wanted.account)):
        if value is not None:
            query = query.where(jobs.c[name] == value)
    rows = tx.execute(Order((jobs.c.id,), falling=("id",)).apply(query, _start(tx, wanted.after))).all()
    page = paged(rows, wanted.limit, lambda row: str(row.id))
    found = [model.read(row) for row in page.items]
    return Paged(_standings(tx, settings, found, now), page.next)


def mailbox_of_job(tx: Tx, job_id: str) -> str | None:
    """None: there is no such job."""
    jobs = model.table(tx)
    return tx.execute(select(jobs.c.endpoint_identity).where(jobs.c.id == job_id)).scalar()


def backfill_detail(tx: Tx, settings: BackfillSettings, job_id: str, now: datetime) -> Detail:
    view = backfill_jobs.show(tx, settings, job_id, now)
    state = kill_switch.state(tx, settings)
    about = list_entries(tx, AuditFilter(subject_type=SUBJECT, subject_id=view.job.id, limit=_AUDIT))
    return Detail(
        standing=_standing(view.job, state, settings, view.today, view.admitted_last_hour, now),
        room_in_s=view.retry_after,
        days=view.days,
        comparison=comparison(view.job),
        audit=about.entries,
        has_more_audit=about.next_before_id is not None,
    )


def _standings(tx: Tx, settings: BackfillSettings, found: Sequence[BackfillJob], now: datetime) -> list[Standing]:
    ids, day, state = [job.id for job in found], day_of(now, settings.zone), kill_switch.state(tx, settings)
    spent = {
        str(row.job_id): Spend(day, Micros(row.reserved_microdollars), Micros(row.settled_microdollars))
        for row in tx.execute(select(spends).where(spends.c.job_id.in_(ids), spends.c.day == day))
    }
    recent = select(rates.c.job_id, func.sum(rates.c.count).label("admitted")).where(
        rates.c.job_id.in_(ids), rates.c.at > now - HOUR
    )
    admitted = {str(row.job_id): int(row.admitted) for row in tx.execute(recent.group_by(rates.c.job_id))}
    nothing = Spend(day, Micros(0), Micros(0))
    return [_standing(job, state, settings, spent.get(job.id, nothing), admitted.get(job.id, 0), now) for job in found]


def _standing(
    job: BackfillJob, state: SwitchState, settings: BackfillSettings, today: Spend, last_hour: int, now: datetime
) -> Standing:
    return Standing(
        job=job,
        saying=saying(job, state),
        expected=expected_messages(job),
        came_to=came_to(job),
        last_hour=last_hour,
        seconds_left=seconds_left(job, last_hour, now),
        goes_on_at=goes_on_at(job, state, settings, now),
        today=today,
        can=possible(job),
    )


def _by_status(jobs: Any) -> Any:
    return select(jobs.c.status, func.count().label("jobs")).group_by(jobs.c.status)


def _start(tx: Tx, after: str | None) -> Any:
    if after is None:
        return None
    jobs = model.table(tx)
    row = tx.execute(select(jobs.c.id).where(jobs.c.id == parse_id(after, "after"))).one_or_none()
    if row is None:
        raise BadInput("after", "names a job that is not there; begin again at the first page")
    return row
