"""The sync of one account: walks the mailbox and follows its changes at the same time.

The history id is read before anything is listed, and stored together with the plan of the walk. Whatever happens in
the mailbox during the walk is therefore in the history, and nothing is missed between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from postroom.accounts.account import Account
from postroom.accounts.history import (
    LEASE,
    Duty,
    HistoryLease,
    begin_cursor,
    break_history,
    claim_reader,
    cursor_of,
    has_connector,
    move_cursor,
    release_reader,
    renew_reader,
)
from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.archive.service import AccountStore
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable, first_error
from postroom.mailboxes.errors import HistoryExpired
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sync.alerts import SyncMonitor, recheck_bad
from postroom.sync.context import SyncContext, sync_context
from postroom.sync.fetch import BadMessageRetry, MailFetcher, require_mailbox
from postroom.sync.history import ChangeCounts, HistoryFollower
from postroom.sync.labels import SourceReconciliation
from postroom.sync.slices import newest_end, plan_walk
from postroom.sync.state import (
    SyncState,
    WalkProgress,
    begin_walk,
    extend_walk,
    find_state,
    get_state,
    record_progress,
    slices_of,
)
from postroom.sync.status import SyncPhase, SyncProgress
from postroom.sync.walk import Walk
from postroom.telemetry import logs

_RENEWALS_PER_LEASE = 3
_PROGRESS_EVERY_S = 5.0
log = logs.get(__name__)


class ChangeReader(Protocol):
    async def read(self) -> object:
        """Apply what changed since the cursor, and move it. Raises HistoryExpired if the cursor is too old."""


class SideTask(Protocol):
    async def __call__(self) -> object:
        """Called after each reading of changes; it decides whether it is due."""


MakeChangeReader = Callable[[HistoryLease, MailFetcher], ChangeReader]
MakeSideTasks = Callable[[HistoryLease, MailFetcher], Sequence[SideTask]]


class _ConnectorCame(PostroomError):
    """A connector serves this mailbox now."""


class SyncEngine:
    """`holder` names this reader of the account's changes; it must be the same after a restart.

    Without `changes`, and while a connector serves the mailbox, the sync only walks and does not move the cursor:
    changes are read elsewhere.
    """

    def __init__(
        self,
        context: SyncContext,
        holder: str,
        *,
        changes: MakeChangeReader | None,
        side_tasks: MakeSideTasks = lambda lease, fetcher: (),
    ) -> None:
        self._context = context
        self._holder = holder
        self._make_changes = changes
        self._make_side_tasks = side_tasks

    def progress(self) -> SyncProgress:
        return self._context.counters.snapshot(is_waiting=self._context.outage.is_down)

    async def run(self, *, once: bool = False) -> None:
        """Sync until cancelled; with `once`, until everything that is in the mailbox now is in the archive."""
        logs.bind(account=self._context.account.id)
        try:
            await self._run(once)
        except _ConnectorCame:
            log.info("sync.connector_reads_changes")
            await self._run(once)

    async def _run(self, once: bool) -> None:
        database, clock = self._context.database, self._context.clock
        leases = await database.write(self._claim)

        def release(tx: Tx) -> None:
            for lease in leases:
                release_reader(tx, lease, clock.now())

        try:
            with first_error():
                async with asyncio.TaskGroup() as tasks:
                    renewals = tasks.create_task(self._keep_leases(leases), name="sync lease")
                    await self._sync_run(leases[-1]).run(once)
                    renewals.cancel()
        finally:
            await database.write(release)

    def _claim(self, tx: Tx) -> list[HistoryLease]:
        """The walk, in any case: no two syncs walk the same mailbox. And after it the changes, unless they are read
        elsewhere."""
        now, account = self._context.clock.now(), self._context.account
        is_read_elsewhere = self._make_changes is None or has_connector(tx, account.email, now)
        duties = [Duty.WALK] if is_read_elsewhere else [Duty.WALK, Duty.CHANGES]
        return [claim_reader(tx, account.id, self._holder, now, duty=duty) for duty in duties]

    async def _keep_leases(self, leases: Sequence[HistoryLease]) -> None:
        """Raises HistoryLeaseLost, which ends the run, when another process has taken over. An unavailable database
        does not end it: if the lease is lost meanwhile, the fence refuses every later change."""

        def renew(tx: Tx) -> None:
            now = self._context.clock.now()
            for lease in leases:
                renew_reader(tx, lease, now)
            if leases[-1].duty is Duty.CHANGES and has_connector(tx, self._context.account.email, now):
                raise _ConnectorCame

        while True:
            await self._context.clock.sleep(LEASE.total_seconds() / _RENEWALS_PER_LEASE)
            try:
                await self._context.database.write(renew)
            except Retryable as error:
                log.warning("sync.lease_not_renewed", problem=error.message)

    def _sync_run(self, lease: HistoryLease) -> _SyncRun:
        fetcher = self._context.fetcher
        changes = None
        if self._make_changes is not None and lease.duty is Duty.CHANGES:
            changes = self._make_changes(lease, fetcher)
        return _SyncRun(self._context, lease, changes, self._make_side_tasks(lease, fetcher))


class _SyncRun:
    """One run of the engine, under one lease. Without `changes`, only the side tasks run beside the walk."""

    def __init__(
        self, context: SyncContext, lease: HistoryLease, changes: ChangeReader | None, side_tasks: Sequence[SideTask]
    ) -> None:
        self._context = context
        self._lease = lease
        self._regular_tasks: list[SideTask] = [*([] if changes is None else [changes.read]), *side_tasks]

    async def run(self, once: bool) -> None:
        state = await self._first_state()
        may_extend = True
        while True:
            try:
                await self._walk(state)
                if not await self._follow(once=once, may_extend=may_extend):
                    return
                state = await self._extend()
                may_extend = not once  # mail that arrives from now on is for another run
            except HistoryExpired:
                log.warning("history.expired", walk=state.walk)
                # Before the walk begins: killed in between, the archive is still known to be the right one.
                await self._context.store.mark(self._context.account.id, state.walk + 1)
                state = await self._begin(has_expired=True)

    async def _first_state(self) -> SyncState:
        context = self._context
        state = await context.database.read(lambda tx: find_state(tx, context.account.id))
        if state is None:
            return await self._begin()
        if not await context.store.belongs_to(context.account.id, state.walk):
            log.warning("archive.replaced", walk=state.walk, watermark=state.watermark)
            return await self._begin(is_new_archive=True)
        identity = await context.outage.retry(context.mailbox.identity)
        require_mailbox(identity, context.account)
        context.counters.messages_total = identity.messages_total
        context.counters.earlier = state.counters.get("processed", 0) if state.walk == 1 else 0
        await self._expect(state)
        return state

    async def _begin(self, *, has_expired: bool = False, is_new_archive: bool = False) -> SyncState:
        """Plan another walk. A cursor that exists and has not expired is older than the walk, so it stays."""
        context, account_id = self._context, self._context.account.id
        context.counters.phase = SyncPhase.PLANNING
        plan = await context.outage.retry(lambda: plan_walk(context.mailbox, context.settings, context.clock.now()))
        require_mailbox(plan.identity, context.account)
        context.counters.messages_total = plan.identity.messages_total

        def begin(tx: Tx) -> SyncState:
            now = context.clock.now()
            renew_reader(tx, self._lease, now)
            if self._lease.duty is Duty.WALK:
                begin_cursor(tx, account_id, plan.identity.cursor, now)
            elif has_expired:
                break_history(tx, self._lease, plan.identity.cursor, now)
            elif cursor_of(tx, account_id) is None:
                move_cursor(tx, self._lease, plan.identity.cursor, now)
            return begin_walk(
                tx, account_id, plan.slices, plan.until, plan.granularity, now, is_new_archive=is_new_archive
            )

        state = await context.database.write(begin)
        await context.store.mark(account_id, state.walk)
        await self._expect(state)
        log.info("walk.begun", walk=state.walk, until=state.until, slices=len(plan.slices), size=state.granularity)
        return state

    async def _expect(self, state: SyncState) -> None:
        """The first walk brings what it has not brought yet, a later one hardly anything."""
        counters = self._context.counters
        if state.is_walking and state.walk == 1:
            await self._context.store.expect(counters.messages_total - counters.earlier)

    async def _extend(self) -> SyncState:
        now = self._context.clock.now()
        until = newest_end(self._context.settings, now)

        def extend(tx: Tx) -> SyncState:
            renew_reader(tx, self._lease, now)
            return extend_walk(tx, self._context.account.id, until, now)

        state = await self._context.database.write(extend)
        log.info("walk.extended", walk=state.walk, until=state.until)
        return state

    async def _walk(self, state: SyncState) -> None:
        """Walk, and run the regular tasks beside it."""
        counters = self._context.counters
        counters.watermark = state.watermark
        log.info(
            "walk.at", walk=state.walk, frontier=state.frontier, watermark=state.watermark, done=not state.is_walking
        )
        if not state.is_walking:
            return
        counters.phase = SyncPhase.WALKING
        with first_error():
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._context.outage.retry(self._context.fetcher.names.prepare), name="sync labels")
                beside = [
                    tasks.create_task(self._run_tasks_regularly(), name="sync changes"),
                    tasks.create_task(self._record_progress_regularly(), name="sync progress"),
                ]
                await Walk(self._context, self._lease).run(state)
                for task in beside:
                    task.cancel()
        if await self._was_full():
            await self._context.store.settle_lost()
        log.info("walk.finished", walk=state.walk)

    async def _was_full(self) -> bool:
        """Whether the walk went over the whole mailbox, and not only over the time since the last one."""
        account_id = self._context.account.id
        rows = await self._context.database.read(lambda tx: slices_of(tx, account_id))
        return any(row.slice.end is None for row in rows)

    async def _run_tasks_regularly(self) -> None:
        while True:
            await self._context.clock.sleep(self._context.settings.poll_s)
            await self._run_tasks()

    async def _record_progress_regularly(self) -> None:
        context = self._context
        while True:
            await context.clock.sleep(_PROGRESS_EVERY_S)
            at, now = context.counters.snapshot(), context.clock.now()
            progress = WalkProgress(at.done, at.messages_total, round(at.messages_per_second, 2), now)
            try:
                await context.database.write(partial(record_progress, account_id=context.account.id, progress=progress))
            except Retryable as error:
                log.info("sync.progress_not_recorded", problem=error.message)

    async def _run_tasks(self) -> None:
        for task in self._regular_tasks:
            await self._context.outage.retry(task)

    async def _follow(self, *, once: bool, may_extend: bool) -> bool:
        """Run the regular tasks until the walk should be extended to newer mail (returns True); with `once`, run them
        once (returns False)."""
        self._context.counters.phase = SyncPhase.FOLLOWING
        while True:
            await self._run_tasks()
            if may_extend and await self._is_time_to_extend():
                return True
            if once:
                return False
            await self._context.clock.sleep(self._context.settings.poll_s)

    async def _is_time_to_extend(self) -> bool:
        context = self._context
        state = await context.database.read(lambda tx: get_state(tx, context.account.id))
        passed = newest_end(context.settings, context.clock.now()) - state.until
        return passed > 0 and passed >= context.settings.extend_s


def build_engine(
    database: Database,
    account: Account,
    mailbox: Mailbox,
    store: AccountStore,
    settings: SyncSettings,
    clock: Clock,
    *,
    follows: bool = True,
    watch: MailboxObserver = NoObserver(),  # noqa: B008 - holds nothing
) -> SyncEngine:
    """`follows`: also read the account's changes, unless a connector does, and report them to `watch`."""
    monitor = SyncMonitor(
        database, account, settings, clock, mailbox=mailbox, cuts=lambda: mailbox.limiter.gate.tuner.cuts
    )
    context = sync_context(database, account, mailbox, store, settings, clock, on_outcomes=monitor.note)

    def on_page(page: ChangeCounts) -> None:
        monitor.note(page.stored + page.gone + page.bad, page.bad)

    def changes(lease: HistoryLease, fetcher: MailFetcher) -> HistoryFollower:
        return HistoryFollower(database, lease, fetcher, clock, on_page, watch)

    def side_tasks(lease: HistoryLease, fetcher: MailFetcher) -> Sequence[SideTask]:
        retry = BadMessageRetry(database, account.id, store, fetcher, settings, clock)

        async def retry_due() -> None:
            retried = await retry.retry_due()
            if retried.stored or retried.gone:
                await database.write(lambda tx: recheck_bad(tx, account.id, settings, clock.now()))

        return retry_due, SourceReconciliation(database, account.id, fetcher, clock), monitor.check

    return SyncEngine(context, store.backend.sync_holder, changes=changes if follows else None, side_tasks=side_tasks)
