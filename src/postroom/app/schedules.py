"""The recurring jobs of an installation, the first jobs of a new account, and the jobs for a gap in history and for a
deferred message.
"""

from __future__ import annotations

from datetime import datetime

from postroom.accounts.account import Account
from postroom.accounts.account_jobs import for_each_account, job_of
from postroom.app.digest.content import zone_of
from postroom.domain import jobs
from postroom.domain.extras import Extra, is_installed
from postroom.queue import NewJob
from postroom.settings import OFF, Settings


def gap_job(account: Account) -> NewJob:
    """Walks what Gmail's history no longer reports. It is live work: the kill switch of backfills does not stop it."""
    payload = {"account_id": account.id, "gap": True}
    return NewJob(jobs.BACKFILL.name, payload, key=gap_key(account))


def gap_key(account: Account) -> str:
    return f"{jobs.BACKFILL.name}:{account.id}:gap"


def ingest_job(account_id: str, message_id: str, not_before: datetime) -> NewJob:
    """Takes in one message that a live pass could not."""
    payload = {"account_id": account_id, "message_ids": [message_id]}
    return NewJob(jobs.INGEST.name, payload, key=f"{jobs.INGEST.name}:{account_id}:{message_id}", not_before=not_before)


def first_jobs(account: Account, settings: Settings) -> list[NewJob]:
    """The recurring jobs that a new account starts at once, without those that are switched off."""
    recurring = settings.recurring
    cadences = {jobs.HISTORY_SYNC: recurring.live, jobs.SYNC: recurring.sync}
    wanted = [jobs.LABELS_SYNC, *(job_type for job_type, cadence in cadences.items() if cadence != OFF)]
    return [job_of(job_type.name, account) for job_type in wanted]


def schedules(settings: Settings, *, asks_in_discord: bool | None = None) -> list[jobs.Schedule]:
    """All recurring jobs, without those that are switched off. The bot's token may be in the vault."""
    recurring = settings.recurring
    cadences = {
        jobs.SYNC: recurring.sync,
        jobs.SYNC_BAD: recurring.bad_messages,
        jobs.ARCHIVE: recurring.archiver if settings.archiver.enabled else OFF,
        jobs.HISTORY_SYNC: recurring.live,
        jobs.BACKFILL: recurring.backfill if settings.backfill.enabled else OFF,
        jobs.LABELS_SYNC: recurring.labels,
        jobs.LEARNING_FIT: recurring.learning if settings.learning.enabled else OFF,
    }
    of_accounts = [for_each_account(job_type, cadence) for job_type, cadence in cadences.items() if cadence != OFF]
    of_web = [] if recurring.sentinel == OFF else [jobs.sentinel_schedule(recurring.sentinel)]
    if asks_in_discord is None:
        asks_in_discord = settings.discord.bot_token is not None
    of_discord = [jobs.LOGIN_NOTICES] if asks_in_discord else []
    digest = settings.digest
    of_digest = [] if digest.every == OFF else [jobs.digest_schedule(digest.at, zone_of(settings).key)]
    of_meaning = [jobs.VECTORS] if is_installed(Extra.MEANING) else []
    return [*jobs.FIXED_SCHEDULES, *of_meaning, *of_accounts, *of_web, *of_discord, *of_digest]
