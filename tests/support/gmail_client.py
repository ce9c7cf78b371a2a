"""Our client pointed at the stand-in, with credentials that a test can watch."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.errors import LoginNeeded
from postroom.gmail.limiter import Limiter, limiter_for
from postroom.gmail.ports import Lane
from postroom.gmail.quota import QuotaProfile
from postroom.gmail.sim.server import Sim
from postroom.gmail.transport import TransportConfig
from postroom.gmail.tuner import TunerLimits

UNHURRIED = TunerLimits(start_workers=32, start_rps=1e6, max_rps=1e6, p95_limit_s=3_600)
"""For tests that are not about pace."""


class FixedToken:
    """A token that cannot be renewed."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def access_token(self, *, rejected: str | None = None) -> str:
        if rejected is not None:
            raise LoginNeeded
        return self._token


class RenewedToken:
    """Renews through the stand-in, once for however many ask at the same time."""

    def __init__(self, token: str, renew: Callable[[], str]) -> None:
        self._token = token
        self._renew = renew
        self._lock = asyncio.Lock()
        self.renewals = 0

    async def access_token(self, *, rejected: str | None = None) -> str:
        async with self._lock:
            if rejected == self._token:
                await asyncio.sleep(0)
                self.renewals += 1
                self._token = self._renew()
            return self._token


class EagerClock(SystemClock):
    """Real time, but pauses take none: back-off is asked for and counted, not waited out."""

    def __init__(self) -> None:
        self.pauses: list[float] = []
        self._skipped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._skipped

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self._skipped += seconds
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def client_of(
    sim: Sim,
    *,
    clock: Clock | None = None,
    limiter: Limiter | None = None,
    credentials: FixedToken | RenewedToken | None = None,
    profile: QuotaProfile | None = None,
    config: TransportConfig | None = None,
    lane: Lane = Lane.USER_ACTION,
    batch_size: int | None = None,
) -> AsyncIterator[GmailClient]:
    clock = clock or EagerClock()
    limiter = limiter or limiter_for(profile, clock, tuning=UNHURRIED, dice=random.Random(1))
    async with connected(
        credentials or FixedToken(sim.token),
        limiter,
        clock,
        profile=profile,
        config=config or TransportConfig(api_base=sim.url),
        lane=lane,
        batch_size=batch_size,
    ) as client:
        yield client
