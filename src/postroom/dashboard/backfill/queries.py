"""Backfill jobs: progress, spending, remaining time, and why a job is in its state, in words.

A day begins at midnight in the zone of the daily caps, so that mail and money are counted by the same day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any, assert_never

from pydantic import Field
from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.account import list_accounts
from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.dashboard.paging import ListQuery, Paged, SortOrder, paged, row_before
from postroom.db import Tx
from postroom.db.tables.mail import backfill_rate as rates
from postroom.db.tables.mail import backfill_spend as spends
from postroom.domain.money import Micros
from postroom.domain.terms import BackfillStatus
from postroom.mail.categories import Categories
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job as model
from postroom.switchboard.backfill import operations as backfill_jobs
from postroom.switchboard.backfill.job import SUBJECT, BackfillEvent, BackfillJob, is_legal
from postroom.switchboard.backfill.ledger import Spend, day_of, spend_from_row
from postroom.switchboard.backfill.rate import HOUR
from postroom.switchboard.backfill.undecided import JudgedMail
from postroom.switchboard.backfill.waiting import JobWait, waits
from postroom.switchboard.estimate import expected_rows, side_by_side, whole_figure


def start_of_day(now: datetime, settings: BackfillSettings) -> datetime:
    return datetime.combine(now.astimezone(settings.zone).date(), time(), settings.zone).astimezone(UTC)


STEERING = (BackfillEvent.PAUSE, BackfillEvent.RESUME, BackfillEvent.CANCEL)


@dataclass(frozen=True, slots=True)
class EstimateAndActual:
    """A figure of the estimate and the actual one; None where it is not known."""

    estimated: int | None
    actual: int | None


@dataclass(frozen=True, slots=True)
class EstimateComparison:
    messages: EstimateAndActual
    left_out: EstimateAndActual
    cost_microdollars: EstimateAndActual
    seconds: EstimateAndActual


def seconds_left(job: BackfillJob, admitted_last_hour: int, now: datetime) -> int | None:
    """The approximate remaining working time: the longer of what the estimate and the last hour suggest.

    None where it is not known: the job is not active, was not estimated, or has already exceeded its estimate.
    """
    expected, planned = expected_rows(job), whole_figure(job.estimate, "seconds")
    if job.status is not BackfillStatus.ACTIVE or not expected or planned is None or job.rows_processed >= expected:
        return None
    left = expected - job.rows_processed
    seconds = planned * left // expected
    has_gone_an_hour = job.started_at is not None and now - job.started_at >= HOUR
    if has_gone_an_hour and admitted_last_hour:
        seconds = max(seconds, left * 3_600 // admitted_last_hour)
    return seconds


def reached_day(job: BackfillJob) -> date | None:
    """The day that it has worked back to, newest mail first; None if its connector records its place differently."""
    place = None if job.cursor is None else job.cursor.get("place")
    moment = place.get("received_ms") if isinstance(place, Mapping) else None
    if not isinstance(moment, int) or not 0 <= moment < 10**14:
        return None
    return datetime.fromtimestamp(moment / 1_000, UTC).date()


def possible(job: BackfillJob) -> list[BackfillEvent]:
    """What the owner can do with it now."""
    return [event for event in STEERING if is_legal(event, job.status)]


def comparison(job: BackfillJob, taken_in: int) -> EstimateComparison | None:
    compared = side_by_side(job, taken_in)
    if compared is None:
        return None
    return EstimateComparison(
        **{name: EstimateAndActual(whole_figure(both, "estimated"), both["actual"]) for name, both in compared.items()}
    )


def state_in_words(job: BackfillJob, wait: JobWait | None) -> str:
    """Why it is in its state, and what comes next."""
    why = _sentence(job.error or job.status_reason)
    match job.status:
        case BackfillStatus.PENDING | BackfillStatus.COST_CAPPED:
            return wait.text if wait else why
        case BackfillStatus.ACTIVE if wait is not None:
            return wait.text
        case BackfillStatus.ACTIVE:
            return f"Running: {job.lease_holder} is fetching mail." if job.lease_holder else "Running."
        case BackfillStatus.PAUSED:
            return f"{why} It keeps its place until you resume it.".strip()
        case BackfillStatus.ERROR:
            return f"{why or 'It failed.'} Fix the cause, then resume it: it continues where it stopped."
        case BackfillStatus.COMPLETED:
            return "Done: all mail of these days was checked."
        case BackfillStatus.CANCELLED:
            return f"{why} Mail that it already fetched stays.".strip()
    assert_never(job.status)


def _sentence(text: str | None) -> str:
    if not text:
        return ""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


_AUDIT = 100


@dataclass(frozen=True, slots=True)
class CategoryChoice:
    """A category that a job may ask for. Skipped ones are listed too, so that their absence is no surprise."""

    name: str
    title: str
    years: int | None
    """How far back it goes by default; null: to the oldest mail."""
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class BackfillRow:
    """A job and its progress."""

    job: BackfillJob
    state_text: str
    """Why it is in its state, and what comes next."""
    expected: int | None
    """Estimated messages; null without an estimate."""
    reached: date | None
    """The day that it has worked back to, newest mail first."""
    last_hour: int
    """Messages admitted during the last hour."""
    seconds_left: int | None
    """Approximate remaining working time; null where it is not known, as for a job that is not active."""
    waiting: JobWait | None
    """Why a job is not at work, until when, and its place in line; null if it waits for nothing, or for a person."""
    today: Spend
    can: list[BackfillEvent]


@dataclass(frozen=True, slots=True)
class BackfillDetail:
    summary: BackfillRow
    judged: JudgedMail
    undecided: int
    """Messages that it brought and that wait to be decided."""
    never_judged: int
    """Messages that were given up; they can be tried again."""
    uncertain: Micros
    """Of what counts as spent: calls whose answer never came, at their most."""
    can_change: bool
    """Its limits can be changed: it is not over."""
    days: list[Spend]
    """Oldest first."""
    comparison: EstimateComparison | None
    audit: list[AuditEntry]
    has_more_audit: bool


@dataclass(frozen=True, slots=True)
class BackfillSwitch:
    """The kill switch of all backfill."""

    is_on: bool
    reason: str
    """Why it is off; empty while it is on."""
    remedy: str
    """How to turn it on; empty while it is on."""
    can_turn: bool
    """The environment allows backfill, so that this switch decides."""
    changed_at: datetime | None
    changed_by: str | None


@dataclass(frozen=True, slots=True)
class BackfillOverview:
    switch: BackfillSwitch
    statuses: dict[BackfillStatus, int]
    spent_today: Micros
    reserved_today: Micros


class BackfillsQuery(ListQuery):
    status: BackfillStatus | None = None
    account: str | None = Field(None, max_length=320, description="only this mailbox")


def choices(categories: Categories) -> list[CategoryChoice]:
    return [CategoryChoice(each.name, each.title, each.years, each.skipped) for each in categories]


def mailboxes(tx: Tx) -> list[str]:
    """The addresses of mailboxes that can have a job."""
    return [account.email for account in list_accounts(tx)]


def overview(tx: Tx, settings: BackfillSettings, now: datetime) -> BackfillOverview:
    jobs = model.jobs_table(tx)
    counted = {row.status: row.jobs for row in tx.execute(_by_status(jobs))}
    spent = func.sum(spends.c.settled_microdollars + spends.c.reported_microdollars)
    today = select(spent, func.sum(spends.c.reserved_microdollars)).where(spends.c.day == day_of(now, settings.zone))
    settled, reserved = tx.execute(today).one()
    statuses = {status: counted.get(status, 0) for status in BackfillStatus}
    return BackfillOverview(switch(tx, settings), statuses, Micros(int(settled or 0)), Micros(int(reserved or 0)))


def switch(tx: Tx, settings: BackfillSettings) -> BackfillSwitch:
    state = kill_switch.state(tx, settings)
    return BackfillSwitch(
        state.in_force, state.reason, state.remedy, state.environment, state.changed_at, state.changed_by
    )


def list_backfills(tx: Tx, settings: BackfillSettings, wanted: BackfillsQuery, now: datetime) -> Paged[BackfillRow]:
    """Newest first: ids sort by time."""
    jobs = model.jobs_table(tx)
    query = select(jobs).limit(wanted.limit + 1)
    for name, value in (("status", wanted.status), ("endpoint_identity", wanted.account)):
        if value is not None:
            query = query.where(jobs.c[name] == value)
    rows = tx.execute(SortOrder((jobs.c.id,), falling=("id",)).apply(query, row_before(tx, jobs, wanted.after))).all()
    page = paged(rows, wanted.limit, lambda row: str(row.id))
    found = [model.job_from_row(row) for row in page.items]
    return Paged(_backfill_rows(tx, settings, found, now), page.next)


def mailbox_of_job(tx: Tx, job_id: str) -> str | None:
    """The mailbox of a job; None if there is no such job."""
    jobs = model.jobs_table(tx)
    return tx.execute(select(jobs.c.endpoint_identity).where(jobs.c.id == job_id)).scalar()


def backfill_detail(tx: Tx, settings: BackfillSettings, job_id: str, now: datetime) -> BackfillDetail:
    view = backfill_jobs.show_job(tx, settings, job_id, now)
    about = list_entries(tx, AuditFilter(subject_type=SUBJECT, subject_id=view.job.id, limit=_AUDIT))
    return BackfillDetail(
        summary=_backfill_row(view.job, view.waiting, view.today, view.admitted_last_hour, now),
        judged=view.judged,
        undecided=view.undecided,
        never_judged=view.never_judged,
        uncertain=view.uncertain,
        can_change=view.job.status not in model.FINISHED,
        days=view.days,
        comparison=comparison(view.job, view.taken_in),
        audit=about.entries,
        has_more_audit=about.next_before_id is not None,
    )


def _backfill_rows(
    tx: Tx, settings: BackfillSettings, found: Sequence[BackfillJob], now: datetime
) -> list[BackfillRow]:
    ids, day, waiting = [job.id for job in found], day_of(now, settings.zone), waits(tx, settings, found, now)
    spent = {
        str(row.job_id): spend_from_row(row)
        for row in tx.execute(select(spends).where(spends.c.job_id.in_(ids), spends.c.day == day))
    }
    recent = select(rates.c.job_id, func.sum(rates.c.count).label("admitted")).where(
        rates.c.job_id.in_(ids), rates.c.at > now - HOUR
    )
    admitted = {str(row.job_id): int(row.admitted) for row in tx.execute(recent.group_by(rates.c.job_id))}
    nothing = Spend(day)
    return [
        _backfill_row(job, waiting.get(job.id), spent.get(job.id, nothing), admitted.get(job.id, 0), now)
        for job in found
    ]


def _backfill_row(
    job: BackfillJob, waiting: JobWait | None, today: Spend, last_hour: int, now: datetime
) -> BackfillRow:
    return BackfillRow(
        job=job,
        state_text=state_in_words(job, waiting),
        expected=expected_rows(job),
        reached=reached_day(job),
        last_hour=last_hour,
        seconds_left=seconds_left(job, last_hour, now),
        waiting=waiting,
        today=today,
        can=possible(job),
    )


def _by_status(jobs: Any) -> Any:
    return select(jobs.c.status, func.count().label("jobs")).group_by(jobs.c.status)
