"""Dates that mail claims and that cannot be true, and when it was received instead. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.mail.headers import Headers
from postroom.mail.parsing import parse_date

_FIRST_YEAR = 1971
"""Of the first electronic mail."""
_CLOCKS_DIFFER = timedelta(days=2)


def cannot_be_true(date: datetime, now: datetime) -> bool:
    return date.year < _FIRST_YEAR or date > now + _CLOCKS_DIFFER


def received_at(headers: Headers, now: datetime) -> datetime | None:
    """When the last server says that it received the message: every server adds its header above the others."""
    for value in headers.get_all("Received"):
        date = parse_date(value.rpartition(";")[2].strip())
        if date is not None and not cannot_be_true(date, now):
            return date
    return None


def date_problem(claimed: datetime | None, filed: datetime) -> str | None:
    """The mark of a message whose own date cannot be true, given the date under which it is filed."""
    if claimed is None or not cannot_be_true(claimed, filed):
        return None
    return f"Date says {_day(claimed)}, which cannot be true; filed under {_day(filed)}"


def _day(date: datetime) -> str:
    """By hand: `strftime` does not pad early years everywhere."""
    return f"{date.year:04}-{date.month:02}-{date.day:02}"
