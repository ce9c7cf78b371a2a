"""The job queue: what waits, runs and failed; one job with its steps; retry and cancel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query
from pydantic import Field
from sqlalchemy import Select, select, text
from starlette.responses import Response

from postroom.contract import steering as contract
from postroom.contract.tool import Id, ToolSignature
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import chosen, query_of
from postroom.dashboard.paging import ENOUGH, BoundedCount, ListQuery, Paged, SortOrder, bounded, paged, row_before
from postroom.dashboard.series import TOPICS, SeriesTopic, TimeWindow, queue_panels, read_series, window_links
from postroom.db import Tx
from postroom.db.database import read_time
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.domain.ids import is_id
from postroom.domain.roles import Permission
from postroom.domain.terms import TIERS, Tier
from postroom.queue import JobState, QueueName
from postroom.queue.inspection import JobRecord, StepRecord, show_job

_COUNTED = 5_000
"""So many waiting and failed jobs are counted by type."""


class JobPhase(StrEnum):
    """The state of a job as a person sees it: the queue's `queued` is waiting, or scheduled for later."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    RUNNING = "running"
    FAILED = "failed"
    COMPLETED = "completed"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class JobRow:
    id: str
    type: str
    state: JobState
    phase: JobPhase
    queue: QueueName
    tier: Tier
    attempts: int
    max_attempts: int
    created_at: datetime
    not_before: datetime | None
    finished_at: datetime | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class QueueTierRow:
    """One tier of one queue."""

    queue: QueueName
    tier: Tier
    waiting: int
    running: int
    first_since: datetime | None
    """Since when the next job of this tier is waiting."""

    @property
    def is_busy(self) -> bool:
        return bool(self.waiting or self.running)


@dataclass(frozen=True, slots=True)
class TypeCount:
    """Jobs of a type. At most 5,000 waiting and 5,000 failed ones are counted."""

    type: str
    waiting: int
    running: int
    failed: int


@dataclass(frozen=True, slots=True)
class QueueOverview:
    counts: dict[JobPhase, BoundedCount]
    tiers: list[QueueTierRow]
    types: list[TypeCount]


@dataclass(frozen=True, slots=True)
class JobLink:
    text: str
    href: str


@dataclass(frozen=True, slots=True)
class JobDetail:
    job: JobRecord
    phase: JobPhase
    steps: list[StepRecord]
    can_retry: bool
    can_cancel: bool
    links: list[JobLink]
    """What the job is about: its message, action, rule application or run."""


class JobsQuery(ListQuery):
    state: JobPhase | None = None
    type: str | None = Field(None, max_length=100)
    queue: QueueName | None = None
    tier: Tier | None = None


_PHASES = {
    JobPhase.WAITING: "jobs.state = 'queued' AND jobs.ready",
    JobPhase.SCHEDULED: "jobs.state = 'queued' AND NOT jobs.ready",
    JobPhase.RUNNING: "jobs.state = 'running'",
    JobPhase.FAILED: "jobs.state = 'failed' AND jobs.finished_at IS NOT NULL",
    JobPhase.COMPLETED: "jobs.state = 'completed' AND jobs.finished_at IS NOT NULL",
    JobPhase.CANCELED: "jobs.state = 'canceled' AND jobs.finished_at IS NOT NULL",
}
"""In the exact words of the partial indexes: SQLite does not use them for a condition with parameters."""
PHASE_CONDITIONS = {phase: text(condition) for phase, condition in _PHASES.items()}

# The numbers of the page, which go to the server together.
_WAITING_LINES = f"""
    SELECT queue_name, policy_tier, waiting,
        (SELECT queued_at FROM jobs
         WHERE jobs.queue_name = line.queue_name AND jobs.policy_tier = line.policy_tier
             AND {_PHASES[JobPhase.WAITING]}
         ORDER BY jobs.priority DESC, jobs.seq LIMIT 1)
    FROM (SELECT queue_name, policy_tier, count(*) AS waiting FROM jobs WHERE {_PHASES[JobPhase.WAITING]}
          GROUP BY queue_name, policy_tier) AS line"""  # noqa: S608
_RUNNING_LINES = f"""
    SELECT queue_name, policy_tier, count(*) FROM jobs WHERE {_PHASES[JobPhase.RUNNING]}
    GROUP BY queue_name, policy_tier"""  # noqa: S608
_PHASE_COUNTS = " UNION ALL ".join(
    f"""
    SELECT '{phase}', count(*) FROM (SELECT 1 FROM jobs WHERE {condition} LIMIT {ENOUGH + 1}) AS found"""  # noqa: S608
    for phase, condition in _PHASES.items()
)
_BY_TYPE = " UNION ALL ".join(
    f"""
    SELECT '{phase}', type, count(*)
    FROM (SELECT type FROM jobs WHERE {_PHASES[phase]} LIMIT {_COUNTED}) AS found GROUP BY type"""  # noqa: S608
    for phase in (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.FAILED)
)

_NEWEST_FIRST = SortOrder((jobs.c.id,), falling=("id",))
_LAST_ENDED_FIRST = SortOrder((jobs.c.finished_at, jobs.c.id), falling=("finished_at", "id"))
_ORDERS = {
    JobPhase.WAITING: SortOrder(
        (jobs.c.queue_name, jobs.c.policy_tier, jobs.c.priority, jobs.c.seq), falling=("priority",)
    ),
    JobPhase.SCHEDULED: SortOrder((jobs.c.not_before, jobs.c.id)),
    JobPhase.RUNNING: SortOrder((jobs.c.worker_id, jobs.c.id)),
    JobPhase.FAILED: _LAST_ENDED_FIRST,
    JobPhase.COMPLETED: _LAST_ENDED_FIRST,
    JobPhase.CANCELED: _LAST_ENDED_FIRST,
}


def queue_overview(tx: Tx) -> QueueOverview:
    waiting, running, counts, types = tx.batch(
        (_WAITING_LINES, {}), (_RUNNING_LINES, {}), (_PHASE_COUNTS, {}), (_BY_TYPE, {})
    )
    found = {JobPhase(phase): bounded(number) for phase, number in counts}
    return QueueOverview(found, _tier_rows(waiting, running), _type_counts(types))


def list_jobs(tx: Tx, wanted: JobsQuery) -> Paged[JobRow]:
    """Waiting jobs as they are served, scheduled ones as they fall due, running ones by worker, others newest first."""
    conditions = [
        column == value
        for column, value in (
            (jobs.c.type, wanted.type),
            (jobs.c.queue_name, wanted.queue),
            (jobs.c.policy_tier, wanted.tier),
        )
        if value is not None
    ]
    query = select(jobs).where(*conditions).limit(wanted.limit + 1)
    rows = tx.execute(_ordered(tx, query, wanted)).all()
    page = paged(rows, wanted.limit, lambda row: str(row.id))
    return Paged([_row(row) for row in page.items], page.next)


def job_detail(tx: Tx, job_id: str) -> JobDetail:
    job, steps = show_job(tx, job_id)
    can_retry = job.state in (JobState.FAILED, JobState.CANCELED)
    can_cancel = job.state in (JobState.QUEUED, JobState.RUNNING)
    is_ready = tx.execute(select(jobs.c.ready).where(jobs.c.id == job.id)).scalar_one()
    phase = _phase(job.state, is_ready=is_ready)
    return JobDetail(job, phase, steps, can_retry, can_cancel, list(_links(tx, job.payload)))


def _phase(state: JobState, *, is_ready: bool) -> JobPhase:
    if state is JobState.QUEUED:
        return JobPhase.WAITING if is_ready else JobPhase.SCHEDULED
    return JobPhase(state)


_PLACES = {
    "action_id": ("Action", "/actions/"),
    "original_action_id": ("Action", "/actions/"),
    "application_id": ("Rule on past mail", "/rules/applications/"),
    "run_id": ("Mail put back", "/archive/restores/"),
    "run": ("Run", "/web/runs/"),
}


def _links(tx: Tx, payload: Any) -> Iterator[JobLink]:
    """Of the ids in a payload. An action or a message that is gone has no page, and so no link."""
    named = payload if isinstance(payload, dict) else {}
    ids = {name: value for name, value in named.items() if isinstance(value, str) and is_id(value)}
    for name in _PLACES.keys() & ids.keys():
        text, place = _PLACES[name]
        if text != "Action" or tx.execute(select(actions.c.id).where(actions.c.id == ids[name])).first():
            yield JobLink(text, f"{place}{ids[name]}")
    if "message_id" in ids:
        columns = ("endpoint_identity", "archive_key", "external_event_id", "subject")
        about = select(*(messages.c[name] for name in columns)).where(messages.c.id == ids["message_id"])
        row = tx.execute(about).one_or_none()
        if row is not None:
            key = row.archive_key or row.external_event_id
            yield JobLink(
                row.subject or "(no subject)", f"/mail/{quote(row.endpoint_identity, safe='@')}/{quote(key, safe='')}"
            )


def _ordered(tx: Tx, query: Select[Any], wanted: JobsQuery) -> Select[Any]:
    """In the order of the wanted state, from after the job that the previous page ended with."""
    start = row_before(tx, jobs, wanted.after)
    if wanted.state is None:
        return _NEWEST_FIRST.apply(query, start)
    return _ORDERS[wanted.state].apply(query.where(PHASE_CONDITIONS[wanted.state]), start)


def queue_tiers(tx: Tx) -> list[QueueTierRow]:
    """Every tier of every queue, also the empty ones."""
    return _tier_rows(*tx.batch((_WAITING_LINES, {}), (_RUNNING_LINES, {})))


def _tier_rows(waiting: Sequence[Sequence[Any]], running: Sequence[Sequence[Any]]) -> list[QueueTierRow]:
    lines = {(queue, tier): (jobs, read_time(since)) for queue, tier, jobs, since in waiting}
    busy = {(queue, tier): jobs for queue, tier, jobs in running}
    rows = []
    for queue, tier in product(QueueName, TIERS):
        jobs, since = lines.get((queue, tier), (0, None))
        rows.append(QueueTierRow(queue, tier, jobs, busy.get((queue, tier), 0), since))
    return rows


def _type_counts(found: Sequence[Sequence[Any]]) -> list[TypeCount]:
    counts = {(phase, name): jobs for phase, name, jobs in found}
    shown = (JobPhase.WAITING, JobPhase.RUNNING, JobPhase.FAILED)
    names = sorted({name for _, name, _ in found})
    return [TypeCount(name, *(counts.get((phase, name), 0) for phase in shown)) for name in names]


def _row(row: Any) -> JobRow:
    return JobRow(
        id=row.id,
        type=row.type,
        state=JobState(row.state),
        phase=_phase(JobState(row.state), is_ready=row.ready),
        queue=QueueName(row.queue_name),
        tier=Tier(row.policy_tier),
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        created_at=row.created_at,
        not_before=row.not_before,
        finished_at=row.finished_at,
        last_error=row.last_error,
    )


pages = pages_router()
api = api_router("queue")

SECTION = "queue"
JobsWanted = Annotated[JobsQuery, Query()]


class QueuePageQuery(JobsQuery):
    window: TimeWindow | None = None


@pages.get("/queue")
async def queue_page(here: Here, wanted: Annotated[QueuePageQuery, Query()]) -> Response:
    window = wanted.window or TimeWindow.DAY
    reading, overview, listed = await here.read(
        lambda tx: (
            read_series(tx, TOPICS[SeriesTopic.QUEUE], window, here.now),
            queue_overview(tx),
            list_jobs(tx, wanted),
        )
    )
    return await here.page(
        "queue/list.html",
        SECTION,
        overview=overview,
        jobs=listed,
        wanted=wanted,
        windows=window_links(
            "/queue", window, state=wanted.state, type=wanted.type, queue=wanted.queue, tier=wanted.tier
        ),
        panels=queue_panels(reading),
        types=sorted(job_type.name for job_type in here.app.queue.catalogue),
        states=list(JobPhase),
        queues=list(QueueName),
        tiers=list(Tier),
    )


@api.get("")
@permits(Permission.READ)
async def show_queue(here: Here) -> QueueOverview:
    """How many jobs are in each state, by queue and tier, and by type."""
    return await here.read(queue_overview)


@api.get("/jobs")
@permits(Permission.READ)
async def show_jobs(here: Here, wanted: JobsWanted) -> Paged[JobRow]:
    """Jobs: waiting ones in the order of service, scheduled ones by due time, all others newest first."""
    return await here.read(lambda tx: list_jobs(tx, wanted))


@pages.get("/queue/{job_id}")
async def job_page(here: Here, job_id: Id) -> Response:
    return await here.page("queue/job.html", SECTION, detail=await show_job_detail(here, job_id))


@api.get("/jobs/{job_id}")
@permits(Permission.READ)
async def show_job_detail(here: Here, job_id: Id) -> JobDetail:
    """One job with its payload, result and steps."""
    return await here.read(lambda tx: job_detail(tx, job_id))


_JobTurn = Literal["retry", "cancel"]
_JOB_TURNS: dict[str, tuple[ToolSignature[Any, Any], str]] = {
    "retry": (contract.RETRY_JOB, "The job is queued again, with all its attempts."),
    "cancel": (contract.CANCEL_JOB, "The job is cancelled."),
}


@pages.post("/queue/{job_id}/{turn}")
async def submit_turn(here: Here, job_id: Id, turn: _JobTurn) -> Response:
    await turn_job(here, job_id, turn)
    return await here.go(f"/queue/{job_id}", _JOB_TURNS[turn][1])


@api.post("/jobs/{job_id}/{turn}")
@permits(Permission.ACT)
async def turn_job(here: Here, job_id: Id, turn: _JobTurn) -> JobDetail:
    """`retry`: queue a failed or cancelled job again; `cancel`: cancel one that waits or runs."""
    await here.call(_JOB_TURNS[turn][0], {"job": job_id})
    return await show_job_detail(here, job_id)


@pages.post("/queue/retry")
async def submit_retry_many(here: Here) -> Response:
    return await _change_selected(here, contract.RETRY_JOBS, "queued again")


@api.post("/jobs/retry")
@permits(Permission.ACT)
async def retry_many(here: Here, which: contract.QueuedJobsArguments) -> contract.ChangedJobs:
    """Queue several failed or cancelled jobs again."""
    return await here.call(contract.RETRY_JOBS, which)


@pages.post("/queue/cancel")
async def submit_cancel_many(here: Here) -> Response:
    return await _change_selected(here, contract.CANCEL_JOBS, "cancelled")


@api.post("/jobs/cancel")
@permits(Permission.ACT)
async def cancel_many(here: Here, which: contract.QueuedJobsArguments) -> contract.ChangedJobs:
    """Cancel several jobs that wait or run."""
    return await here.call(contract.CANCEL_JOBS, which)


async def _change_selected(
    here: Here, tool: ToolSignature[contract.QueuedJobsArguments, contract.ChangedJobs], done: str
) -> Response:
    form = await here.form()
    state = chosen(JobPhase, form["state"], "state")
    back = f"/queue?{query_of(state=state, type=form['type'])}#jobs"
    ids = list(form.all("job"))
    if not ids:
        return await here.go(back, "Select at least one job first.")
    changed = await here.call(tool, {"jobs": ids})
    left = (
        f" {plural(len(changed.left), 'job')} left as before: {next(iter(changed.left.values()))}"
        if changed.left
        else ""
    )
    return await here.go(back, f"{plural(changed.jobs, 'job')} {done}.{left}")


@pages.post("/queue/retry-failed")
async def submit_retry_failed(here: Here) -> Response:
    job_type = (await here.form())["type"]
    retried = await here.call(contract.RETRY_FAILED_JOBS, {"type": job_type})
    left = f" {plural(len(retried.left), 'job')} left as before: nothing to try again." if retried.left else ""
    return await here.go(f"/queue?{query_of(type=job_type)}", f"{plural(retried.jobs, 'job')} queued again.{left}")


@api.post("/retry-failed")
@permits(Permission.ACT)
async def retry_failed(here: Here, which: contract.JobTypeArguments) -> contract.RetriedJobs:
    """Queue all failed jobs of a type again."""
    return await here.call(contract.RETRY_FAILED_JOBS, which)
