"""Money is a whole number of micro-dollars. Floats never touch it; cents appear only at the contract's edge."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal, InvalidOperation
from typing import NewType

from postroom.domain.errors import BadInput

Micros = NewType("Micros", int)

NO_MONEY = Micros(0)
MICROS_PER_DOLLAR = 1_000_000
MICROS_PER_CENT = 10_000
_TOO_MUCH = 10**12
"""Dollars. A number of a few characters may have millions of digits; it is refused before anything is done with it."""


def from_cents(cents: int) -> Micros:
    return Micros(cents * MICROS_PER_CENT)


def to_cents(amount: Micros) -> int:
    """Whole cents, rounded up: a reported spend never hides a fraction of a cent."""
    return -(-amount // MICROS_PER_CENT)


def parse_dollars(text: str, field: str = "amount") -> Micros:
    """`"1.50"` or `"$1.50"` as micro-dollars; finer than a micro-dollar rounds up."""
    try:
        dollars = Decimal(text.strip().removeprefix("$"))
    except InvalidOperation:
        raise BadInput(field, f"{text!r} is not an amount in dollars; write for example 1.50") from None
    if not dollars.is_finite() or dollars.copy_abs() >= _TOO_MUCH:
        raise BadInput(field, f"{text[:50]!r} is not a possible amount")
    return Micros(int((dollars * MICROS_PER_DOLLAR).to_integral_value(ROUND_CEILING)))


def format_dollars(amount: Micros) -> str:
    """Dollars and cents, for people; what is less than a cent, and not nothing, is said to be so."""
    if 0 < abs(amount) < MICROS_PER_CENT:
        return "less than $0.01"
    dollars, cents = divmod((abs(amount) + MICROS_PER_CENT // 2) // MICROS_PER_CENT, 100)
    return f"{'-' if amount < 0 else ''}${dollars:,}.{cents:02d}"
