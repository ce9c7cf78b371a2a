"""One durable, fair queue for the whole product: mail in tiers, work by priority, on SQLite and PostgreSQL.

A claim is a lease, so no job is lost; a lease has a fence, so none completes twice; the guard keeps tiers from
starving.

What changes the queue takes SQLAlchemy, which is slow to load, and is imported when it is first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from postroom.domain.jobs import JobCatalogue, JobState, JobType, KeyUse, RetryPolicy, Schedule
from postroom.queue.job import ClaimedJob, Enqueued, NewJob, Postponed, QueueName

if TYPE_CHECKING:
    from postroom.queue.context import Handler, JobContext, LeaseLost, PutOff
    from postroom.queue.jobqueue import CancelOutcome, FailedJobs, JobQueue

__all__ = [
    "CancelOutcome",
    "ClaimedJob",
    "Enqueued",
    "FailedJobs",
    "Handler",
    "JobCatalogue",
    "JobContext",
    "JobQueue",
    "JobState",
    "JobType",
    "KeyUse",
    "LeaseLost",
    "NewJob",
    "Postponed",
    "PutOff",
    "QueueName",
    "RetryPolicy",
    "Schedule",
]

_MODULES = {
    **dict.fromkeys(["Handler", "JobContext", "LeaseLost", "PutOff"], "context"),
    **dict.fromkeys(["CancelOutcome", "FailedJobs", "JobQueue"], "jobqueue"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
