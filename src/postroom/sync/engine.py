"""The sync of one account: walks over the mailbox and reads its changes at the same time.

The history id is read before anything is listed and stored together with the plan of the walk. So whatever happens
in the mailbox during the walk is in the history, and nothing is missed between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from postroom.accounts.account import Account
from postroom.accounts.history_cursor import (
    LEASE,
    Duty,
    HistoryLease,
    begin_cursor,
    claim_reader,
    cursor_of,
    has_connector,
    move_cursor,
    release_reader,
    renew_reader,
)
from postroom.accounts.mailbox_state import MailboxObserver, NoObserver
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.labels import LabelNames
from postroom.settings import SyncSettings
from postroom.sync.bad_messages import BadMessageRetry
from postroom.sync.compare import Reconciliation
from postroom.sync.fetch import MailFetcher, OutageBackoff, require_mailbox
from postroom.sync.history import ChangeCounts, HistoryFollower
from postroom.sync.labels import LabelFollower
from postroom.sync.monitor import SyncMonitor
from postroom.sync.slices import newest_end, plan_walk
from postroom.sync.state import SyncState, begin_walk, extend_walk, find_state, get_state
from postroom.sync.status import Note, ProgressCounters, SyncPhase, SyncProgress
from postroom.sync.walk import Walk, first_error
from postroom.telemetry import logs

T = TypeVar("T")
_RENEWALS_A_LEASE = 3
log = logs.get(__name__)


class ChangeReader(Protocol):
    async def read(self) -> object:
        """Take in what changed since the cursor, and move it. Raises HistoryExpired where Gmail no longer knows."""


class SideTask(Protocol):
    async def __call__(self) -> object:
        """Something to do now and then beside the sync; it decides itself whether it is due."""


class _ReadElsewhere:
    async def read(self) -> None:
        """The connector does."""


MakeChangeReader = Callable[[HistoryLease, MailFetcher], ChangeReader]
MakeSideTasks = Callable[[HistoryLease, MailFetcher], Sequence[SideTask]]


class _ConnectorCame(PostroomError):
    """A connector serves this mailbox now."""


class SyncEngine:
    """`holder` says who this is, for the one reader of an account's changes: the same name after a restart.

    Without `deltas`, and from when a connector serves the mailbox, somebody else reads the changes: the sync walks,
    and leaves the cursor alone.
    """

    def __init__(
        self,
        database: Database,
        account: Account,
        client: GmailClient,
        store: AccountStore,
        settings: SyncSettings,
        clock: Clock,
        *,
        holder: str,
        deltas: MakeChangeReader | None,
        chores: MakeSideTasks = lambda reader, bringer: (),
        note: Note = lambda messages, bad: None,
    ) -> None:
        self._database = database
        self._account = account
        self._client = client
        self._settings = settings
        self._clock = clock
        self._holder = holder
        self._make_deltas = deltas
        self._make_chores = chores
        self._bringer = MailFetcher(
            client, store, LabelNames(client, LabelFollower(database, account.id, client, store))
        )
        self._weather = OutageBackoff(clock, settings.patience_s)
        self._counters = ProgressCounters(clock, client.limiter, client.profile, note)

    def progress(self) -> SyncProgress:
        return self._counters.snapshot(is_waiting=self._weather.is_bad)

    async def run(self, *, once: bool = False) -> None:
        """Sync until cancelled; with `once`, until everything that is there now has been taken in."""
        logs.bind(account=self._account.id)
        try:
            await self._run(once)
        except _ConnectorCame:
            log.info("sync.leaves_changes_to_connector")
            await self._run(once)

    async def _run(self, once: bool) -> None:
        reader = await self._database.write(self._claim)
        try:
            with first_error():
                async with asyncio.TaskGroup() as tasks:
                    keeper = tasks.create_task(self._keep_lease(reader), name="sync lease")
                    await self._sync(reader, once)
                    keeper.cancel()
        finally:
            await self._database.write(lambda tx: release_reader(tx, reader, self._clock.now()))

    def _claim(self, tx: Tx) -> HistoryLease:
        now = self._clock.now()
        is_served = self._make_deltas is None or has_connector(tx, self._account.email, now)
        duty = Duty.WALK if is_served else Duty.CHANGES
        return claim_reader(tx, self._account.id, self._holder, now, duty=duty)

    async def _keep_lease(self, reader: HistoryLease) -> None:
        """Raises ReaderLost, and so ends the run, when another has taken over. A database that is away for a while is
        no reason: should somebody take over meanwhile, the fence tells, here and at every change."""

        def renew(tx: Tx) -> None:
            now = self._clock.now()
            renew_reader(tx, reader, now)
            if reader.duty is Duty.CHANGES and has_connector(tx, self._account.email, now):
                raise _ConnectorCame

        while True:
            await self._clock.sleep(LEASE.total_seconds() / _RENEWALS_A_LEASE)
            try:
                await self._database.write(renew)
            except Retryable as error:
                log.warning("sync.lease_not_renewed", problem=error.message)

    async def _sync(self, reader: HistoryLease, once: bool) -> None:
        deltas: ChangeReader = _ReadElsewhere()
        if self._make_deltas is not None and reader.duty is Duty.CHANGES:
            deltas = self._make_deltas(reader, self._bringer)
        chores = self._make_chores(reader, self._bringer)
        state = await self._database.read(lambda tx: find_state(tx, self._account.id))
        if state is None:
            state = await self._begin(reader)
        elif not await self._bringer.store.belongs_to(self._account.id, state.walk):
            log.warning("archive.not_the_one", walk=state.walk, watermark=state.watermark)
            state = await self._begin(reader, is_new_archive=True)
        else:
            profile = await self._patiently(self._client.get_profile)
            require_mailbox(profile, self._account)
            self._counters.messages_total = profile.messages_total
            self._counters.earlier = state.counters.get("processed", 0) if state.walk == 1 else 0
        may_extend = True
        while True:
            try:
                await self._walk(reader, state, deltas, chores)
                if not await self._follow(deltas, chores, once=once, may_extend=may_extend):
                    return
                state = await self._extend(reader)
                may_extend = not once  # what came since then is for another run
            except HistoryExpired:
                log.warning("history.expired", walk=state.walk)
                # Before the walk begins: killed in between, the archive is still known to be the right one.
                await self._bringer.store.mark(self._account.id, state.walk + 1)
                state = await self._begin(reader, has_expired=True)

    async def _begin(
        self, reader: HistoryLease, *, has_expired: bool = False, is_new_archive: bool = False
    ) -> SyncState:
        """Another walk. A cursor that is there already, and still good, is older than the walk: it stays."""
        self._counters.phase = SyncPhase.PLANNING
        plan = await self._patiently(lambda: plan_walk(self._client, self._settings, self._clock.now()))
        require_mailbox(plan.profile, self._account)
        self._counters.messages_total = plan.profile.messages_total

        def begin(tx: Tx) -> SyncState:
            now = self._clock.now()
            renew_reader(tx, reader, now)
            if reader.duty is Duty.WALK:
                begin_cursor(tx, self._account.id, plan.profile.history_id, now)
            elif has_expired or cursor_of(tx, self._account.id) is None:
                move_cursor(tx, reader, plan.profile.history_id, now)
            return begin_walk(
                tx, self._account.id, plan.slices, plan.until, plan.granularity, now, is_new_archive=is_new_archive
            )

        state = await self._database.write(begin)
        await self._bringer.store.mark(self._account.id, state.walk)
        log.info("walk.begun", walk=state.walk, until=state.until, slices=len(plan.slices), size=state.granularity)
        return state

    async def _extend(self, reader: HistoryLease) -> SyncState:
        now = self._clock.now()
        until = newest_end(self._settings, now)

        def extend(tx: Tx) -> SyncState:
            renew_reader(tx, reader, now)
            return extend_walk(tx, self._account.id, until, now)

        state = await self._database.write(extend)
        log.info("walk.extended", walk=state.walk, until=state.until)
        return state

    async def _walk(
        self, reader: HistoryLease, state: SyncState, deltas: ChangeReader, chores: Sequence[SideTask]
    ) -> None:
        """The walk, with what changes meanwhile read beside it."""
        self._counters.watermark = state.watermark
        log.info(
            "walk.at", walk=state.walk, frontier=state.frontier, watermark=state.watermark, done=not state.is_walking
        )
        if not state.is_walking:
            return
        self._counters.phase = SyncPhase.WALKING
        walk = Walk(self._database, self._bringer, reader, self._settings, self._counters, self._weather, self._clock)
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                beside = tasks.create_task(self._read_beside(deltas, chores), name="sync deltas")
                await walk.run(state)
                beside.cancel()
        log.info("walk.over", walk=state.walk)

    async def _read_beside(self, deltas: ChangeReader, chores: Sequence[SideTask]) -> None:
        while True:
            await self._clock.sleep(self._settings.poll_s)
            await self._catch_up(deltas, chores)

    async def _catch_up(self, deltas: ChangeReader, chores: Sequence[SideTask]) -> None:
        for work in (deltas.read, *chores):
            await self._patiently(work)

    async def _follow(self, deltas: ChangeReader, chores: Sequence[SideTask], *, once: bool, may_extend: bool) -> bool:
        """Read what changed, now and then. True when it is time to list the newest mail, so that the watermark follows;
        False when that is all."""
        self._counters.phase = SyncPhase.FOLLOWING
        while True:
            await self._catch_up(deltas, chores)
            if may_extend and await self._is_time_to_extend():
                return True
            if once:
                return False
            await self._clock.sleep(self._settings.poll_s)

    async def _is_time_to_extend(self) -> bool:
        state = await self._database.read(lambda tx: get_state(tx, self._account.id))
        passed = newest_end(self._settings, self._clock.now()) - state.until
        return passed > 0 and passed >= self._settings.extend_s

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Again and again while only the weather is bad."""
        while True:
            await self._weather.wait()
            try:
                value = await work()
            except Retryable as error:
                self._weather.storm(error)
            else:
                self._weather.fair()
                return value


def build_engine(
    database: Database,
    account: Account,
    client: GmailClient,
    store: AccountStore,
    settings: SyncSettings,
    clock: Clock,
    *,
    follows: bool = True,
    watch: MailboxObserver = NoObserver(),  # noqa: B008 - holds nothing
) -> SyncEngine:
    """`follows`: it reads the account's changes too, and tells `watch`, where no connector does."""
    alarm = SyncMonitor(database, account, settings, clock, client=client, cuts=lambda: client.limiter.gate.tuner.cuts)

    def note_page(page: ChangeCounts) -> None:
        alarm.note(page.stored + page.gone + page.bad, page.bad)

    def deltas(reader: HistoryLease, bringer: MailFetcher) -> HistoryFollower:
        return HistoryFollower(database, reader, bringer, clock, note_page, watch)

    def chores(reader: HistoryLease, bringer: MailFetcher) -> Sequence[SideTask]:
        retry = BadMessageRetry(database, account.id, bringer, settings, clock)
        return retry.retry_due, Reconciliation(database, account.id, bringer, clock), alarm.check

    return SyncEngine(
        database,
        account,
        client,
        store,
        settings,
        clock,
        holder=store.place.sync_holder,
        deltas=deltas if follows else None,
        chores=chores,
        note=alarm.note,
    )
