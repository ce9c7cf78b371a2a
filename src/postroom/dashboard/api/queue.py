"""`/api/queue`: the same as the Queue page."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.queue import cancel_job, retry_failed_jobs, retry_job
from postroom.dashboard.paging import PAGE, AfterId, Limit, Paged
from postroom.dashboard.reading.queue import (
    JobDetail,
    JobRow,
    JobsWanted,
    QueueOverview,
    Standing,
    job_detail,
    list_jobs,
    queue_overview,
)
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.domain.tiers import Tier
from postroom.queue import QueueName

router = api_router("queue")


class RetryFailed(BaseModel, extra="forbid"):
    type: str = Field(max_length=100, description="the job type, for example classify")


class Retried(BaseModel):
    jobs: int


@router.get("")
@permits(Permission.READ)
async def overview(here: Here) -> QueueOverview:
    """How many jobs stand how, by queue and tier, and by type."""
    return await here.read(queue_overview)


@router.get("/jobs")
@permits(Permission.READ)
async def jobs(
    here: Here,
    state: Standing | None = None,
    type: Annotated[str | None, Query(max_length=100)] = None,
    queue: QueueName | None = None,
    tier: Tier | None = None,
    after: AfterId = None,
    limit: Limit = PAGE,
) -> Paged[JobRow]:
    """Jobs: waiting ones as they are served, scheduled ones as they fall due, all others newest first."""
    wanted = JobsWanted(state, type, queue, tier, None if after is None else str(after), limit)
    return await here.read(lambda tx: list_jobs(tx, wanted))


@router.get("/jobs/{job_id}")
@permits(Permission.READ)
async def job(here: Here, job_id: UUID) -> JobDetail:
    """One job with its payload, result and steps."""
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@router.post("/jobs/{job_id}/retry")
@permits(Permission.ACT)
async def retry(here: Here, job_id: UUID) -> JobDetail:
    """Queue a failed or cancelled job again."""
    await here.write(lambda tx: retry_job(tx, here.app.queue, str(job_id), here.actor))
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@router.post("/jobs/{job_id}/cancel")
@permits(Permission.ACT)
async def cancel(here: Here, job_id: UUID) -> JobDetail:
    """Cancel a job that waits or runs."""
    await here.write(lambda tx: cancel_job(tx, here.app.queue, str(job_id), here.actor))
    return await here.read(lambda tx: job_detail(tx, str(job_id)))


@router.post("/retry-failed")
@permits(Permission.ACT)
async def retry_failed(here: Here, which: RetryFailed) -> Retried:
    """Queue all failed jobs of a type again."""
    job_type = here.app.queue.catalogue[which.type].name
    count = await here.write(lambda tx: retry_failed_jobs(tx, here.app.queue, job_type, here.actor))
    return Retried(jobs=count)
