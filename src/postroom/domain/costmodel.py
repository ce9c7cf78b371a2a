"""The arithmetic of an estimate, in exact money: what it costs to judge mail, and how long a job takes.

C = N_total * p_full * T_full / 1,000,000 * R, where N_total * p_full are the messages that a model judges.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from postroom.domain.money import Micros
from postroom.domain.tariffs import Tariff, Tokens

_HOUR_S = 3_600
_DAY_S = 86_400


def classification_cost(messages_full: int, tokens_each: Tokens, tariff: Tariff) -> Micros:
    """What it costs to judge so many messages."""
    return Micros(messages_full * tariff.cost(tokens_each))


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
