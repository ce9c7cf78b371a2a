"""Archives whose pages are named after days, months or years: which pages a span of time has, newest first. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta

_PLACEHOLDER = re.compile(r"\{(yyyy|yy|mm|m|dd|d)\}")
_FORMS = {"yyyy": "{0.year:04d}", "yy": "{1:02d}", "mm": "{0.month:02d}", "m": "{0.month}", "dd": "{0.day:02d}"}


def placeholders_in(pattern: str) -> frozenset[str]:
    return frozenset(_PLACEHOLDER.findall(pattern))


def page_of(pattern: str, day: date) -> str:
    """The page of the archive that this day is on."""

    def filled(match: re.Match[str]) -> str:
        return _FORMS.get(match[1], "{0.day}").format(day, day.year % 100)

    return _PLACEHOLDER.sub(filled, pattern)


def pages_between(pattern: str, first: date, last: date) -> Iterator[str]:
    """The pages of all days from first to last, both included, each page once, newest first."""
    used = placeholders_in(pattern)
    by_day, by_month = bool(used & {"dd", "d"}), bool(used & {"mm", "m"})
    day = last
    while day >= first:
        yield page_of(pattern, day)
        day = _before(day, by_day=by_day, by_month=by_month)


def _before(day: date, *, by_day: bool, by_month: bool) -> date:
    """The last day of the page before this one's."""
    if not by_day:
        day = day.replace(day=1) if by_month else day.replace(month=1, day=1)
    return day - timedelta(days=1)
