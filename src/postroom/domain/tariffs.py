"""What a model's tokens cost, exact: Postroom's own price where one is set, else the published one, else nobody knows.

Dollars for a million tokens are micro-dollars for one, so amounts need no factor. What is finer rounds up.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from typing import Protocol

from postroom.domain.extras import Extra, is_installed
from postroom.domain.money import MICROS_PER_DOLLAR, Micros

# Prices are looked up once for these figures when a tariff is made, so that one that cannot be read is found early.
_PROBE_TOKENS = 1_000


@dataclass(frozen=True, slots=True)
class Tokens:
    """What one call used. Cached input is part of the input, and cheaper with some."""

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0


class Tariff(Protocol):
    def cost(self, used: Tokens) -> Micros:
        """What a call with these tokens costs."""

    def describe(self) -> str:
        """The price, for people."""


@dataclass(frozen=True, slots=True)
class FixedTariff:
    """So many dollars for a million tokens, in and out."""

    input_price: Decimal
    output_price: Decimal

    def cost(self, used: Tokens) -> Micros:
        return _rounded_up(used.input * self.input_price + used.output * self.output_price)

    def describe(self) -> str:
        return f"${self.input_price} in, ${self.output_price} out for a million tokens (set by you)"


@dataclass(frozen=True, slots=True)
class PublishedTariff:
    """The provider's price list as `genai-prices` has it, steps and cached tokens included."""

    provider: str
    model: str

    def cost(self, used: Tokens) -> Micros:
        dollars = self._dollars(used)
        return _rounded_up(dollars * MICROS_PER_DOLLAR)

    def describe(self) -> str:
        cheap = self._dollars(Tokens(1_000_000, 0)), self._dollars(Tokens(0, 1_000_000))
        return f"${cheap[0].normalize():f} in, ${cheap[1].normalize():f} out for a million tokens (published)"

    def _dollars(self, used: Tokens) -> Decimal:
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
        return tariff.cost(Tokens(_PROBE_TOKENS, _PROBE_TOKENS)) > 0
    except (LookupError, ValueError):
        return False


def _rounded_up(micros: Decimal) -> Micros:
    return Micros(int(micros.to_integral_value(ROUND_CEILING)))
