"""The arithmetic of an estimate, in exact money: what it costs to judge mail, and how long a job takes.

C = N_total * p_full * T_full / 1,000,000 * R
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum

from postroom.domain.money import Micros

_HOUR_S = 3_600
_DAY_S = 86_400


def classification_cost(total: int, share_full: Decimal, tokens_each: int, dollars_per_million: Decimal) -> Micros:
    """What it costs to judge the full share of so many messages, at a blended price for a million tokens."""
    exact = total * share_full * tokens_each * dollars_per_million
    return Micros(int(exact.to_integral_value(ROUND_CEILING)))


class Binds(StrEnum):
    """What a job's duration hangs on."""

    RATE = "rate_limit_per_hour"
    COST_CAP = "daily_cost_cap_cents"
    QUOTA = "source_quota"
    NOTHING = "nothing"
    """There is nothing to do."""


@dataclass(frozen=True, slots=True)
class Duration:
    seconds: int
    binds: Binds
    by_rate_s: int
    by_cost_cap_s: int
    by_quota_s: int


def duration(
    *,
    messages: int,
    rate_per_hour: int,
    cost: Micros,
    cap_per_day: Micros,
    quota_units: int,
    units_per_minute: int | None,
) -> Duration:
    """How long a job takes: as long as the slowest of its limits. Without a known quota, that one is left out."""
    by_rate = -(-messages * _HOUR_S // rate_per_hour)
    # A day's budget is spent on that day; only what is left over waits for the next to begin.
    by_cap = (-(-cost // cap_per_day) - 1) * _DAY_S if cost > cap_per_day else 0
    by_quota = -(-quota_units * 60 // units_per_minute) if units_per_minute else 0
    longest = max(by_rate, by_cap, by_quota)
    if longest == 0:
        binds = Binds.NOTHING
    elif longest == by_cap:
        binds = Binds.COST_CAP
    else:
        binds = Binds.RATE if longest == by_rate else Binds.QUOTA
    return Duration(longest, binds, by_rate, by_cap, by_quota)
