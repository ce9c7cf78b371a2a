"""Queue: what waits, runs and failed; one job with its steps; retry and cancel."""

from __future__ import annotations

from starlette.responses import Response

from postroom.dashboard.changing.queue import cancel_job, retry_failed_jobs, retry_job
from postroom.dashboard.choosing import Choice, chosen, query_of
from postroom.dashboard.pages import pages_router
from postroom.dashboard.paging import After
from postroom.dashboard.reading.queue import JobsWanted, Standing, job_detail, list_jobs, queue_overview
from postroom.dashboard.visit import Here
from postroom.dashboard.wording import plural
from postroom.domain.tiers import Tier
from postroom.queue import QueueName

router = pages_router()

SECTION = "queue"


@router.get("/queue")
async def queue(
    here: Here, state: Choice = "", type: Choice = "", queue: Choice = "", tier: Choice = "", after: After = None
) -> Response:
    wanted = JobsWanted(
        chosen(Standing, state, "state"),
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
        standings=list(Standing),
        queues=list(QueueName),
        tiers=list(Tier),
    )


@router.get("/queue/{job_id}")
async def job(here: Here, job_id: str) -> Response:
    detail = await here.read(lambda tx: job_detail(tx, job_id))
    return await here.page("queue/job.html", SECTION, detail=detail)


@router.post("/queue/retry-failed")
async def retry_failed(here: Here) -> Response:
    job_type = here.app.queue.catalogue[(await here.form())["type"]].name
    count = await here.write(lambda tx: retry_failed_jobs(tx, here.app.queue, job_type, here.actor))
    return await here.go(f"/queue?type={job_type}", f"{plural(count, 'job')} queued again.")


@router.post("/queue/{job_id}/retry")
async def retry(here: Here, job_id: str) -> Response:
    await here.write(lambda tx: retry_job(tx, here.app.queue, job_id, here.actor))
    return await here.go(f"/queue/{job_id}", "The job is queued again, with all its attempts before it.")


@router.post("/queue/{job_id}/cancel")
async def cancel(here: Here, job_id: str) -> Response:
    await here.write(lambda tx: cancel_job(tx, here.app.queue, job_id, here.actor))
    return await here.go(f"/queue/{job_id}", "The job is cancelled.")
