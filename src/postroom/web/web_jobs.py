"""How jobs of web sources are enqueued; the lane and status of a discovered item."""

from __future__ import annotations

from enum import StrEnum

from postroom.domain.jobs import WEB_BACKFILL, WEB_FETCH, WEB_SENTINEL, WEB_VERIFY
from postroom.queue import NewJob, QueueName, Schedule


class DiscoveryMethod(StrEnum):
    """The lane that found an item first."""

    SENTINEL = "SENTINEL"
    BACKFILL = "BACKFILL"


class ItemStatus(StrEnum):
    PENDING = "PENDING"
    FETCHED = "FETCHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


def sentinel_schedule(cadence: str) -> Schedule:
    return Schedule(WEB_SENTINEL.name, WEB_SENTINEL.name, cadence)


def sentinel_job() -> NewJob:
    """A look before its time. It has the schedule's key, so that there is one look at a time."""
    return NewJob(WEB_SENTINEL.name, {}, key=sentinel_schedule("").job_key)


def fetch_job(item_id: str, key: str, method: DiscoveryMethod) -> NewJob:
    """The job that fetches an item."""
    return NewJob(WEB_FETCH.name, {"item": item_id}, queue=_queue(method), key=key)


def verify_job(item_id: str, method: DiscoveryMethod = DiscoveryMethod.SENTINEL) -> NewJob:
    """The job that looks at an item's page again."""
    return NewJob(WEB_VERIFY.name, {"item": item_id}, queue=_queue(method), key=f"verify:{item_id}")


def backfill_job(run_id: str) -> NewJob:
    """The job that drives a run."""
    return NewJob(WEB_BACKFILL.name, {"run": run_id}, queue=QueueName.HISTORY, key=f"web.backfill:{run_id}")


def _queue(method: DiscoveryMethod) -> QueueName:
    """History's queue, for backfill, has only the slots that others leave idle."""
    return QueueName.HISTORY if method is DiscoveryMethod.BACKFILL else QueueName.WORK
