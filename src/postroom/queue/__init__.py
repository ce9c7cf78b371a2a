"""One durable, fair queue for the whole product: mail in tiers, work by priority, on SQLite and PostgreSQL.

A claim is a lease, so no job is lost; a lease has a fence, so none completes twice; the guard keeps tiers from
starving.
"""

from postroom.domain.jobs import JobCatalogue, JobState, JobType, KeyUse, RetryPolicy, Schedule
from postroom.queue.context import Handler, JobContext, LeaseLost
from postroom.queue.job import ClaimedJob, Enqueued, NewJob, QueueName
from postroom.queue.jobqueue import CancelOutcome, FailedJobs, JobQueue
from postroom.queue.outcome import Postponed

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
    "QueueName",
    "RetryPolicy",
    "Schedule",
]
