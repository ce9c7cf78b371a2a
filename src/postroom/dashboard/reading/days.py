"""Where a day begins: at midnight of the zone in which daily caps turn, so that mail and money tell of the same day."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

from postroom.settings import BackfillSettings


def start_of_day(now: datetime, settings: BackfillSettings) -> datetime:
    return _midnight(now.astimezone(settings.zone).date(), settings)


def end_of_day(day: date, settings: BackfillSettings) -> datetime:
    return _midnight(day + timedelta(days=1), settings)


def _midnight(day: date, settings: BackfillSettings) -> datetime:
    return datetime.combine(day, time(), settings.zone).astimezone(UTC)
