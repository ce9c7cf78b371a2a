"""One durable, fair queue for the whole product: mail in tiers, work by priority, on SQLite and PostgreSQL.

Nothing is lost (a claim is a lease), nothing is completed twice (a lease has a fence), nobody starves (the guard).
"""

from postroom.queue.catalogue import Catalogue, JobType, KeyUse, RetryPolicy
from postroom.queue.context import Handler, JobContext
from postroom.queue.control import CancelOutcome, FailedJobs
from postroom.queue.jobqueue import JobQueue
from postroom.queue.model import ClaimedJob, Enqueued, JobState, NewJob, QueueName
from postroom.queue.outcome import Postponed
from postroom.queue.schedules import Schedule
from postroom.queue.steps import LeaseLost
from postroom.queue.worker import Worker

__all__ = [
    "CancelOutcome",
    "Catalogue",
    "ClaimedJob",
    "Enqueued",
    "FailedJobs",
    "Handler",
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
