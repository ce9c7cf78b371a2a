"""The recurring jobs: sync, bad-message retries and the archiver, each of them a job an account.

Where another process has the archive or reads the account's changes, a job ends well and says so: that process is
doing its work. Only a Switchboard on files, without `postroom up`, does none of it; `postroom doctor` warns of that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from postroom.accounts.history import ReaderElsewhere, ReaderLost
from postroom.accounts.jobs import account_of
from postroom.accounts.store import Account
from postroom.archive.ownership import OwnedElsewhere
from postroom.queue import Handler, JobContext, JobType, KeyUse
from postroom.queue.catalogue import RetryPolicy
from postroom.queue.model import Json
from postroom.sync.archiver.service import ArchiverService
from postroom.sync.service import SyncService

_DAYS = timedelta(days=14)
"""A first sync may take days; its lease tells whether it is alive."""
_RETRY = RetryPolicy(max_attempts=3)

SYNC = JobType("sync.gmail", KeyUse.REPEATABLE, _RETRY, _DAYS, keep_completed=100)
BAD_RETRY = JobType("sync.bad.gmail", KeyUse.REPEATABLE, _RETRY, timedelta(hours=6), keep_completed=100)
ARCHIVE = JobType("archive.gmail", KeyUse.REPEATABLE, _RETRY, _DAYS, keep_completed=100)

ForAccount = Callable[[Account], Awaitable[Json]]


def handlers(sync: SyncService, archiver: ArchiverService, *, beside_live: bool) -> dict[str, Handler]:
    """What this process needs to run these jobs; `beside_live`, where other jobs take in new mail."""

    async def bring(account: Account) -> Json:
        async with sync.opened([account], "a sync job", beside_live=beside_live) as [one]:
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
        SYNC.name: _for_account(bring),
        BAD_RETRY.name: _for_account(retry),
        ARCHIVE.name: _for_account(archive),
    }


def _for_account(work: ForAccount) -> Handler:
    async def handle(context: JobContext) -> Json:
        account = await account_of(context)
        try:
            return await work(account)
        except (OwnedElsewhere, ReaderElsewhere, ReaderLost) as error:
            return {"skipped": error.message}

    return handle
