"""One durable, fair queue for the whole product: mail in tiers, work by priority, on SQLite and PostgreSQL.

Nothing is lost (a claim is a lease), nothing is completed twice (a lease has a fence), nobody starves (the guard).
"""

from postroom.domain.jobs import JobCatalogue, JobType, KeyUse, RetryPolicy, Schedule
from postroom.queue.context import Handler, JobContext, LeaseLost
from postroom.queue.job import ClaimedJob, Enqueued, JobState, NewJob, QueueName
from postroom.queue.jobqueue import CancelOutcome, FailedJobs, JobQueue
from postroom.queue.outcome import Postponed
from postroom.queue.worker import Worker

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
    "Worker",
]
