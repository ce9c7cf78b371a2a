"""The recurring jobs of an installation, the first jobs of a new account, and the jobs for a gap in history and for a
deferred message.
"""

from __future__ import annotations

from datetime import datetime

from postroom.accounts.account import Account
from postroom.accounts.account_jobs import for_each_account, job_of
from postroom.app.digest.period import zone_of
from postroom.domain.jobs import (
    ARCHIVE,
    BACKFILL,
    FIXED_SCHEDULES,
    HISTORY_SYNC,
    INGEST,
    LABELS_SYNC,
    LEARNING_FIT,
    LOGIN_NOTICES,
    SYNC,
    SYNC_BAD,
    Schedule,
    digest_schedule,
    sentinel_schedule,
)
from postroom.queue import NewJob
from postroom.settings import OFF, Settings


def gap_job(account: Account) -> NewJob:
    """Walks what Gmail's history no longer reports. It is live work: the kill switch of backfills does not stop it."""
    payload = {"account_id": account.id, "gap": True}
    return NewJob(BACKFILL.name, payload, key=gap_key(account))


def gap_key(account: Account) -> str:
    return f"{BACKFILL.name}:{account.id}:gap"


def ingest_job(account_id: str, message_id: str, not_before: datetime) -> NewJob:
    """Takes in one message that a live pass could not."""
    payload = {"account_id": account_id, "message_ids": [message_id]}
    return NewJob(INGEST.name, payload, key=f"{INGEST.name}:{account_id}:{message_id}", not_before=not_before)


def first_jobs(account: Account, settings: Settings) -> list[NewJob]:
    """The recurring jobs that a new account starts at once, without those that are switched off."""
    recurring = settings.recurring
    cadences = {HISTORY_SYNC: recurring.live, SYNC: recurring.sync}
    wanted = [LABELS_SYNC, *(job_type for job_type, cadence in cadences.items() if cadence != OFF)]
    return [job_of(job_type.name, account) for job_type in wanted]


def schedules(settings: Settings, *, asks_in_discord: bool | None = None) -> list[Schedule]:
    """All recurring jobs, without those that are switched off. The bot's token may be in the vault."""
    recurring = settings.recurring
    cadences = {
        SYNC: recurring.sync,
        SYNC_BAD: recurring.bad_messages,
        ARCHIVE: recurring.archiver if settings.archiver.enabled else OFF,
        HISTORY_SYNC: recurring.live,
        BACKFILL: recurring.backfill if settings.backfill.enabled else OFF,
        LABELS_SYNC: recurring.labels,
        LEARNING_FIT: recurring.learning if settings.learning.enabled else OFF,
    }
    of_accounts = [for_each_account(job_type, cadence) for job_type, cadence in cadences.items() if cadence != OFF]
    of_web = [] if recurring.sentinel == OFF else [sentinel_schedule(recurring.sentinel)]
    if asks_in_discord is None:
        asks_in_discord = settings.discord.bot_token is not None
    of_discord = [LOGIN_NOTICES] if asks_in_discord else []
    digest = settings.digest
    of_digest = [] if digest.every == OFF else [digest_schedule(digest.at, zone_of(settings).key)]
    return [*FIXED_SCHEDULES, *of_accounts, *of_web, *of_discord, *of_digest]
