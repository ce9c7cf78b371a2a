"""Every job type, and what recurs.

Jobs of actions may be repeated under their key: what was done is recorded with the action, so another run finds
that out, and a person can retry a failed action.
"""

from __future__ import annotations

from datetime import timedelta

from postroom.accounts.account import Account
from postroom.accounts.account_jobs import EACH_ACCOUNT, for_each_account, job_of
from postroom.actions.approvals import EXPIRE, EXPIRE_HOURLY
from postroom.actions.discord.notify import NOTIFY
from postroom.actions.executor import UPKEEP as ACTIONS_UPKEEP
from postroom.actions.executor import UPKEEP_SCHEDULE as ACTIONS_UPKEEP_SCHEDULE
from postroom.actions.outbound.request import SEND
from postroom.actions.undo import UNDO_MANY
from postroom.domain import jobs
from postroom.queue import JobCatalogue, JobType, KeyUse, NewJob, RetryPolicy, Schedule
from postroom.queue.retention import PRUNE, PRUNE_DAILY
from postroom.settings import OFF, Settings
from postroom.switchboard import contacts, retention
from postroom.switchboard.backfill.operations import UPKEEP, UPKEEP_EVERY_MINUTE
from postroom.switchboard.on_demand import ON_DEMAND
from postroom.sync.service import ARCHIVE_JOB, BAD_RETRY_JOB, SYNC_JOB
from postroom.web import web_jobs as web

CLASSIFY = JobType(
    jobs.CLASSIFY,
    retry=RetryPolicy(max_attempts=8, longest_delay=timedelta(hours=1)),
    time_limit=timedelta(minutes=15),
)


_OVER_AN_OUTAGE = RetryPolicy(max_attempts=8)
"""About three hours."""
_OVER_A_DAY = RetryPolicy(max_attempts=30)
"""Mail that is hidden must come back, however long Gmail is away."""
_ONCE_MORE = RetryPolicy(max_attempts=2)
"""For what comes again by itself."""

ACTION = JobType(jobs.ACTION, KeyUse.REPEATABLE, _OVER_AN_OUTAGE)
UNSNOOZE = JobType(jobs.UNSNOOZE, KeyUse.REPEATABLE, _OVER_A_DAY)
UNDO = JobType(jobs.UNDO, KeyUse.REPEATABLE, _OVER_AN_OUTAGE)
LABELS_SYNC = JobType(jobs.LABELS_SYNC, KeyUse.REPEATABLE, _ONCE_MORE, keep_completed=100)
SNOOZE_CHECK = JobType(jobs.SNOOZE_CHECK, keep_completed=100)


_TEN_MINUTES = timedelta(minutes=10)
"""For what comes again by itself a minute later."""

HISTORY_SYNC = JobType("history.sync.gmail", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(hours=6), keep_completed=100)
INGEST = JobType("ingest.gmail", time_limit=_TEN_MINUTES)
BACKFILL = JobType("backfill.gmail", KeyUse.REPEATABLE, _ONCE_MORE, timedelta(hours=6), keep_completed=100)
"""A backfill proper gives way after some minutes; filling a gap takes as long as the mailbox is large."""
PASSES = (HISTORY_SYNC, INGEST, BACKFILL, ON_DEMAND)
OF_ACCOUNTS = (SYNC_JOB, BAD_RETRY_JOB, ARCHIVE_JOB, HISTORY_SYNC, BACKFILL, LABELS_SYNC)
"""Those that a schedule may start for each account."""

CATALOGUE = JobCatalogue(
    [
        PRUNE,
        retention.PRUNE,
        UPKEEP,
        contacts.EXPORT,
        CLASSIFY,
        EACH_ACCOUNT,
        SYNC_JOB,
        BAD_RETRY_JOB,
        ARCHIVE_JOB,
        ACTION,
        UNSNOOZE,
        SNOOZE_CHECK,
        UNDO,
        UNDO_MANY,
        LABELS_SYNC,
        ACTIONS_UPKEEP,
        SEND,
        NOTIFY,
        EXPIRE,
        *PASSES,
        *web.JOB_TYPES,
    ]
)


def gap_job(account: Account, since: str) -> NewJob:
    """Fills what Gmail's history no longer tells. Live work: the kill switch of backfills does not hold it up."""
    payload = {"account_id": account.id, "gap": since}
    return NewJob(BACKFILL.name, payload, key=gap_key(account))


def gap_key(account: Account) -> str:
    return f"{BACKFILL.name}:{account.id}:gap"


def first_jobs(account: Account, settings: Settings) -> list[NewJob]:
    """What an account that was just added does not wait for the next tick with; what is switched off stays off."""
    recurring = settings.recurring
    cadences = {HISTORY_SYNC: recurring.live, SYNC_JOB: recurring.sync}
    wanted = [LABELS_SYNC, *(job_type for job_type, cadence in cadences.items() if cadence != OFF)]
    return [job_of(job_type.name, account) for job_type in wanted]


def schedules(settings: Settings) -> list[Schedule]:
    """What recurs, without what is switched off."""
    recurring = settings.recurring
    cadences = {
        SYNC_JOB: recurring.sync,
        BAD_RETRY_JOB: recurring.bad_messages,
        ARCHIVE_JOB: recurring.archiver if settings.archiver.enabled else OFF,
        HISTORY_SYNC: recurring.live,
        BACKFILL: recurring.backfill if settings.backfill.enabled else OFF,
        LABELS_SYNC: recurring.labels,
    }
    of_accounts = [for_each_account(job_type, cadence) for job_type, cadence in cadences.items() if cadence != OFF]
    of_web = [] if recurring.sentinel == OFF else [web.sentinel_schedule(recurring.sentinel)]
    upkeep = [UPKEEP_EVERY_MINUTE, ACTIONS_UPKEEP_SCHEDULE, EXPIRE_HOURLY, web.UPKEEP_EVERY_MINUTE]
    return [PRUNE_DAILY, retention.PRUNE_DAILY, *upkeep, contacts.EXPORT_SCHEDULE, *of_accounts, *of_web]
