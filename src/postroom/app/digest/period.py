"""The days that a digest is about, in the owner's time zone. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from postroom.settings import Settings

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)


class DigestKind(StrEnum):
    DAY = "day"
    WEEK = "week"

    @property
    def length(self) -> timedelta:
        return _DAY if self is DigestKind.DAY else _WEEK


@dataclass(frozen=True, slots=True)
class DigestPeriod:
    kind: DigestKind
    first: date
    """The day, or the Monday of the week."""
    zone: ZoneInfo

    @classmethod
    def holding(cls, kind: DigestKind, day: date, zone: ZoneInfo) -> DigestPeriod:
        """The one that a day belongs to."""
        return cls(kind, day - _DAY * day.weekday() if kind is DigestKind.WEEK else day, zone)

    @classmethod
    def current(cls, kind: DigestKind, now: datetime, zone: ZoneInfo) -> DigestPeriod:
        """The one that is not over yet."""
        return cls.holding(kind, now.astimezone(zone).date(), zone)

    @property
    def last(self) -> date:
        return self.first + self.kind.length - _DAY

    @property
    def since(self) -> datetime:
        return _midnight(self.first, self.zone)

    @property
    def until(self) -> datetime:
        """Not included."""
        return _midnight(self.last + _DAY, self.zone)

    def before(self) -> DigestPeriod:
        return DigestPeriod(self.kind, self.first - self.kind.length, self.zone)

    def after(self) -> DigestPeriod:
        return DigestPeriod(self.kind, self.first + self.kind.length, self.zone)

    @property
    def title(self) -> str:
        """`Monday, 16 November 2026`, or `16 to 22 November 2026`."""
        if self.kind is DigestKind.DAY:
            return f"{self.first:%A}, {_written(self.first)}"
        same_month = self.first.replace(day=1) == self.last.replace(day=1)
        start = str(self.first.day) if same_month else f"{self.first.day} {self.first:%B}"
        if self.first.year != self.last.year:
            start = _written(self.first)
        return f"{start} to {_written(self.last)}"


def zone_of(settings: Settings) -> ZoneInfo:
    """The owner's time zone, as far as the settings say."""
    return ZoneInfo(settings.digest.zone or settings.backfill.day_zone)


def kind_of(settings: Settings) -> DigestKind | None:
    """What is sent by e-mail; None if nothing is."""
    return {"daily": DigestKind.DAY, "weekly": DigestKind.WEEK}.get(settings.digest.every)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _written(day: date) -> str:
    return f"{day.day} {day:%B %Y}"
