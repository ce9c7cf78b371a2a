"""Jobs for each account: a schedule enqueues one for every account, and a refused login never fails a job.

A schedule fires one job that looks up the accounts of the moment, so an account added later needs no schedule of
its own. Jobs of an account whose login was refused wait until it logs in again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from postroom.accounts.account import (
    Account,
    AccountStatus,
    ArchivedMailbox,
    Provider,
    account_with_id,
    end_login,
    list_accounts,
    list_archived_mailboxes,
)
from postroom.accounts.troubled import troubled_archives
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.jobs import EACH_ACCOUNT, LOGIN_NOTICES, LOGIN_NOTIFY, SYNC_BAD
from postroom.mailboxes.errors import LoginNeeded
from postroom.queue import JobQueue, JobType, NewJob, Postponed, Schedule
from postroom.queue.job import Json
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.accounts.enrolment import Enrolment
    from postroom.queue import Handler, JobContext

log = logs.get(__name__)

_WAIT = timedelta(minutes=1)
"""How long after a new login a job may still wait."""
_TRY_AGAIN = timedelta(minutes=10)
"""How often a login that has ended is tried all the same: the provider may have been wrong."""


def for_each_account(job_type: JobType, cadence: str) -> Schedule:
    return Schedule(job_type.name, EACH_ACCOUNT.name, cadence, {"type": job_type.name})


def job_of(job_type: str, account: Account | ArchivedMailbox) -> NewJob:
    """A job of this type for the account. While one is waiting or running, adding it again adds nothing."""
    return NewJob(job_type, {"account_id": account.id}, key=f"{job_type}:{account.id}")


def each_account(job_types: Collection[str]) -> Handler:
    async def handle(context: JobContext) -> Json:
        wanted = context.job.payload.get("type")
        if not isinstance(wanted, str) or wanted not in job_types:
            raise BadInput("type", f"{wanted!r} is not a job of an account")
        mailboxes = await context.queue.database.read(lambda tx: _mailboxes_for(tx, wanted))
        jobs = [job_of(wanted, mailbox) for mailbox in mailboxes]
        await context.complete(lambda tx: {"jobs": [each.job_id for each in context.queue.add(tx, *jobs)]})
        return None

    return handle


def _mailboxes_for(tx: Tx, job_type: str) -> list[Account | ArchivedMailbox]:
    """The accounts; to retry bad messages, also the mailboxes without a login that have some."""
    archives = [mailbox for mailbox, _ in troubled_archives(tx)] if job_type == SYNC_BAD.name else []
    return [*list_accounts(tx), *archives]


async def account_of(context: JobContext) -> Account:
    """The account that a job names."""
    account_id = parse_id(str(context.job.payload.get("account_id")), "account_id")
    account: Account | None = context.account
    if account is None or account.id != account_id:
        account = await context.queue.database.read(lambda tx: account_with_id(tx, account_id))
    if account is None or account.status is AccountStatus.REMOVED:
        raise NotFound("account_id", f"there is no account {account_id}")
    return account


async def mailbox_of(context: JobContext) -> Account | ArchivedMailbox:
    """The account that a job names, or the mailbox without a login."""
    account_id = parse_id(str(context.job.payload.get("account_id")), "account_id")
    archives = await context.queue.database.read(list_archived_mailboxes)
    found = [mailbox for mailbox in archives if mailbox.id == account_id]
    return found[0] if found else await account_of(context)


class LoginWatch:
    """Wraps handlers of jobs that name an account. A refused login becomes the account's state, and the job waits."""

    def __init__(self, enrolment: Enrolment) -> None:
        self._enrolment = enrolment

    def watched(self, handlers: Mapping[str, Handler], *, not_waiting: Collection[str] = ()) -> dict[str, Handler]:
        """`not_waiting` are jobs that a person waits for: they fail at once and say why."""
        return {name: self._watched(handler, waits=name not in not_waiting) for name, handler in handlers.items()}

    def _watched(self, handler: Handler, *, waits: bool) -> Handler:
        async def handle(context: JobContext) -> Json:
            account = context.account = await _named(context)
            if account is not None and waits:
                await self._hold_back(account)
            try:
                return await handler(context)
            except LoginNeeded as error:
                if account is None:
                    raise
                reason = await self._end(context.queue, account, error)
                if not waits:
                    raise
                raise Postponed(_WAIT, reason) from error

        return handle

    async def _hold_back(self, account: Account) -> None:
        """Postpone the job instead of calling a provider that refused this login a moment ago."""
        if account.status is not AccountStatus.LOGIN_ENDED:
            return
        looked, now = account.last_checked_at, self._enrolment.clock.now()
        if looked is None or now - looked >= _TRY_AGAIN:
            await self._enrolment.check(account)
            renewed = await self._enrolment.database.read(lambda tx: account_with_id(tx, account.id))
            if renewed is None or renewed.status is not AccountStatus.LOGIN_ENDED:
                return
        raise Postponed(_WAIT, account.last_error)

    async def _end(self, queue: JobQueue, account: Account, error: LoginNeeded) -> str:
        from postroom.accounts.enrolment import log_in_again  # brings the clients of all providers

        reason = error.message
        if account.email not in reason:
            reason = f"{_said(account)} no longer accepts the login of {account.email}. {log_in_again(account)}"
        now = self._enrolment.clock.now()

        def end(tx: Tx) -> None:
            if end_login(tx, account, now, reason):
                queue.add(tx, NewJob(LOGIN_NOTIFY.name, {}, key=LOGIN_NOTICES.job_key))

        await self._enrolment.database.write(end)
        log.warning("account.login_ended", account=account.id)
        return reason


def _said(account: Account) -> str:
    return "Google" if account.provider is Provider.GMAIL else "The mail server"


async def _named(context: JobContext) -> Account | None:
    """The account that a job names, if it names one that exists."""
    payload: Json = context.job.payload
    try:
        account_id = parse_id(str(payload["account_id"] if isinstance(payload, dict) else ""), "account_id")
    except (KeyError, BadInput):  # its handler says what is wrong with it
        return None
    return await context.queue.database.read(
        lambda tx: tx.shared(("account", account_id), lambda: account_with_id(tx, account_id))
    )
