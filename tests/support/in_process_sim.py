"""The whole stand-in without a socket, so that it and the client can live in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import httpx2

from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.limiter import Limiter
from postroom.gmail.ports import Lane
from postroom.gmail.quota import QuotaProfile
from postroom.gmail.sim import scopes
from postroom.gmail.sim.app import SimApp
from postroom.gmail.sim.control import Control
from postroom.gmail.sim.faults import Faults
from postroom.gmail.sim.gateway import Gateway
from postroom.gmail.sim.grants import Grants
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.meter import Limits, Meter
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.oauth import OAuth
from postroom.gmail.sim.server import BATCH_PARTS_AT_ONCE, REQUESTS_IN_FLIGHT
from postroom.gmail.sim.serving import ABORT
from postroom.gmail.transport import TransportConfig
from tests.support.gmail_client import FixedToken


class _FarAway(httpx2.AsyncBaseTransport):
    """Every request and every answer takes a while, each its own."""

    def __init__(self, app: SimApp, seed: int) -> None:
        self._inner = httpx2.ASGITransport(app=cast("Any", _abortable(app)))
        self._dice = random.Random(seed)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(self._dice.uniform(0.02, 0.15))
        response = await self._inner.handle_async_request(request)
        await asyncio.sleep(self._dice.uniform(0.02, 0.25))
        return response


def _abortable(app: SimApp) -> Callable[..., Awaitable[None]]:
    """A connection that the stand-in can cut, as its own server lets it."""

    def abort() -> None:
        raise httpx2.RemoteProtocolError("the stand-in cut the connection")

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {ABORT: {"abort": abort}}}, receive, send)

    return call


@dataclass(frozen=True)
class InProcessSim:
    app: SimApp
    control: Control
    token: str
    clock: Clock

    @contextlib.asynccontextmanager
    async def client(
        self,
        limiter: Limiter,
        profile: QuotaProfile | None,
        *,
        seed: int = 0,
        lane: Lane = Lane.SYNC,
        batch_size: int | None = None,
    ) -> AsyncIterator[GmailClient]:
        async with connected(
            FixedToken(self.token),
            limiter,
            self.clock,
            profile=profile,
            config=TransportConfig(api_base="http://127.0.0.1"),
            lane=lane,
            batch_size=batch_size,
            http_transport=_FarAway(self.app, seed),
        ) as client:
            yield client


def in_process_sim(source: MailSource, profile: QuotaProfile | None, clock: Clock) -> InProcessSim:
    limits = Limits() if profile is None else Limits(profile, REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), Meter(limits, clock), Faults()
    control = Control(box, grants, meter, faults)
    app = SimApp(Gateway(box, grants, meter, faults), OAuth(grants, source.email), control, "control", clock)
    return InProcessSim(app, control, grants.allow(scopes.ALL), clock)
