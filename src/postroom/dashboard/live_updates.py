"""Live updates: tells open pages which topics changed, as server-sent events.

`TOPICS` has a cheap query for each topic, whose result differs whenever the topic changed. One task runs these
queries for all open pages: when the database wakes it, and every few seconds anyway. To add a topic, add a function
to `TOPICS` and mark the part of a page with `data-live="topic"`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from sqlalchemy import Column, func, select

from postroom.dashboard.queue import PHASE_CONDITIONS, JobPhase
from postroom.db import Database, Tx
from postroom.db.database import Wakeups
from postroom.db.tables.access import audit_log, connectors, switches
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_rate, backfill_spend, messages
from postroom.db.tables.queue import archive_tasks, jobs
from postroom.db.tables.restores import restore_runs
from postroom.db.tables.triage import actions, directions, model_rules
from postroom.db.tables.web import backfill_runs, discovered_items, evidence
from postroom.domain.errors import NotAllowed, Retryable
from postroom.telemetry import logs
from postroom.triage.rules.store import version as rules_version
from postroom.web.sentinel import due_job, sentinel_job

TopicState = Callable[[Tx], object]

log = logs.get(__name__)

MOST_LISTENERS = 64
_LOOK_EVERY_S = 3.0
_NEVER_SOONER_S = 0.3
"""Changes within this time are reported together."""


class TooManyListeners(NotAllowed):
    """Too many pages are open; this one does not update itself. Close some, or reload it by hand."""


class LiveListener:
    """One open page: the topics that it shows, and those that changed since the last event."""

    def __init__(self, topics: frozenset[str]) -> None:
        self.topics = topics
        self._changed: set[str] = set()
        self._arrived = asyncio.Event()
        self._ready = asyncio.Event()
        self.is_closed = False

    async def ready(self) -> None:
        """Wait until the state of its topics was read: every change from here on is reported."""
        await self._ready.wait()

    def notify(self, topics: set[str]) -> None:
        self._ready.set()
        if topics & self.topics:
            self._changed |= topics & self.topics
            self._arrived.set()

    def close(self) -> None:
        self.is_closed = True
        self._ready.set()
        self._arrived.set()

    async def changes(self, patience_s: float) -> list[str]:
        """What changed; empty after `patience_s` without a change, or when the listener is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._arrived.wait()
        self._arrived.clear()
        changed, self._changed = sorted(self._changed), set()
        return changed


class LiveHub:
    def __init__(
        self, database: Database, topics: Mapping[str, TopicState], look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._database = database
        self._topics = topics
        self._look_every_s = look_every_s
        self._listeners: set[LiveListener] = set()
        self._joined = asyncio.Event()
        self._look_soon = asyncio.Event()
        self._seen: dict[str, object] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch the topics until the block ends, then close every listener."""
        task = asyncio.create_task(self._run(), name="dashboard-live")
        task.add_done_callback(_report)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            for listener in self._listeners:
                listener.close()

    def require_room(self) -> None:
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyListeners()

    @contextmanager
    def listening(self, topics: frozenset[str]) -> Iterator[LiveListener]:
        listener = LiveListener(topics & self._topics.keys())
        self._listeners.add(listener)
        self._joined.set()
        self._look_soon.set()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    async def _run(self) -> None:
        async with self._database.wake.listen() as wakeups, asyncio.TaskGroup() as group:
            group.create_task(self._relay(wakeups))
            while True:
                await self._joined.wait()
                self._look_soon.clear()
                await self._look()
                if not self._listeners:
                    self._joined.clear()
                    self._seen.clear()
                await asyncio.sleep(_NEVER_SOONER_S)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._look_every_s):
                        await self._look_soon.wait()

    async def _relay(self, wakeups: Wakeups) -> None:
        while True:
            await wakeups.wait()
            wakeups.take()
            self._look_soon.set()

    async def _look(self) -> None:
        """Only topics that an open page shows are read; one read for the first time has not changed."""
        listeners = list(self._listeners)
        topics = sorted({topic for listener in listeners for topic in listener.topics})
        try:
            found = await self._database.read(lambda tx: {topic: self._topics[topic](tx) for topic in topics})
        except Retryable as error:
            log.warning("dashboard.topics_not_read", error=error.message)
            return
        changed = {topic for topic in topics if topic in self._seen and self._seen[topic] != found[topic]}
        self._seen = found
        for listener in listeners:
            listener.notify(changed)


def _report(task: asyncio.Task[None]) -> None:
    """Pages work without it; they only stop updating themselves."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("dashboard.live_failed", exc_info=error)


MEDIA_TYPE = "text/event-stream"
_HEARTBEAT_S = 15.0


async def live_events(
    hub: LiveHub, topics: frozenset[str], is_welcome: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    with hub.listening(topics) as listener:
        yield "retry: 5000\n\n"
        await listener.ready()
        yield "event: ready\ndata: {}\n\n"
        while True:
            changed = await listener.changes(_HEARTBEAT_S)
            if listener.is_closed:
                return
            if not await is_welcome():
                yield "event: over\ndata: {}\n\n"
                return
            yield f"event: changed\ndata: {json.dumps(changed)}\n\n" if changed else ": still here\n\n"


def _queue(tx: Tx) -> object:
    """The newest job, the running ones, and the last that completed, failed or was canceled."""
    newest = tx.execute(select(jobs.c.id).order_by(jobs.c.id.desc()).limit(1)).scalar()
    running = tx.execute(select(func.count(), func.max(jobs.c.fence)).where(PHASE_CONDITIONS[JobPhase.RUNNING])).one()
    ended = [
        tx.execute(
            select(jobs.c.finished_at).where(PHASE_CONDITIONS[phase]).order_by(jobs.c.finished_at.desc()).limit(1)
        ).scalar()
        for phase in (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELED)
    ]
    return newest, tuple(running), ended


def _actions(tx: Tx) -> object:
    """The newest, the last that finished, and how many need approval or are under way."""
    newest = tx.execute(select(actions.c.id).order_by(actions.c.id.desc()).limit(1)).scalar()
    ended = tx.execute(select(func.max(actions.c.finished_at))).scalar()
    open_ones = [
        tx.execute(select(func.count()).where(actions.c.status == status)).scalar()
        for status in ("approved_pending", "queued", "executing")
    ]
    return newest, ended, open_ones


def _backfill(tx: Tx) -> object:
    """The last change of a job, what jobs spent, the newest admitted message, and the kill switch."""
    spent = select(func.sum(backfill_spend.c.reserved_microdollars), func.sum(backfill_spend.c.settled_microdollars))
    admitted = select(backfill_rate.c.id).order_by(backfill_rate.c.id.desc()).limit(1)
    jobs_changed = _newest(tx, BACKFILL_JOBS[tx.dialect].c.updated_at)
    return (
        jobs_changed,
        tuple(tx.execute(spent).one()),
        tx.execute(admitted).scalar(),
        _newest(tx, switches.c.changed_at),
    )


def _rules(tx: Tx) -> object:
    """All three tables are small."""
    guidance = [
        tuple(tx.execute(select(func.count(), func.max(table.c.updated_at)).select_from(table)).one())
        for table in (directions, model_rules)
    ]
    return rules_version(tx), guidance


def _newest(tx: Tx, column: Column[Any]) -> object:
    return tx.execute(select(func.max(column))).scalar()


def _web(tx: Tx) -> object:
    """The last change of a run, the newest discovered and kept page, and the last check of the sources."""
    newest = [
        tx.execute(select(table.c.id).order_by(table.c.id.desc()).limit(1)).scalar()
        for table in (discovered_items, evidence)
    ]
    check = select(jobs.c.state, jobs.c.updated_at).where(
        jobs.c.idempotency_key.in_([sentinel_job().key, due_job([]).key])
    )
    return _newest(tx, backfill_runs.c.updated_at), newest, [tuple(row) for row in tx.execute(check)]


TOPICS: dict[str, TopicState] = {
    "queue": _queue,
    "mail": lambda tx: tx.execute(select(messages.c.id).order_by(messages.c.id.desc()).limit(1)).scalar(),
    "actions": _actions,
    "rules": _rules,
    "backfill": _backfill,
    "connectors": lambda tx: _newest(tx, connectors.c.last_heartbeat_at),
    "imports": lambda tx: tuple(tx.execute(select(func.count(), func.max(archive_tasks.c.updated_at))).one()),
    "restores": lambda tx: tuple(tx.execute(select(func.count(), func.max(restore_runs.c.updated_at))).one()),
    "sync": lambda tx: _newest(tx, sync_states.c.updated_at),
    "web": _web,
    "audit": lambda tx: tx.execute(select(audit_log.c.id).order_by(audit_log.c.id.desc()).limit(1)).scalar(),
}
