"""Metrics of fetching: by lane and outcome only; never an address."""

from __future__ import annotations

from postroom.telemetry.metrics import meter

_pages = meter.create_counter("postroom.web.pages", unit="{page}", description="pages asked for, by lane and outcome")


def record(method: str, outcome: str) -> None:
    _pages.add(1, {"lane": method.lower(), "outcome": outcome})
