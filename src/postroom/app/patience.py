"""A service that starts while its database is away waits a while for it. A command has no patience, and says so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from postroom.domain.clock import Clock
from postroom.domain.errors import Retryable
from postroom.telemetry import logs

T = TypeVar("T")

OF_A_SERVICE_S = 60.0
"""Longer than a restart of PostgreSQL takes. After it the service ends, and whoever started it is told why."""
_PAUSE_S = 1.0

log = logs.get(__name__)


async def patiently(work: Callable[[], Awaitable[T]], patience_s: float, clock: Clock) -> T:
    deadline = clock.monotonic() + patience_s
    while True:
        try:
            return await work()
        except Retryable as error:
            if clock.monotonic() >= deadline:
                raise
            log.warning("service.waiting", problem=error.message)
        await clock.sleep(_PAUSE_S)
