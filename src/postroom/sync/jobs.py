"""The recurring jobs: sync, bad-message retries and the archiver, each of them a job an account.

A schedule fires one job that looks up the accounts of that moment, so that an account added later needs no new
schedule. Where another process has the archive or reads the account's changes, a job ends well and says so: that
process is doing its work.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from postroom.accounts.history import ReaderElsewhere, ReaderLost
from postroom.accounts.store import Account, get_account, list_accounts
from postroom.archive.ownership import OwnedElsewhere
from postroom.domain.errors import BadInput
from postroom.queue import Handler, JobContext, JobType, KeyUse, NewJob, Schedule
from postroom.queue.catalogue import RetryPolicy
from postroom.queue.model import Json
from postroom.settings import Settings
from postroom.sync.archiver.service import ArchiverService
from postroom.sync.service import SyncService

OFF = "off"
_DAYS = timedelta(days=14)
"""A first sync may take days; its lease tells whether it is alive."""
_RETRY = RetryPolicy(max_attempts=3)

EACH_ACCOUNT = JobType("accounts.each", KeyUse.REPEATABLE)
SYNC = JobType("sync.gmail", KeyUse.REPEATABLE, _RETRY, _DAYS, keep_completed=100)
BAD_RETRY = JobType("sync.bad.gmail", KeyUse.REPEATABLE, _RETRY, timedelta(hours=6), keep_completed=100)
ARCHIVE = JobType("archive.gmail", KeyUse.REPEATABLE, _RETRY, _DAYS, keep_completed=100)
JOB_TYPES = (EACH_ACCOUNT, SYNC, BAD_RETRY, ARCHIVE)

ForAccount = Callable[[Account], Awaitable[Json]]


def schedules(settings: Settings) -> list[Schedule]:
    """Of those that are not switched off."""
    recurring = settings.recurring
    cadences = {
        SYNC: recurring.sync,
        BAD_RETRY: recurring.bad_messages,
        ARCHIVE: recurring.archiver if settings.archiver.enabled else OFF,
    }
    return [_schedule(job_type, cadence) for job_type, cadence in cadences.items() if cadence != OFF]


def handlers(sync: SyncService, archiver: ArchiverService) -> dict[str, Handler]:
    """What this process needs to run these jobs."""

    async def bring(account: Account) -> Json:
        async with sync.opened([account], "a sync job") as [one]:
            await one.engine.run(once=True)
            done = one.progress()
        return {"stored": done.stored, "known": done.known, "bad": done.bad, "watermark": done.watermark}

    async def retry(account: Account) -> Json:
        retried = await sync.retry_bad(account, None, "a job that retries bad messages", only_due=True)
        counts = (len(retried.stored), len(retried.gone), len(retried.still_bad))
        return dict(zip(("stored", "gone", "still_bad"), counts, strict=True))

    async def archive(account: Account) -> Json:
        if not archiver.settings.archiver.enabled:
            return {"skipped": "archiver.enabled is not set."}
        async with archiver.opened(account, archiver.policy()) as one:
            report = await one.run()
        return {"removed": report.removed, "stays": {str(why): count for why, count in report.stays.items()}}

    return {
        EACH_ACCOUNT.name: _each_account,
        SYNC.name: _for_account(bring),
        BAD_RETRY.name: _for_account(retry),
        ARCHIVE.name: _for_account(archive),
    }


def _schedule(job_type: JobType, cadence: str) -> Schedule:
    return Schedule(job_type.name, EACH_ACCOUNT.name, cadence, {"type": job_type.name})


async def _each_account(context: JobContext) -> Json:
    """One job for each account in use; while one of them is waiting or at work, it stands for this one too."""
    job_type = context.job.payload.get("type")
    if job_type not in {each.name for each in (SYNC, BAD_RETRY, ARCHIVE)}:
        raise BadInput("type", f"{job_type!r} is not a job of an account")
    accounts = await context.queue.database.read(list_accounts)
    jobs = [NewJob(job_type, {"account": each.email}, key=f"{job_type}:{each.id}") for each in accounts]
    await context.complete(lambda tx: {"jobs": [each.job_id for each in context.queue.add(tx, *jobs)]})
    return None


def _for_account(work: ForAccount) -> Handler:
    async def handle(context: JobContext) -> Json:
        email = context.job.payload.get("account")
        if not isinstance(email, str):
            raise BadInput("account", "a job of an account names it")
        account = await context.queue.database.read(lambda tx: get_account(tx, email))
        try:
            return await work(account)
        except (OwnedElsewhere, ReaderElsewhere, ReaderLost) as error:
            return {"skipped": error.message}

    return handle
