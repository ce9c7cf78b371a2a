"""When a recurring schedule is due: pure arithmetic on texts such as `every 15m` and `daily 06:00 Europe/Zagreb`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from postroom.domain.errors import BadInput

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_EVERY = re.compile(r"every ([1-9]\d{0,5})([smhd])")
_DAILY = re.compile(r"daily ([01]\d|2[0-3]):([0-5]\d)(?: (\S+))?")


@dataclass(frozen=True, slots=True)
class Every:
    interval: timedelta

    def next_after(self, due: datetime, now: datetime) -> datetime:
        """The first tick of the same rhythm after `now`; ticks that were missed are not made up for."""
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


def parse(text: str) -> Cadence:
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
