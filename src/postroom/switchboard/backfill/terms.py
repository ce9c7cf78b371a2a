"""The terms of a backfill job that a person wants, checked: a refusal names the field. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from postroom.domain.errors import BadInput
from postroom.domain.money import Micros, format_dollars, from_cents, to_cents
from postroom.domain.terms import BackfillMode, Include
from postroom.settings import BackfillSettings
from postroom.switchboard.spending import CeilingInForce

MOST_AN_HOUR = 1_000_000
MOST_CENTS = 1_000_000
EARLIEST, LATEST = date(1970, 1, 1), date(9000, 12, 31)


@dataclass(frozen=True, slots=True)
class NewBackfill:
    """What to recover. Limits left out are those of the settings; no categories means all mail of the days."""

    connector_type: str
    endpoint_identity: str
    date_from: date
    date_to: date
    target_categories: Sequence[str] = ()
    category_from: Mapping[str, date] = field(default_factory=dict)
    """The first day of a category that begins later than `date_from`."""
    rate_limit_per_hour: int | None = None
    daily_cost_cap_cents: int | None = None
    mode: BackfillMode = BackfillMode.SELECTIVE
    includes: Sequence[str] = ()
    auto_resume: bool | None = None
    uses_model: bool | None = None
    """False: rules decide alone, at no cost. None: the model is asked if there is one with a known price."""
    estimate: Mapping[str, Any] | None = field(default=None)
    """What the person was shown before agreeing."""


def usual_cap(settings: BackfillSettings) -> int:
    """The most cents a day that the settings allow without asking; to exceed it takes a person."""
    return max(settings.daily_cost_cap_cents, settings.background_daily_cost_cap_cents)


def checked(
    settings: BackfillSettings, categories: Collection[str], new: NewBackfill, dearest: Micros | None
) -> dict[str, Any]:
    """The wanted job with defaults filled in; refused by the name of the field. `dearest` is the most that one message
    can cost; None if no model with a known price can be asked."""
    _require_days(new.date_from, new.date_to)
    mode = _member(BackfillMode, new.mode, "mode")
    background = mode is BackfillMode.BACKGROUND
    rate_default = settings.background_rate_limit_per_hour if background else settings.rate_limit_per_hour
    cap_default = settings.background_daily_cost_cap_cents if background else settings.daily_cost_cap_cents
    rate = checked_limit("rate_limit_per_hour", new.rate_limit_per_hour, rate_default, MOST_AN_HOUR)
    cap = checked_limit("daily_cost_cap_cents", new.daily_cost_cap_cents, cap_default, MOST_CENTS)
    chosen = _chosen(new.target_categories, categories, "target_categories")
    return {
        "target_categories": chosen,
        "category_from": _first_days(new, chosen),
        "includes": _chosen(new.includes, list(Include), "includes"),
        "rate_limit_per_hour": rate,
        "daily_cost_cap_cents": cap,
        "uses_model": _uses_model(new.uses_model, cap, dearest),
        "mode": mode,
        "auto_resume": settings.auto_resume if new.auto_resume is None else new.auto_resume,
    }


def _uses_model(wanted: bool | None, cap_cents: int, dearest: Micros | None) -> bool:
    if wanted is False or (wanted is None and dearest is None):
        return False
    if dearest is None:
        raise BadInput(
            "uses_model", "no model with a known price is configured: let rules decide alone, or configure one first"
        )
    require_enough(cap_cents, dearest)
    return True


def require_enough(cap_cents: int, dearest: Micros | None) -> None:
    """A cap below the most that one message can cost would let nothing through."""
    if dearest is not None and from_cents(cap_cents) < dearest:
        least = to_cents(dearest)
        raise BadInput(
            "daily_cost_cap_cents",
            f"one message can cost up to {least} cents with this model, so the least cap that works is {least} cents; "
            "set that, or let rules decide alone",
        )


def require_share(limits: CeilingInForce, dearest: Micros | None) -> None:
    """All backfill together has a share of the ceiling; without room for one message it would let nothing through."""
    if dearest is not None and limits.backfill_share < dearest:
        raise BadInput(
            "uses_model",
            f"one message can cost up to {to_cents(dearest)} cents with this model, and all backfill together may "
            f"spend {format_dollars(limits.backfill_share)} a day: raise the ceiling of model spend "
            "(`postroom model ceiling`), or let rules decide alone",
        )


def _require_days(first: date, last: date) -> None:
    for name, day in (("date_from", first), ("date_to", last)):
        if isinstance(day, datetime) or not isinstance(day, date):
            raise BadInput(name, f"{day!r} is not a day; write for example 2024-01-31")
    if first < EARLIEST:
        raise BadInput("date_from", f"{first} lies before {EARLIEST}, when there was no mail to recover")
    if last > LATEST:
        raise BadInput("date_to", f"{last} lies after {LATEST}")
    if first > last:
        raise BadInput("date_from", f"{first} lies after date_to, {last}")


def _first_days(new: NewBackfill, chosen: Collection[str]) -> dict[str, str]:
    """As they are stored: those that begin later than the job does."""
    for name, day in new.category_from.items():
        if name not in chosen:
            raise BadInput("category_from", f"{name!r} is not one of the target_categories")
        if day > new.date_to:
            raise BadInput("category_from", f"{day} for {name} lies after date_to, {new.date_to}")
    return {name: day.isoformat() for name, day in new.category_from.items() if day > new.date_from}


def checked_limit(name: str, value: int | None, default: int, most: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise BadInput(name, f"{value!r} is not a whole number within 1 to {most:,}")
    return value


def _chosen(values: Sequence[str], known: Collection[str], name: str) -> list[str]:
    if isinstance(values, str) or not all(isinstance(value, str) for value in values):
        raise BadInput(name, "must be a list of names")
    for value in values:
        if value not in known:
            raise BadInput(name, f"{value!r} is not one of {', '.join(known)}")
    return list(dict.fromkeys(str(value) for value in values))


def _member(kind: type[BackfillMode], value: str, name: str) -> BackfillMode:
    try:
        return kind(value)
    except ValueError:
        raise BadInput(name, f"{value!r} is not one of {', '.join(kind)}") from None
