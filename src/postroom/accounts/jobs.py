"""Jobs of accounts: each names its account, and a schedule reaches those of the moment.

A schedule fires one job that looks up the accounts and enqueues a job for each, so that an account added later needs no
new schedule.
"""

from __future__ import annotations

from collections.abc import Collection

from postroom.accounts.store import Account, AccountStatus, account_with_id, list_accounts
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.queue import Handler, JobContext, JobType, KeyUse, NewJob, Schedule
from postroom.queue.model import Json

EACH_ACCOUNT = JobType("accounts.each", KeyUse.REPEATABLE)


def for_each_account(job_type: JobType, cadence: str) -> Schedule:
    return Schedule(job_type.name, EACH_ACCOUNT.name, cadence, {"type": job_type.name})


def job_of(job_type: str, account: Account) -> NewJob:
    """While one of them is waiting or at work, it stands for this one too."""
    return NewJob(job_type, {"account_id": account.id}, key=f"{job_type}:{account.id}")


def each_account(job_types: Collection[str]) -> Handler:
    async def handle(context: JobContext) -> Json:
        wanted = context.job.payload.get("type")
        if not isinstance(wanted, str) or wanted not in job_types:
            raise BadInput("type", f"{wanted!r} is not a job of an account")
        accounts = await context.queue.database.read(list_accounts)
        jobs = [job_of(wanted, account) for account in accounts]
        await context.complete(lambda tx: {"jobs": [each.job_id for each in context.queue.add(tx, *jobs)]})
        return None

    return handle


async def account_of(context: JobContext) -> Account:
    """The account that a job names."""
    account_id = parse_id(str(context.job.payload.get("account_id")), "account_id")
    account = await context.queue.database.read(lambda tx: account_with_id(tx, account_id))
    if account is None or account.status is AccountStatus.REMOVED:
        raise NotFound("account_id", f"there is no account {account_id}")
    return account
