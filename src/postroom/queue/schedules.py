"""Recurring jobs, kept in the database so that any number of workers fire each tick once.

A cadence is a text such as `every 15m` or `daily 06:00 Europe/Zagreb`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Row, Select, delete, select, update

from postroom.db import Tx
from postroom.db.database import bind_time
from postroom.db.tables.queue import schedules
from postroom.domain.errors import BadInput
from postroom.domain.jobs import JobCatalogue, KeyUse, Schedule
from postroom.queue import enqueue
from postroom.queue.job import NewJob, QueueName
from postroom.queue.sql import statements
from postroom.telemetry import logs

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EVERY = re.compile(r"every ([1-9]\d{0,5})([smhd])")
_DAILY = re.compile(r"daily ([01]\d|2[0-3]):([0-5]\d)(?: (\S+))?")


@dataclass(frozen=True, slots=True)
class Every:
    interval: timedelta

    def next_after(self, due: datetime, now: datetime) -> datetime:
        """The first tick after `now`; missed ticks are not made up for."""
        missed = max((now - due) // self.interval, 0)
        return due + (missed + 1) * self.interval

    def first(self, now: datetime) -> datetime:
        return now


@dataclass(frozen=True, slots=True)
class Daily:
    """At a time of the wall clock; where the clock skips that time it fires at the moment that follows."""

    at: time
    zone: ZoneInfo

    def next_after(self, due: datetime, now: datetime) -> datetime:
        return self.first(max(due, now))

    def first(self, now: datetime) -> datetime:
        day = now.astimezone(self.zone).date()
        while True:
            tick = datetime.combine(day, self.at, self.zone).astimezone(UTC)
            if tick > now:
                return tick
            day += timedelta(days=1)


Cadence = Every | Daily


def parse_cadence(text: str) -> Cadence:
    if match := _EVERY.fullmatch(text):
        return Every(timedelta(**{_UNITS[match[2]]: int(match[1])}))
    if match := _DAILY.fullmatch(text):
        return Daily(time(int(match[1]), int(match[2])), _zone(match[3] or "UTC"))
    raise BadInput(
        "cadence", f"{text!r} is not understood; write for example 'every 15m' or 'daily 06:00 Europe/Zagreb'"
    )


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise BadInput("cadence", f"{name!r} is not a time zone; write for example Europe/Zagreb") from None


log = logs.get(__name__)


def declare_schedules(tx: Tx, catalogue: JobCatalogue, wanted: Iterable[Schedule], now: datetime) -> None:
    """Replace all schedules by these. One whose cadence is unchanged keeps its next tick, across restarts too.

    A schedule of a job type that this process does not know is left for the newer Postroom that declared it.
    """
    wanted = list(wanted)
    dropped = schedules.c.name.not_in([schedule.name for schedule in wanted])
    tx.execute(delete(schedules).where(schedules.c.job_type.in_(_names(catalogue)), dropped))
    for schedule in wanted:
        if catalogue[schedule.job_type].key_use is not KeyUse.REPEATABLE:
            raise BadInput("job_type", f"{schedule.job_type} runs once a key, so it cannot recur")
        values = {
            "name": schedule.name,
            "job_type": schedule.job_type,
            "payload_json": enqueue.encode_payload(schedule.payload),
            "idempotency_key": schedule.job_key,
            "cadence": schedule.cadence,
            "next_at": bind_time(tx.dialect, parse_cadence(schedule.cadence).first(now)),
        }
        tx.rows(statements(tx.dialect).declare_schedule, values)


def fire_due_schedules(tx: Tx, catalogue: JobCatalogue, now: datetime) -> list[str]:
    """Enqueue the job of every schedule that is due, once, however many ticks were missed; returns their names."""
    fired = []
    for row in tx.execute(tx.locking(_of_known_types(catalogue), skip_locked=True)).all():
        rhythm = _rhythm(row)
        if rhythm is None or not _needs_attention(row, rhythm, now):
            continue
        changes: dict[str, Any] = {"next_at": rhythm.next_after(min(row.next_at, now), now)}
        if row.next_at <= now:
            queue = QueueName.HISTORY if catalogue[row.job_type].in_history else QueueName.WORK
            job = NewJob(row.job_type, json.loads(row.payload_json), queue, key=row.idempotency_key)
            enqueue.insert(tx, catalogue, [job], now)
            changes["last_fired_at"] = now
            fired.append(row.name)
        tx.execute(update(schedules).where(schedules.c.name == row.name).values(**changes))
    return fired


def next_schedule_due(tx: Tx, catalogue: JobCatalogue, now: datetime) -> datetime | None:
    """When `fire_due` should be called next; `now` if at once."""
    dues = [
        now if _needs_attention(row, rhythm, now) else row.next_at
        for row in tx.execute(_of_known_types(catalogue)).all()
        if (rhythm := _rhythm(row)) is not None
    ]
    return min(dues, default=None)


def _needs_attention(row: Row[Any], rhythm: Cadence, now: datetime) -> bool:
    """Due, or further ahead than one period: the clock was set back, and it would sleep until that caught up."""
    return bool(row.next_at <= now or row.next_at > rhythm.next_after(now, now))


def _rhythm(row: Row[Any]) -> Cadence | None:
    """None for a cadence that only a newer Postroom understands: it is left for one that does."""
    try:
        return parse_cadence(row.cadence)
    except BadInput as error:
        log.warning("schedule.not_understood", schedule=row.name, error=error.message)
        return None


def _of_known_types(catalogue: JobCatalogue) -> Select[Any]:
    """A schedule of a type that this process does not know is left for one that does."""
    return select(schedules).where(schedules.c.job_type.in_(_names(catalogue))).order_by(schedules.c.next_at)


def _names(catalogue: JobCatalogue) -> list[str]:
    return [job_type.name for job_type in catalogue]
