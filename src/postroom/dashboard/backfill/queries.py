"""Backfill jobs: how far each is, what it spends, how long it still takes, and why it is in its state, in words.

A day begins at midnight of the zone in which daily caps turn, so that mail and money are of the same day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, assert_never

from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.account import list_accounts
from postroom.audit import AuditEntry, AuditFilter, list_entries
from postroom.dashboard.paging import PAGE, Paged, SortOrder, paged
from postroom.db import Tx
from postroom.db.tables.mail import backfill_rate as rates
from postroom.db.tables.mail import backfill_spend as spends
from postroom.domain.backfill import BackfillStatus
from postroom.domain.errors import BadInput
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros
from postroom.kill_switch import SwitchState
from postroom.mail.categories import shipped
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job as model
from postroom.switchboard.backfill import operations as backfill_jobs
from postroom.switchboard.backfill.job import SUBJECT, BackfillEvent, BackfillJob, is_legal
from postroom.switchboard.backfill.ledger import Spend, day_of
from postroom.switchboard.backfill.rate import HOUR
from postroom.switchboard.estimate import side_by_side


def start_of_day(now: datetime, settings: BackfillSettings) -> datetime:
    return _midnight(now.astimezone(settings.zone).date(), settings)


def end_of_day(day: date, settings: BackfillSettings) -> datetime:
    return _midnight(day + timedelta(days=1), settings)


def _midnight(day: date, settings: BackfillSettings) -> datetime:
    return datetime.combine(day, time(), settings.zone).astimezone(UTC)


STEERING = (BackfillEvent.PAUSE, BackfillEvent.RESUME, BackfillEvent.CANCEL)


@dataclass(frozen=True, slots=True)
class EstimateAndActual:
    """A figure of the estimate, and what it came to. None where nobody knows."""

    estimated: int | None
    actual: int | None


@dataclass(frozen=True, slots=True)
class EstimateComparison:
    messages: EstimateAndActual
    left_out: EstimateAndActual
    cost_microdollars: EstimateAndActual
    seconds: EstimateAndActual


def expected_messages(job: BackfillJob) -> int | None:
    """How many it was to bring; None where it was not estimated."""
    return _whole(job.estimate, "messages")


def seconds_left(job: BackfillJob, admitted_last_hour: int, now: datetime) -> int | None:
    """About how long it is at work still; never more hopeful than its estimate, nor than its last hour.

    None where nobody can say: it is not at work, was not estimated, or has brought more than that already.
    """
    expected, planned = expected_messages(job), _whole(job.estimate, "seconds")
    if job.status is not BackfillStatus.ACTIVE or not expected or planned is None or job.rows_processed >= expected:
        return None
    left = expected - job.rows_processed
    seconds = planned * left // expected
    has_gone_an_hour = job.started_at is not None and now - job.started_at >= HOUR
    if has_gone_an_hour and admitted_last_hour:
        seconds = max(seconds, left * 3_600 // admitted_last_hour)
    return seconds


def resumes_at(job: BackfillJob, switch: SwitchState, settings: BackfillSettings, now: datetime) -> datetime | None:
    """When a job that stopped at its cap goes on by itself; None for any other, and where a person has to act first."""
    waits_for_a_day = job.status is BackfillStatus.COST_CAPPED and job.auto_resume and switch.in_force
    if not waits_for_a_day or job.capped_day is None:
        return None
    turn = end_of_day(job.capped_day, settings)
    return turn if turn > now else None


def reached_day(job: BackfillJob) -> date | None:
    """The day that it has gone back to, from the newest on; None where its connector keeps its place otherwise."""
    place = None if job.cursor is None else job.cursor.get("place")
    moment = place.get("received_ms") if isinstance(place, Mapping) else None
    if not isinstance(moment, int) or not 0 <= moment < 10**14:
        return None
    return datetime.fromtimestamp(moment / 1_000, UTC).date()


def possible(job: BackfillJob) -> list[BackfillEvent]:
    """What its owner can do with it now."""
    return [event for event in STEERING if is_legal(event, job.status)]


def comparison(job: BackfillJob) -> EstimateComparison | None:
    compared = side_by_side(job)
    if compared is None:
        return None
    return EstimateComparison(
        **{name: EstimateAndActual(_whole(both, "estimated"), both["actual"]) for name, both in compared.items()}
    )


def state_in_words(job: BackfillJob, switch: SwitchState) -> str:
    """Why it stands as it does, and what comes next."""
    why = _sentence(job.error or job.status_reason)
    match job.status:
        case BackfillStatus.PENDING if not switch.in_force:
            return f"Waits, because all backfill is off: {switch.reason}."
        case BackfillStatus.PENDING:
            return f"{why} Waits for its connector, which asks for work every minute.".strip()
        case BackfillStatus.ACTIVE:
            return f"At work: {job.lease_holder} brings mail." if job.lease_holder else "At work."
        case BackfillStatus.PAUSED:
            return f"{why} It keeps its place until it is resumed.".strip()
        case BackfillStatus.COST_CAPPED:
            return f"{why} {_after_the_cap(job, switch)}"
        case BackfillStatus.ERROR:
            return f"{why or 'It failed.'} Mend that, then resume it: it goes on from its place."
        case BackfillStatus.COMPLETED:
            return "Done: all mail of these days was looked at."
        case BackfillStatus.CANCELLED:
            return f"{why} What it brought stays.".strip()
    assert_never(job.status)


def _after_the_cap(job: BackfillJob, switch: SwitchState) -> str:
    if not job.auto_resume:
        return "It waits to be resumed by hand."
    return "It goes on by itself then." if switch.in_force else "It goes on by itself once backfill is on again."


def _sentence(text: str | None) -> str:
    if not text:
        return ""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _whole(values: Mapping[str, Any] | None, name: str) -> int | None:
    """An estimate comes from whoever made the job: what is not a number is not known."""
    value = None if values is None else values.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


_AUDIT = 100


@dataclass(frozen=True, slots=True)
class CategoryChoice:
    """A category that a job may ask for; one that is skipped is shown, so that nobody looks for it."""

    name: str
    title: str
    years: int | None
    """How far back it goes unless told otherwise; null: all there is."""
    is_skipped: bool


@dataclass(frozen=True, slots=True)
class BackfillRow:
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
    can: list[BackfillEvent]


@dataclass(frozen=True, slots=True)
class BackfillDetail:
    standing: BackfillRow
    room_in_s: float | None
    """Seconds until the limit of the hour has room again; null: it has."""
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


@dataclass(frozen=True, slots=True)
class BackfillsWanted:
    status: BackfillStatus | None = None
    account: str | None = None
    after: str | None = None
    limit: int = PAGE


def choices() -> list[CategoryChoice]:
    return [CategoryChoice(each.name, each.title, each.years, each.skipped) for each in shipped()]


def mailboxes(tx: Tx) -> list[str]:
    """Those that a job can be made for, by their addresses."""
    return [account.email for account in list_accounts(tx)]


def overview(tx: Tx, settings: BackfillSettings, now: datetime) -> BackfillOverview:
    jobs = model.jobs_table(tx)
    counted = {row.status: row.jobs for row in tx.execute(_by_status(jobs))}
    today = select(func.sum(spends.c.settled_microdollars), func.sum(spends.c.reserved_microdollars)).where(
        spends.c.day == day_of(now, settings.zone)
    )
    settled, reserved = tx.execute(today).one()
    statuses = {status: counted.get(status, 0) for status in BackfillStatus}
    return BackfillOverview(switch(tx, settings), statuses, Micros(int(settled or 0)), Micros(int(reserved or 0)))


def switch(tx: Tx, settings: BackfillSettings) -> BackfillSwitch:
    state = kill_switch.state(tx, settings)
    return BackfillSwitch(state.in_force, state.reason, state.environment, state.changed_at, state.changed_by)


def list_backfills(tx: Tx, settings: BackfillSettings, wanted: BackfillsWanted, now: datetime) -> Paged[BackfillRow]:
    """Newest first: ids sort by time."""
    jobs = model.jobs_table(tx)
    query = select(jobs).limit(wanted.limit + 1)
    for name, value in (("status", wanted.status), ("endpoint_identity", wanted.account)):
        if value is not None:
            query = query.where(jobs.c[name] == value)
    rows = tx.execute(SortOrder((jobs.c.id,), falling=("id",)).apply(query, _start(tx, wanted.after))).all()
    page = paged(rows, wanted.limit, lambda row: str(row.id))
    found = [model.job_from_row(row) for row in page.items]
    return Paged(_backfill_rows(tx, settings, found, now), page.next)


def mailbox_of_job(tx: Tx, job_id: str) -> str | None:
    """None: there is no such job."""
    jobs = model.jobs_table(tx)
    return tx.execute(select(jobs.c.endpoint_identity).where(jobs.c.id == job_id)).scalar()


def backfill_detail(tx: Tx, settings: BackfillSettings, job_id: str, now: datetime) -> BackfillDetail:
    view = backfill_jobs.show_job(tx, settings, job_id, now)
    state = kill_switch.state(tx, settings)
    about = list_entries(tx, AuditFilter(subject_type=SUBJECT, subject_id=view.job.id, limit=_AUDIT))
    return BackfillDetail(
        standing=_backfill_row(view.job, state, settings, view.today, view.admitted_last_hour, now),
        room_in_s=view.retry_after,
        days=view.days,
        comparison=comparison(view.job),
        audit=about.entries,
        has_more_audit=about.next_before_id is not None,
    )


def _backfill_rows(
    tx: Tx, settings: BackfillSettings, found: Sequence[BackfillJob], now: datetime
) -> list[BackfillRow]:
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
    return [
        _backfill_row(job, state, settings, spent.get(job.id, nothing), admitted.get(job.id, 0), now) for job in found
    ]


def _backfill_row(
    job: BackfillJob, state: SwitchState, settings: BackfillSettings, today: Spend, last_hour: int, now: datetime
) -> BackfillRow:
    return BackfillRow(
        job=job,
        saying=state_in_words(job, state),
        expected=expected_messages(job),
        came_to=reached_day(job),
        last_hour=last_hour,
        seconds_left=seconds_left(job, last_hour, now),
        goes_on_at=resumes_at(job, state, settings, now),
        today=today,
        can=possible(job),
    )


def _by_status(jobs: Any) -> Any:
    return select(jobs.c.status, func.count().label("jobs")).group_by(jobs.c.status)


def _start(tx: Tx, after: str | None) -> Any:
    if after is None:
        return None
    jobs = model.jobs_table(tx)
    row = tx.execute(select(jobs.c.id).where(jobs.c.id == parse_id(after, "after"))).one_or_none()
    if row is None:
        raise BadInput("after", "names a job that is not there; begin again at the first page")
    return row
