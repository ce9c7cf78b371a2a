"""When a source is checked: at the time of the sentinel, every day or every week, or more often by itself. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.queue.schedules import parse_cadence
from postroom.web.sources import CheckCadence

_OFTEN = {CheckCadence.HOURLY: timedelta(hours=1), CheckCadence.SIX_HOURS: timedelta(hours=6)}
_WEEK = timedelta(days=6, hours=12)
"""A week, less what the check before it may have begun late."""


def is_due_by_itself(every: CheckCadence, looked_at: datetime | None, now: datetime) -> bool:
    """Whether a source that does not wait for the sentinel is to be checked. `looked_at`: when it last was."""
    interval = _OFTEN.get(every)
    return interval is not None and _has_passed(looked_at, interval, now)


def is_due_with_sentinel(every: CheckCadence, looked_at: datetime | None, now: datetime) -> bool:
    """Whether the sentinel checks it this time: of all sources it only leaves out weekly ones before their time."""
    return every is not CheckCadence.WEEKLY or _has_passed(looked_at, _WEEK, now)


def next_check(
    every: CheckCadence, looked_at: datetime | None, sentinel: datetime | None, cadence: str, now: datetime
) -> datetime | None:
    """`sentinel` is when it looks next, on this cadence; None: it is off, and then nothing is checked."""
    if sentinel is None:
        return None
    if (interval := _OFTEN.get(every)) is not None:
        return now if _has_passed(looked_at, interval, now) or looked_at is None else looked_at + interval
    if is_due_with_sentinel(every, looked_at, sentinel) or looked_at is None:
        return sentinel
    return parse_cadence(cadence).next_after(sentinel, looked_at + _WEEK)


def _has_passed(since: datetime | None, interval: timedelta, now: datetime) -> bool:
    """A moment in the future is one of a clock that was set back since."""
    return since is None or since > now or since + interval <= now
