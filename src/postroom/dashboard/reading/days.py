"""Where a day begins: at midnight of the zone in which daily caps turn, so that mail and money tell of the same day."""

from __future__ import annotations

from datetime import UTC, datetime, time

from postroom.settings import BackfillSettings


def start_of_day(now: datetime, settings: BackfillSettings) -> datetime:
    return datetime.combine(now.astimezone(settings.zone).date(), time(), settings.zone).astimezone(UTC)
