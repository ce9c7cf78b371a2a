"""Starts the stand-in: inside a test, or as a process of its own. Listens on the loopback address only."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput
from postroom.gmail.quota import PROFILES, ProfileName
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
from postroom.gmail.sim.serving import HOST, serving, until_told_to_stop
from postroom.webserver import listening

REQUESTS_IN_FLIGHT = 10
BATCH_PARTS_AT_ONCE = 50


@dataclass(frozen=True)
class Sim:
    """A running stand-in, as its callers see it."""

    url: str
    token: str
    email: str
    control_token: str
    control: Control


def limits_named(quota: str) -> Limits:
    """`legacy` and `2026` as Google has them, `none` for no limit at all."""
    if quota == "none":
        return Limits()
    if quota not in list(ProfileName):
        raise BadInput("quota", f"{quota!r} is not known; choose one of {', '.join(ProfileName)}, none")
    return Limits(PROFILES[ProfileName(quota)], REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)


@contextlib.asynccontextmanager
async def running_sim(
    source: MailSource,
    *,
    quota: str | Limits = "none",
    clock: Clock | None = None,
    port: int = 0,
) -> AsyncIterator[Sim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    limits = limits_named(quota) if isinstance(quota, str) else quota
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), Meter(limits, clock), Faults()
    control, control_token = Control(box, grants, meter, faults), secrets.token_urlsafe(24)
    gateway = Gateway(box, grants, meter, faults)
    app = SimApp(gateway, OAuth(grants, source.email), control, control_token, clock)
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(app, listener, before_stop=app.release):
        yield Sim(url, grants.allow(scopes.ALL), source.email, control_token, control)


async def run_until_stopped(
    source: MailSource, *, quota: str | Limits, port: int, announce: Callable[[Sim], None], clock: Clock | None = None
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the stand-in answers."""
    stopped = until_told_to_stop()
    async with running_sim(source, quota=quota, port=port, clock=clock) as sim:
        announce(sim)
        await stopped.wait()
