"""The job types of web sources, what recurs, and how each is enqueued; the lane and status of a discovered item.

Every command loads this module, so it imports nothing heavy.
"""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from postroom.queue import JobType, KeyUse, NewJob, QueueName, RetryPolicy, Schedule


class DiscoveryMethod(StrEnum):
    """The lane that found an item first."""

    SENTINEL = "SENTINEL"
    BACKFILL = "BACKFILL"


class ItemStatus(StrEnum):
    PENDING = "PENDING"
    FETCHED = "FETCHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


_PAGE_RETRY = RetryPolicy(max_attempts=3, first_delay=timedelta(seconds=30), factor=2.0)
_PAGE_LIMIT = timedelta(minutes=15)

FETCH = JobType("web.fetch", KeyUse.ONCE, _PAGE_RETRY, _PAGE_LIMIT, keep_completed=100, keep_failed=50)
VERIFY = JobType("web.verify", KeyUse.REPEATABLE, _PAGE_RETRY, _PAGE_LIMIT, keep_completed=100, keep_failed=50)
SENTINEL = JobType(
    "web.sentinel", KeyUse.REPEATABLE, RetryPolicy(max_attempts=2), timedelta(hours=6), keep_completed=30
)
BACKFILL = JobType("web.backfill", KeyUse.REPEATABLE, RetryPolicy(max_attempts=3), timedelta(hours=24))
UPKEEP = JobType("web.upkeep", KeyUse.REPEATABLE, time_limit=timedelta(minutes=5), keep_completed=1)
JOB_TYPES = (FETCH, VERIFY, SENTINEL, BACKFILL, UPKEEP)

UPKEEP_EVERY_MINUTE = Schedule("web.upkeep", UPKEEP.name, "every 1m")


SENTINEL_SCHEDULE = "web.sentinel"


def sentinel_schedule(cadence: str) -> Schedule:
    return Schedule(SENTINEL_SCHEDULE, SENTINEL.name, cadence)


def sentinel_job() -> NewJob:
    """A look before its time. It has the schedule's key, so that there is one look at a time."""
    return NewJob(SENTINEL.name, {}, key=sentinel_schedule("").job_key)


def fetch_job(item_id: str, key: str, method: DiscoveryMethod) -> NewJob:
    """The job that fetches an item."""
    return NewJob(FETCH.name, {"item": item_id}, queue=_queue(method), key=key)


def verify_job(item_id: str, method: DiscoveryMethod = DiscoveryMethod.SENTINEL) -> NewJob:
    """The job that looks at an item's page again."""
    return NewJob(VERIFY.name, {"item": item_id}, queue=_queue(method), key=f"verify:{item_id}")


def backfill_job(run_id: str) -> NewJob:
    """The job that drives a run."""
    return NewJob(BACKFILL.name, {"run": run_id}, queue=QueueName.HISTORY, key=f"web.backfill:{run_id}")


def _queue(method: DiscoveryMethod) -> QueueName:
    """History's queue, for backfill, has only the slots that others leave idle."""
    return QueueName.HISTORY if method is DiscoveryMethod.BACKFILL else QueueName.WORK
