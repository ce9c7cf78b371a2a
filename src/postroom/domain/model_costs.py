"""What asking a model costs, in exact money: the tariff, the estimate for a job, and the most that one call can cost.

Dollars for a million tokens are micro-dollars for one, so amounts need no factor; fractions round up. A reservation
rests on the bounds of a prompt, which are here: a tokenizer that works on bytes never makes more tokens than there are
bytes. An estimate is C = N_total * p_full * T_full / 1,000,000 * R; N_total * p_full messages are judged by a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from enum import StrEnum
from typing import Protocol

from postroom.domain.extras import Extra, is_installed
from postroom.domain.money import MICROS_PER_DOLLAR, Micros

# Prices are looked up once for these figures when a tariff is made, so that one that cannot be read is found early.
_PROBE_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What one call used. Cached input is part of the input, and cheaper with some."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


class Tariff(Protocol):
    def cost(self, used: TokenCounts) -> Micros:
        """What a call with these tokens costs."""

    def most(self, tokens_in: int, tokens_out: int) -> Micros:
        """The most that a call with at most these tokens can cost: at the dearest rate for input."""

    def describe(self) -> str:
        """The price, for people."""


@dataclass(frozen=True, slots=True)
class FixedTariff:
    """So many dollars for a million tokens, in and out."""

    input_price: Decimal
    output_price: Decimal

    def cost(self, used: TokenCounts) -> Micros:
        return _rounded_up(used.input * self.input_price + used.output * self.output_price)

    def most(self, tokens_in: int, tokens_out: int) -> Micros:
        return self.cost(TokenCounts(tokens_in, tokens_out))

    def describe(self) -> str:
        return f"${self.input_price} in, ${self.output_price} out for a million tokens (set by you)"


@dataclass(frozen=True, slots=True)
class PublishedTariff:
    """The provider's price list as `genai-prices` has it, steps and cached tokens included."""

    provider: str
    model: str

    def cost(self, used: TokenCounts) -> Micros:
        dollars = self._dollars(used)
        return _rounded_up(dollars * MICROS_PER_DOLLAR)

    def most(self, tokens_in: int, tokens_out: int) -> Micros:
        plain, written = TokenCounts(tokens_in, tokens_out), TokenCounts(tokens_in, tokens_out, cache_write=tokens_in)
        return max(self.cost(plain), self.cost(written))

    def describe(self) -> str:
        cheap = self._dollars(TokenCounts(1_000_000, 0)), self._dollars(TokenCounts(0, 1_000_000))
        return f"${cheap[0].normalize():f} in, ${cheap[1].normalize():f} out for a million tokens (published)"

    def _dollars(self, used: TokenCounts) -> Decimal:
        from genai_prices import Usage, calc_price  # a large table, which most commands do not need

        usage = Usage(
            input_tokens=used.input,
            output_tokens=used.output,
            cache_read_tokens=min(used.cache_read, used.input) or None,
            cache_write_tokens=min(used.cache_write, used.input) or None,
        )
        return calc_price(usage, self.model, provider_id=self.provider).total_price


def tariff_for(
    provider: str | None, model: str | None, input_price: Decimal | None = None, output_price: Decimal | None = None
) -> Tariff | None:
    """The tariff of the configured model; None where no price is known, and then nothing may be spent."""
    if provider is None or model is None:
        return None
    if input_price is not None and output_price is not None:
        return FixedTariff(input_price, output_price)
    if not is_installed(Extra.MODELS):
        return None
    published = PublishedTariff(provider, model)
    return published if _is_published(published) else None


def _is_published(tariff: PublishedTariff) -> bool:
    """A model without a price, or with a price of nothing, is not one whose cost is known."""
    try:
        return tariff.cost(TokenCounts(_PROBE_TOKENS, _PROBE_TOKENS)) > 0
    except (LookupError, ValueError):
        return False


def _rounded_up(micros: Decimal) -> Micros:
    return Micros(int(micros.to_integral_value(ROUND_CEILING)))


_HOUR_S = 3_600
_DAY_S = 86_400


def classification_cost(messages_full: int, tokens_each: TokenCounts, tariff: Tariff) -> Micros:
    """What it costs to judge so many messages."""
    return Micros(messages_full * tariff.cost(tokens_each))


class Binds(StrEnum):
    """What a job's duration hangs on."""

    RATE = "rate_limit_per_hour"
    COST_CAP = "daily_cost_cap_cents"
    CEILING = "daily_ceiling"
    """The share of the ceiling that all backfill has, where that is less than the job's cap."""
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


def days_for(calls: Iterable[tuple[Micros, Micros]], limit: Micros) -> int:
    """On how many days calls are made one after the other, each with its cost and its most: a day ends when the most
    of the next one no longer fits. One that fits no day is not made."""
    days, spent = 1, 0
    for cost, most in calls:
        if most > limit:
            continue
        if spent + most > limit:
            days, spent = days + 1, 0
        spent += cost
    return days


def job_duration(
    *,
    messages: int,
    rate_per_hour: int,
    days: int,
    quota_units: int,
    units_per_minute: int | None,
) -> Duration:
    """How long a job takes: as long as the slowest of its limits. `days` are those on which its money is spent; without
    a known quota, that one is left out."""
    by_rate = -(-messages * _HOUR_S // rate_per_hour)
    # A day's budget is spent on that day; only what is left over waits for the next to begin.
    by_cap = (days - 1) * _DAY_S
    by_quota = -(-quota_units * 60 // units_per_minute) if units_per_minute else 0
    longest = max(by_rate, by_cap, by_quota)
    if longest == 0:
        binds = Binds.NOTHING
    elif longest == by_cap:
        binds = Binds.COST_CAP
    else:
        binds = Binds.RATE if longest == by_rate else Binds.QUOTA
    return Duration(longest, binds, by_rate, by_cap, by_quota)


MOST_INSTRUCTION_BYTES = 3_000
"""Instructions, the question asked again, and what a provider adds of its own."""
MOST_TOOL_BYTES = 9_200
"""The tools by which the model answers, with the labels and addresses it may choose from."""
MOST_GUIDANCE_BYTES = 4_000
"""Directions and rules in the owner's words."""
MOST_LABEL_BYTES = 1_500
"""What the owner says about labels."""
MOST_THREAD_BYTES = 4_000
"""Earlier messages of the conversation."""
MOST_HEADER_BYTES = 3_000
"""Sender, recipients, subject and the names of attachments, as they stand in a prompt."""
MOST_TEXT_BYTES = 16_000
"""The text of the mail, as it stands in a prompt."""
MOST_BYTES_BESIDE_TEXT = (
    MOST_INSTRUCTION_BYTES
    + MOST_TOOL_BYTES
    + MOST_GUIDANCE_BYTES
    + MOST_LABEL_BYTES
    + MOST_THREAD_BYTES
    + MOST_HEADER_BYTES
)
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\x7f\x85\u2028\u2029"}
"""JSON itself lets these stand as they are; the last three are line breaks too."""


def as_data(value: object) -> str:
    """JSON in which no mail can end its own fence: neither a line break nor a pointed bracket stands for itself."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)


def cut_to_bytes(text: str, most_bytes: int) -> str:
    """As much of the text as fits into so many bytes once it is written as data."""
    text = text.encode("utf-8", "replace").decode()
    text = text[:most_bytes]
    while (size := len(as_data(text).encode())) > most_bytes:
        text = text[: min(len(text) - 1, len(text) * most_bytes // size)]
    return text


PROVIDER_ALLOWANCE = 1_000
"""Tokens that a provider adds to a request of its own, as the frame of messages and tools."""
MOST_REQUEST_BYTES = MOST_BYTES_BESIDE_TEXT + MOST_TEXT_BYTES
"""Of the largest prompt, tools included."""


class Meter(Protocol):
    """The most that asking a model can cost: of one model (`CostMeter`), or of the one that is configured now."""

    @property
    def tariff(self) -> Tariff | None: ...

    @property
    def dearest(self) -> Micros | None: ...

    def most(self, request_bytes: int) -> Micros | None: ...


@dataclass(frozen=True, slots=True)
class CostMeter:
    """The most that asking the configured model can cost; None if unknown, and then nothing is spent.

    `max_output_tokens` bounds all that a model writes, its reasoning included."""

    tariff: Tariff | None
    max_output_tokens: int

    def most(self, request_bytes: int) -> Micros | None:
        """For one call whose prompt and tools have so many bytes."""
        if self.tariff is None:
            return None
        return self.tariff.most(request_bytes + PROVIDER_ALLOWANCE, self.max_output_tokens)

    @property
    def dearest(self) -> Micros | None:
        """For one call about any message."""
        return self.most(MOST_REQUEST_BYTES)
