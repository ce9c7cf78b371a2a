"""Fills the series over time.

What a process measures itself (waiting times, failures, the sync's requests) it writes every few seconds; counts of
several processes add up. Mail, decisions and spend are counted from their own tables by a recurring job, which also
samples queue depths and the watermark: these counts are exact after any crash, because they are replaced and not added
to. After an outage the job continues from where it was; on a database without series it starts a month back.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Column, ColumnElement, func, select

from postroom.app.installation import App
from postroom.db import Database, Dialect, Tx
from postroom.db.series import Moment, add_amounts, forget, last_start, prune_series, read_buckets, replace_amounts
from postroom.db.tables.accounts import sync_states
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.queue.inspection import depth
from postroom.queue.job import Json
from postroom.telemetry import logs
from postroom.telemetry.series import NO_BOUND, RECORDER, Amount, Resolution, Series, SeriesRecorder

if TYPE_CHECKING:
    from postroom.queue import Handler, JobContext

_WRITE_EVERY_S = 10.0
_MOST_WAITING = 5_000
"""So much is held while the database is away; the oldest is dropped beyond that."""
_AGAIN = timedelta(minutes=5)
"""A transaction may be committed this long after the time that it gave its rows."""
_FIRST_LOOK = timedelta(days=30)
_AT_ONCE = timedelta(days=1)
_HOUR = timedelta(hours=1)

log = logs.get(__name__)


class SeriesWriter:
    """Writes what a process recorded. What cannot be written keeps its minute and is tried again."""

    def __init__(self, database: Database, clock: Clock, recorder: SeriesRecorder = RECORDER) -> None:
        self._database = database
        self._clock = clock
        self._recorder = recorder
        self._waiting: dict[Moment, Amount] = {}
        self._lock = asyncio.Lock()

    async def flush(self) -> None:
        async with self._lock:
            await self._flush()

    async def _flush(self) -> None:
        minute = Resolution.MINUTE.start_of(self._clock.now())
        for (series, bound), amount in self._recorder.take().items():
            key = (minute, series, bound)
            self._waiting[key] = self._waiting.get(key, Amount()) + amount
        while len(self._waiting) > _MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        if not self._waiting:
            return
        waiting = dict(self._waiting)
        await self._database.write(lambda tx: add_amounts(tx, waiting))
        self._waiting.clear()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Write every few seconds for as long as the block lasts, and once more at its end."""
        writing = asyncio.create_task(self._keep_writing())
        try:
            yield
        finally:
            writing.cancel()
            with suppress(asyncio.CancelledError):
                await writing
            await self._try_to_flush()

    async def _keep_writing(self) -> None:
        while True:
            await asyncio.sleep(_WRITE_EVERY_S)
            # Shielded: a write that is committed but not noticed would be repeated.
            await asyncio.shield(self._try_to_flush())

    async def _try_to_flush(self) -> None:
        try:
            await self.flush()
        except PostroomError as error:
            log.warning("series.not_written", problem=error.message)


@asynccontextmanager
async def recording(app: App) -> AsyncIterator[None]:
    """Write what this process records for as long as the block lasts; every process that works on mail does."""
    async with SeriesWriter(app.database, app.clock).running():
        yield


async def series_upkeep(context: JobContext) -> Json:
    """Handler of the recurring job."""
    queue = context.queue
    now = queue.clock.now()
    counted = await derive(queue.database, now)
    await queue.database.write(lambda tx: add_amounts(tx, _samples(tx, now)))
    return {"minutes": counted}


def pruning_series(handler: Handler) -> Handler:
    """Also removes what is past its time in the series."""

    async def handle(context: JobContext) -> Json:
        now = context.queue.clock.now()
        await context.queue.database.write(lambda tx: prune_series(tx, now))
        return await handler(context)

    return handle


async def derive(database: Database, now: datetime) -> int:
    """Count mail, decisions and spend since the last time; returns how many minutes were looked at."""
    begun = await database.read(lambda tx: _begin(tx, now))
    end = Resolution.MINUTE.start_of(now) + Resolution.MINUTE.length
    start = begun
    while start < end:
        until = min(start + _AT_ONCE, end)
        counts = await database.read(partial(_counts, since=start, until=until))
        await database.write(partial(_store, counts=counts, since=start, until=until))
        start = until
    return int((end - begun) / Resolution.MINUTE.length)


def _begin(tx: Tx, now: datetime) -> datetime:
    """After a pause whole hours, since some of their minutes may be pruned."""
    last = last_start(tx, Series.DERIVED, Resolution.MINUTE)
    since = max(now - _FIRST_LOOK, min(last, now) - _AGAIN) if last is not None else now - _FIRST_LOOK
    return (Resolution.HOUR if now - since > _HOUR else Resolution.MINUTE).start_of(since)


DERIVED = tuple(each for each in Series if each.startswith(("mail.", "decided.")) or each is Series.SPEND)


def _counts(tx: Tx, since: datetime, until: datetime) -> dict[Moment, Amount]:
    found: dict[Moment, Amount] = defaultdict(Amount)
    for minute, name, number, total in _counted(tx, since, until):
        found[datetime.fromisoformat(f"{minute}:00+00:00"), Series(name), NO_BOUND] += Amount(number, float(total), 0.0)
    return dict(found)


def _counted(tx: Tx, since: datetime, until: datetime) -> Iterator[tuple[str, str, int, float]]:
    from postroom.db.tables.mail import messages  # a command that only records counts nothing
    from postroom.db.tables.triage import decisions, model_calls

    def run(query: Any, at: Column[datetime], *by: ColumnElement[Any]) -> Iterator[Any]:
        minute = _minute(tx, at)
        grouped = query.add_columns(minute.label("minute"), *by).where(at >= since, at < until).group_by(minute, *by)
        return iter(tx.execute(grouped))

    is_live = messages.c.backfill_job_id.is_(None).label("is_live")
    inbound = select(func.count().label("number")).where(messages.c.direction == "inbound")
    for row in run(inbound, messages.c.accepted_at, messages.c.policy_tier, is_live):
        yield row.minute, f"mail.{'live' if row.is_live else 'history'}.{row.policy_tier}", row.number, row.number
    for row in run(select(func.count().label("number")), decisions.c.created_at, decisions.c.source):
        yield row.minute, f"decided.{row.source}", row.number, row.number
    spent = select(func.count().label("number"), func.sum(model_calls.c.cost_microdollars).label("spent"))
    for row in run(spent, model_calls.c.created_at):
        yield row.minute, Series.SPEND, row.number, float(row.spent)


def _minute(tx: Tx, at: Column[datetime]) -> ColumnElement[str]:
    """`2026-11-17T10:54`"""
    if tx.dialect is Dialect.POSTGRESQL:
        return func.to_char(func.timezone("UTC", at), 'YYYY-MM-DD"T"HH24:MI')
    from sqlalchemy import Text, type_coerce

    return func.substr(type_coerce(at, Text), 1, 16)


def _store(tx: Tx, counts: dict[Moment, Amount], since: datetime, until: datetime) -> None:
    """The minutes as counted, and what follows from them: their hours, and the days of those."""
    minute = Resolution.MINUTE
    forget(tx, DERIVED, minute, since, until)
    buckets = {(minute, *moment): amount for moment, amount in counts.items()}
    last = until - minute.length
    buckets[minute, last, Series.DERIVED, NO_BOUND] = Amount(1, 1.0, 1.0)
    replace_amounts(tx, buckets)
    for finer, coarser in ((Resolution.MINUTE, Resolution.HOUR), (Resolution.HOUR, Resolution.DAY)):
        first, end = coarser.start_of(since), coarser.start_of(last) + coarser.length
        summed: dict[tuple[Resolution, datetime, Series, int], Amount] = defaultdict(Amount)
        for bucket in read_buckets(tx, DERIVED, finer, first, end):
            summed[coarser, coarser.start_of(bucket.start), bucket.series, NO_BOUND] += bucket.amount
        forget(tx, DERIVED, coarser, first, end)
        replace_amounts(tx, summed)


def _samples(tx: Tx, now: datetime) -> dict[Moment, Amount]:
    """How long the queues are, and how far the sync is behind."""
    depths: dict[Series, float] = {Series.DEPTH_LIVE: 0, Series.DEPTH_WORK: 0, Series.DEPTH_HISTORY: 0}
    for (queue, _), waiting in depth(tx).items():
        depths[Series(f"queue.depth.{queue}")] += waiting
    watermark = tx.execute(select(func.min(sync_states.c.watermark)).where(sync_states.c.watermark > 0)).scalar()
    if watermark is not None:
        depths[Series.SYNC_LAG] = max(now.timestamp() - watermark, 0.0)
    return {(now, series, NO_BOUND): Amount(1, float(value), float(value)) for series, value in depths.items()}
