"""The mailboxes of accounts, by their provider: the login from the vault; for Gmail the quota shared by all processes
through the database (SY-3), for IMAP the places of its messages.

No minute grants more units than the account has. Times come from the processes' own clocks, so hosts that share
an account must keep theirs in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy import delete, insert, select, update

from postroom.accounts.account import Account, Provider
from postroom.accounts.places import DatabasePlaces
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts, quota_grants
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.mailboxes.credentials import CurrentCredentials, GrantStore, imap_login_of
from postroom.mailboxes.gmail.methods import MINUTE_S, PROFILES, QuotaProfile
from postroom.mailboxes.imap.connection import ImapLogin
from postroom.mailboxes.imap.idling import InboxWatch
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.imap.session import ConnectionPool, ImapSession
from postroom.mailboxes.limiter import Limiter, limiter_for
from postroom.mailboxes.pace import Reserve, TunerLimits, tuner_limits_for
from postroom.mailboxes.ports import PriorityLane, UnitGrant
from postroom.mailboxes.protocol import Mailbox, Outbox
from postroom.settings import SyncSettings

if TYPE_CHECKING:
    from postroom.mailboxes.gmail.client import GmailClient

WINDOW = timedelta(seconds=MINUTE_S + 1)
"""Units reach the service a little later than they were granted, and not always equally late, so they count for a
second beyond the minute. A longer guard would cost more of the allowance than the rare refusal that it prevents."""
_SPREAD = timedelta(seconds=4)
_SPREAD_WORTH_S = 5.0
"""Bulk lanes get no more than five seconds' worth of the allowance in four. Over a single second, whole batches would
not fill it: two of a hundred units fit into the legacy list's 250, and a fifth would be wasted. And without a little
more than four, the time lost when a request for units comes late would never be made up."""


class DatabaseBudget:
    """Implements `ports.UnitBudget`: all that was asked for, or nothing and how long to wait.

    Bulk lanes leave the reserve alone and are spread evenly over the minute; urgent ones may take whatever is there.
    """

    def __init__(
        self,
        database: Database,
        account_id: str,
        profile: QuotaProfile,
        clock: Clock,
        reserve: Reserve = Reserve(),  # noqa: B008 - frozen
    ) -> None:
        self._database = database
        self._account_id = account_id
        self._allowance = profile.units_per_minute
        self._clock = clock
        self._reserve = reserve

    async def lease(self, units: int, lane: PriorityLane) -> UnitGrant:
        if not 1 <= units <= self._allowance:
            raise BadInput("units", f"{units} is not within 1 to {self._allowance}, the allowance of a minute")
        return await self._database.write(lambda tx: self._lease(tx, units, lane))

    def _lease(self, tx: Tx, units: int, lane: PriorityLane) -> UnitGrant:
        _lock(tx, self._account_id)
        now = self._clock.now()
        _forget_past(tx, self._account_id, now)
        ledger = _read(tx, self._account_id)
        wait = self._wait(tx, ledger, units, lane, now)
        if wait > 0:
            return UnitGrant(0, wait)
        _append(tx, self._account_id, ledger, units, lane, now)
        return UnitGrant(units)

    def _wait(self, tx: Tx, ledger: _Ledger, units: int, lane: PriorityLane, now: datetime) -> float:
        """Seconds until enough of what was granted before lies far enough back."""
        if lane.may_use_reserve:
            return self._until_past(tx, ledger, self._allowance - units, WINDOW, now)
        kept = max(self._reserve.kept(self._allowance, ledger.urgent_used) - ledger.urgent_used, 0)
        room = self._until_past(tx, ledger, self._allowance - kept - units, WINDOW, now)
        most = int(self._allowance / MINUTE_S * _SPREAD_WORTH_S)
        return max(room, self._until_past(tx, ledger, most - units, _SPREAD, now))

    def _until_past(self, tx: Tx, ledger: _Ledger, keep: int, span: timedelta, now: datetime) -> float:
        """Seconds until at most `keep` units were granted within the last `span`."""
        must_pass = ledger.total - max(keep, 0)
        if must_pass <= ledger.before:
            return 0.0
        reaching = select(quota_grants.c.granted_at).where(
            quota_grants.c.account_id == self._account_id, quota_grants.c.total >= must_pass
        )
        granted_at = tx.execute(reaching.order_by(quota_grants.c.total).limit(1)).scalar_one()
        return max(0.0, float((granted_at + span - now).total_seconds()))


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The running totals just before the window and at its end."""

    before: int = 0
    total: int = 0
    urgent_before: int = 0
    urgent_total: int = 0

    @property
    def urgent_used(self) -> int:
        return self.urgent_total - self.urgent_before


def _lock(tx: Tx, account_id: str) -> None:
    """Processes take turns at one account; SQLite's writers do so anyway."""
    if tx.execute(select(accounts.c.id).where(accounts.c.id == account_id).with_for_update()).first() is None:
        raise NotFound("account", f"there is no account {account_id}; it was removed")


def _forget_past(tx: Tx, account_id: str, now: datetime) -> None:
    ours = quota_grants.c.account_id == account_id
    tx.execute(delete(quota_grants).where(ours, quota_grants.c.granted_at <= now - WINDOW))
    # A clock that was set back would leave grants in the future, and nothing to spend until then.
    tx.execute(update(quota_grants).where(ours, quota_grants.c.granted_at > now).values(granted_at=now))


def _read(tx: Tx, account_id: str) -> _Ledger:
    rows = select(quota_grants).where(quota_grants.c.account_id == account_id).limit(1)
    oldest = tx.execute(rows.order_by(quota_grants.c.total)).first()
    newest = tx.execute(rows.order_by(quota_grants.c.total.desc())).first()
    if oldest is None or newest is None:
        return _Ledger()
    urgent_before = oldest.urgent_total - (oldest.units if PriorityLane(oldest.lane).may_use_reserve else 0)
    return _Ledger(oldest.total - oldest.units, newest.total, urgent_before, newest.urgent_total)


def _append(tx: Tx, account_id: str, ledger: _Ledger, units: int, lane: PriorityLane, now: datetime) -> None:
    urgent = units if lane.may_use_reserve else 0
    tx.execute(
        insert(quota_grants).values(
            account_id=account_id,
            total=ledger.total + units,
            urgent_total=ledger.urgent_total + urgent,
            granted_at=now,
            units=units,
            lane=int(lane),
        )
    )


class GmailAccess:
    """Makes the clients of accounts. One per process, so that all clients of an account share one limiter."""

    def __init__(
        self, database: Database, grants: GrantStore, clock: Clock, settings: SyncSettings | None = None
    ) -> None:
        self._database = database
        self._grants = grants
        self._clock = clock
        self._tuning = _tuning(settings or SyncSettings())
        self._limiters: dict[str, Limiter] = {}

    @asynccontextmanager
    async def client(self, account: Account, lane: PriorityLane) -> AsyncIterator[GmailClient]:
        """Connected for as long as the block lasts."""
        from postroom.mailboxes.gmail.client import connected  # slow to load, and of no use to IMAP accounts
        from postroom.mailboxes.gmail.transport import TransportConfig

        async with connected(
            CurrentCredentials(self._grants, account.email, self._clock),
            self._limiter(account),
            self._clock,
            profile=_profile(account),
            config=TransportConfig(api_base=account.api_base),
            lane=lane,
        ) as client:
            yield client

    @asynccontextmanager
    async def mailbox(self, account: Account, lane: PriorityLane) -> AsyncIterator[Mailbox]:
        """Connected for as long as the block lasts."""
        from postroom.mailboxes.gmail.mailbox import GmailMailbox

        async with self.client(account, lane) as client:
            yield GmailMailbox(client)

    def _limiter(self, account: Account) -> Limiter:
        if account.id not in self._limiters:
            profile = _profile(account)
            budget = DatabaseBudget(self._database, account.id, profile, self._clock) if profile else None
            tuning = tuner_limits_for(profile, self._tuning)
            self._limiters[account.id] = limiter_for(profile, self._clock, budget=budget, tuning=tuning)
        return self._limiters[account.id]


class ImapAccess:
    """Makes the mailboxes of IMAP accounts. All lanes of an account share its connections, pace and places."""

    def __init__(self, database: Database, grants: GrantStore, clock: Clock) -> None:
        self._database = database
        self._grants = grants
        self._clock = clock
        self._limiters: dict[str, Limiter] = {}
        self._sessions: dict[str, tuple[ImapSession, int]] = {}

    @asynccontextmanager
    async def mailbox(self, account: Account, lane: PriorityLane) -> AsyncIterator[ImapMailbox]:
        """Connected when it is first used, and for as long as the block lasts."""
        session, users = self._sessions.get(account.id) or (self._session(account), 0)
        self._sessions[account.id] = session, users + 1
        try:
            yield ImapMailbox(session, lane)
        finally:
            session, users = self._sessions.pop(account.id)
            if users > 1:
                self._sessions[account.id] = session, users - 1
            else:
                await session.close()

    @asynccontextmanager
    async def outbox(self, account: Account, lane: PriorityLane) -> AsyncIterator[Outbox]:
        """Raises NotAllowed where no server for sending is known."""
        from postroom.mailboxes.imap.sending import ImapOutbox, not_set_up, submission_of

        login = imap_login_of(self._grants, account.email, self._clock)
        if not (submission := submission_of(login)):
            raise NotAllowed(not_set_up(account.email))
        async with self.mailbox(account, lane) as mailbox:
            yield ImapOutbox(mailbox, replace(login, submission=submission))

    def _session(self, account: Account) -> ImapSession:
        limiter = self._limiters.setdefault(account.id, limiter_for(None, self._clock, tuning=_IMAP_TUNING))
        return ImapSession(self._login(account), DatabasePlaces(self._database, account.id), limiter, self._clock)

    def _login(self, account: Account) -> partial[ImapLogin]:
        return partial(imap_login_of, self._grants, account.email, self._clock)

    def watch(self, account: Account) -> InboxWatch:
        """Waits for new mail on a connection of its own."""
        return InboxWatch(ConnectionPool(self._login(account), most=1), self._clock)


class MailboxAccess:
    """The mailbox of any account, by its provider."""

    def __init__(self, gmail: GmailAccess, imap: ImapAccess) -> None:
        self._gmail = gmail
        self._imap = imap

    def mailbox(self, account: Account, lane: PriorityLane) -> AbstractAsyncContextManager[Mailbox]:
        match account.provider:
            case Provider.GMAIL:
                return self._gmail.mailbox(account, lane)
            case Provider.IMAP:
                return self._imap.mailbox(account, lane)

    def watch(self, account: Account) -> InboxWatch | None:
        """None where the provider cannot report new mail by itself."""
        return self._imap.watch(account) if account.provider is Provider.IMAP else None

    @asynccontextmanager
    async def outbox(self, account: Account, lane: PriorityLane) -> AsyncIterator[Outbox]:
        """Raises NotAllowed for an account that mail cannot be sent from."""
        match account.provider:
            case Provider.GMAIL:
                from postroom.mailboxes.gmail.mailbox import GmailOutbox

                async with self._gmail.client(account, lane) as client:
                    yield GmailOutbox(client)
            case Provider.IMAP:
                async with self._imap.outbox(account, lane) as outbox:
                    yield outbox


class AccountMailboxes:
    """Mailboxes that stay connected until the stack is closed: one for each account, made when it is first needed, and
    anew for one that is read in another way since."""

    def __init__(self, access: MailboxAccess, lane: PriorityLane, stack: AsyncExitStack) -> None:
        self._access = access
        self._lane = lane
        self._stack = stack
        self._mailboxes: dict[tuple[str, Provider], Mailbox] = {}
        self._outboxes: dict[tuple[str, Provider], Outbox] = {}
        self._one_at_a_time = asyncio.Lock()

    async def of(self, account: Account) -> Mailbox:
        async with self._one_at_a_time:
            key = account.id, account.provider
            if key not in self._mailboxes:
                opened = self._access.mailbox(account, self._lane)
                self._mailboxes[key] = await self._stack.enter_async_context(opened)
            return self._mailboxes[key]

    async def outbox(self, account: Account) -> Outbox:
        async with self._one_at_a_time:
            key = account.id, account.provider
            if key not in self._outboxes:
                opened = self._access.outbox(account, self._lane)
                self._outboxes[key] = await self._stack.enter_async_context(opened)
            return self._outboxes[key]


_IMAP_TUNING = TunerLimits(start_workers=3, max_workers=6, start_rps=200.0, max_rps=1_000.0, p95_limit_s=30.0)
"""An exchange may bring a hundred messages, so it may take long without the server being slow. Servers limit
connections and bytes, not commands: the pace begins high, and falls as soon as one complains."""


def _profile(account: Account) -> QuotaProfile | None:
    """None if no price list is configured: the pace is then found by trying."""
    return None if account.quota is None else PROFILES[account.quota]


def _tuning(settings: SyncSettings) -> TunerLimits:
    return TunerLimits(
        start_workers=settings.workers_start,
        max_workers=settings.workers_max,
        start_rps=settings.rps_start,
        max_rps=settings.rps_max,
    )
