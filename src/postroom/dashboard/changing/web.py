"""A new run of web sources, from what a person writes in a form; a refusal names the field."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from postroom.dashboard.forms import Form
from postroom.domain.errors import BadInput
from postroom.websources.config import Mode
from postroom.websources.run_model import NewRun

MODES = [mode.lower() for mode in Mode]


def new_run_of(form: Form) -> NewRun:
    return NewRun(
        sources=list(form.all("sources")),
        mode=Mode(form.one_of("mode", MODES).upper()),
        max_urls=_count(form, "max_urls"),
        max_urls_per_source=_count(form, "max_urls_per_source"),
        date_from=start_of(_day(form, "date_from")),
        date_to=end_of(_day(form, "date_to"), "date_to"),
        dry_run=form.checked("dry_run"),
    )


def start_of(day: date | None) -> datetime | None:
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


def end_of(day: date | None, field: str) -> datetime | None:
    """The last day is included."""
    start = start_of(day)
    try:
        return None if start is None else start + timedelta(days=1)
    except OverflowError:
        raise BadInput(field, f"{day} lies outside of all calendars") from None


def _count(form: Form, name: str) -> int | None:
    return form.number(name) if form[name] else None


def _day(form: Form, name: str) -> date | None:
    try:
        return date.fromisoformat(form[name]) if form[name] else None
    except ValueError:
        raise BadInput(name, f"{form[name]!r} is not a day; write for example 2024-01-31") from None
