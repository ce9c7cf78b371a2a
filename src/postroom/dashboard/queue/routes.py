"""Pages and API of the queue: what waits, runs and failed; one job with its steps; retry and cancel."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.context import Here
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import FilterChoice, chosen, query_of
from postroom.dashboard.paging import PAGE, After, AfterId, Limit, Paged
from postroom.dashboard.queue.queries import (
    JobDetail,
    JobPhase,
    JobRow,
    JobsWanted,
    QueueOverview,
    job_detail,
    list_jobs,
    queue_overview,
)
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission
from postroom.domain.tiers import Tier
from postroom.queue import CancelOutcome, FailedJobs, JobQueue, JobState, QueueName

SUBJECT = "job"


def retry_job(tx: Tx, queue: JobQueue, job_id: str, who: Actor) -> None:
    queue.retry_within(tx, job_id)
    audit.record(tx, who, "job.retry", (SUBJECT, job_id), queue.clock.now(), after={"state": JobState.QUEUED})


def retry_failed_jobs(tx: Tx, queue: JobQueue, job_type: str, who: Actor) -> int:
    """All failed jobs of a type; how many there were."""
    ids = queue.retry_failed_within(tx, FailedJobs(type=job_type))
    if ids:
        audit.record(tx, who, "job.retry_failed", ("job_type", job_type), queue.clock.now(), after={"jobs": len(ids)})
    return len(ids)


def cancel_job(tx: Tx, queue: JobQueue, job_id: str, who: Actor) -> None:
    """One that waits or runs. One that has finished cannot be cancelled, and the person should know."""
    match queue.cancel_within(tx, job_id):
        case CancelOutcome.JOB_NOT_FOUND:
            raise NotFound("job", f"there is no job {job_id}")
        case CancelOutcome.NOT_RUNNING:
            raise BadInput("job", "has already finished, so it cannot be cancelled")
        case CancelOutcome.CANCELED:
            audit.record(tx, who, "job.cancel", (SUBJECT, job_id), queue.clock.now(), after={"state": "canceled"})


pages = pages_router()

SECTION = "queue"


@pages.get("/queue")
async def queue_page(
    here: Here,
    state: FilterChoice = "",
    type: FilterChoice = "",
    queue: FilterChoice = "",
    tier: FilterChoice = "",
    after: After = None,
) -> Response:
    wanted = JobsWanted(
        chosen(JobPhase, state, "state"),
        type or None,
        chosen(QueueName, queue, "queue"),
        chosen(Tier, tier, "tier"),
        after or None,
    )
    overview = await here.read(queue_overview)
    jobs = await here.read(lambda tx: list_jobs(tx, wanted))
    return await here.page(
        "queue/list.html",
        SECTION,
        overview=overview,
        jobs=jobs,
        wanted=wanted,
        filter=query_of(state=wanted.standing, type=wanted.type, queue=wanted.queue, tier=wanted.tier),
        types=sorted(job_type.name for job_type in here.app.queue.catalogue),
        standings=list(JobPhase),
        queues=list(QueueName),
        tiers=list(Tier),
    )


@pages.get("/queue/{job_id}")
async def job_page(here: Here, job_id: str) -> Response:
    detail = await here.read(lambda tx: job_detail(tx, job_id))
    return await here.page("queue/job.html", SECTION, detail=detail)


@pages.post("/queue/retry-failed")
async def submit_retry_failed(here: Here) -> Response:
    job_type = here.app.queue.catalogue[(await here.form())["type"]].name
    count = await here.write(lambda tx: retry_failed_jobs(tx, here.app.queue, job_type, here.actor))
    return await here.go(f"/queue?type={job_type}", f"{plural(count, 'job')} queued again.")


@pages.post("/queue/{job_id}/retry")
async def submit_retry(here: Here, job_id: str) -> Response:
    await here.write(lambda tx: retry_job(tx, here.app.queue, job_id, here.actor))
    return await here.go(f"/queue/{job_id}", "The job is queued again, with all its attempts before it.")


@pages.post("/queue/{job_id}/cancel")
async def submit_cancel(here: Here, job_id: str) -> Response:
    await here.write(lambda tx: cancel_job(tx, here.app.queue, job_id, here.actor))
    return await here.go(f"/queue/{job_id}", "The job is cancelled.")


api = api_router("queue")


class RetryFailedWanted(BaseModel, extra="forbid"):
    type: str = Field(max_length=100, description="the job type, for example classify")


class RetriedJobs(BaseModel):
    jobs: int


@api.get("")
@permits(Permission.READ)
async def overview(here: Here) -> QueueOverview:
    """How many jobs stand how, by queue and tier, and by type."""
    return await here.read(queue_overview)


@api.get("/jobs")
@permits(Permission.READ)
async def jobs(
    here: Here,
    state: JobPhase | None = None,
    type: Annotated[str | None, Query(max_length=100)] = None,
    queue: QueueName | None = None,
    tier: Tier | None = None,
    after: AfterId = None,
    limit: Limit = PAGE,
) -> Paged[JobRow]:
    """Jobs: waiting ones as they are served, scheduled ones as they fall due, all others newest first."""
    wanted = JobsWanted(state, type, queue, tier, None if after is None else str(after), limit)
    return await here.read(lambda tx: list_jobs(tx, wanted))


@api.get("/jobs/{job_id}")
@permits(Permission.READ)
async def job(here: Here, job_id: UUID) -> JobDetail:
    """One job with its payload, result and steps."""
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@api.post("/jobs/{job_id}/retry")
@permits(Permission.ACT)
async def retry(here: Here, job_id: UUID) -> JobDetail:
    """Queue a failed or cancelled job again."""
    await here.write(lambda tx: retry_job(tx, here.app.queue, str(job_id), here.actor))
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@api.post("/jobs/{job_id}/cancel")
@permits(Permission.ACT)
async def cancel(here: Here, job_id: UUID) -> JobDetail:
    """Cancel a job that waits or runs."""
    await here.write(lambda tx: cancel_job(tx, here.app.queue, str(job_id), here.actor))
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@api.post("/retry-failed")
@permits(Permission.ACT)
async def retry_failed(here: Here, which: RetryFailedWanted) -> RetriedJobs:
    """Queue all failed jobs of a type again."""
    job_type = here.app.queue.catalogue[which.type].name
    count = await here.write(lambda tx: retry_failed_jobs(tx, here.app.queue, job_type, here.actor))
    return RetriedJobs(jobs=count)
