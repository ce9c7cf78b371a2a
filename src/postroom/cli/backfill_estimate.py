"""`postroom backfill estimate`: what a backfill would bring, cost and take, before anything is begun."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from postroom.cli.output import console
from postroom.domain.money import Micros, format_dollars

_BINDS = {
    "rate_limit_per_hour": "the limit of messages an hour",
    "daily_cost_cap_cents": "the cost cap of a day",
    "source_quota": "the quota of the source",
    "nothing": "nothing: there is nothing to do",
}


def print_estimate(estimate: Mapping[str, Any]) -> None:
    """For people. `--json` prints the estimate as it is."""
    about = "" if estimate["is_exact"] else "about "
    where = "counted in the archive" if estimate["counted_in"] == "archive" else "listed at the source"
    margin = f", give or take {estimate['messages_margin']:,}" if estimate["messages_margin"] else ""
    console.print(f"Messages   {about}{estimate['messages']:,} to take in ({where}{margin})")
    console.print(f"           {about}{estimate['messages_full']:,} of them in full, for the model")
    console.print(f"           {about}{estimate['messages_left_out']:,} others looked at and left out")
    cost = estimate["cost_microdollars"]
    if cost is None:
        console.print(
            "Cost       not known: no model with a price is set up; the job would stop at the first that needs it"
        )
    else:
        each = f"{estimate['tokens_per_message']:,} tokens each, {estimate['price']}"
        console.print(f"Cost       about {format_dollars(Micros(cost))} ({each})", markup=False)
    console.print(f"Duration   about {_spoken(estimate['seconds'])}; what decides is {_BINDS[estimate['binds']]}")


def _spoken(seconds: int) -> str:
    length = timedelta(seconds=seconds)
    if length >= timedelta(days=2):
        return f"{-(-seconds // 86_400)} days"
    if length >= timedelta(hours=2):
        return f"{-(-seconds // 3_600)} hours"
    minutes = max(1, -(-seconds // 60))
    return "a minute" if minutes == 1 else f"{minutes} minutes"
