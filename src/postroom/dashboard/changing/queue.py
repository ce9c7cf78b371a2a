"""Retrying and cancelling jobs by hand."""

from __future__ import annotations

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.queue import CancelOutcome, FailedJobs, JobQueue, JobState

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
