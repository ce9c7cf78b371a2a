"""Starts the stand-in: inside a test, or as `postroom sim gmail` with a generated mailbox. Loopback only."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import uvloop

from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput
from postroom.mailboxes.gmail.quota import PROFILES, ProfileName
from postroom.sim.gmail import scopes
from postroom.sim.gmail.app import GmailApp
from postroom.sim.gmail.call import MailboxState
from postroom.sim.gmail.control import SimControl
from postroom.sim.gmail.faults import Faults
from postroom.sim.gmail.gateway import Gateway
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.oauth import Grants, OAuth
from postroom.sim.gmail.quota_meter import QuotaLimits, QuotaMeter
from postroom.sim.gmail.sources import MailboxSource, RememberingSource
from postroom.sim.serving import HOST, serving, until_stopped
from postroom.webserver import listening

REQUESTS_IN_FLIGHT = 10
BATCH_PARTS_AT_ONCE = 50


@dataclass(frozen=True)
class GmailSim:
    """A running stand-in, as its callers see it."""

    url: str
    token: str
    email: str
    control_token: str
    control: SimControl


def limits_named(quota: str) -> QuotaLimits:
    """`legacy` and `2026` as Google has them, `none` for no limit at all."""
    if quota == "none":
        return QuotaLimits()
    if quota not in list(ProfileName):
        raise BadInput("quota", f"{quota!r} is not known; choose one of {', '.join(ProfileName)}, none")
    return QuotaLimits(PROFILES[ProfileName(quota)], REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)


@contextlib.asynccontextmanager
async def running_sim(
    source: MailboxSource,
    *,
    quota: str | QuotaLimits = "none",
    clock: Clock | None = None,
    port: int = 0,
) -> AsyncIterator[GmailSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    limits = limits_named(quota) if isinstance(quota, str) else quota
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), QuotaMeter(limits, clock), Faults()
    control, control_token = SimControl(box, grants, meter, faults), secrets.token_urlsafe(24)
    gateway = Gateway(box, grants, meter, faults)
    app = GmailApp(gateway, OAuth(grants, source.email), control, control_token, clock)
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(app, listener, before_stop=app.release):
        yield GmailSim(url, grants.allow(scopes.ALL), source.email, control_token, control)


async def run_until_stopped(
    source: MailboxSource,
    *,
    quota: str | QuotaLimits,
    port: int,
    announce: Callable[[GmailSim], None],
    clock: Clock | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the stand-in answers."""
    stopped = until_stopped()
    async with running_sim(source, quota=quota, port=port, clock=clock) as sim:
        announce(sim)
        await stopped.wait()


EMAIL = "owner@example.com"
SERVICE_TIME_S = 0.02
"""With a quota, calls take about as long as a quick answer of the real service, so that its limit on requests in
flight means something; without one, nothing may slow down what is measured."""


def build(messages: int, seed: int, email: str = EMAIL) -> MailboxSource:
    """The mailbox that the command serves."""
    return RememberingSource(GeneratedMailbox(messages=messages, seed=seed, email=email))


def serve(*, port: int, messages: int, seed: int, quota: str) -> None:
    """Serve until stopped; one line of JSON on standard output says when and where."""
    limits = limits_named(quota)
    if limits.profile is not None:
        limits = replace(limits, service_time_s=SERVICE_TIME_S)
    source = build(messages, seed)
    uvloop.run(run_until_stopped(source, quota=limits, port=port, announce=_announce))


def _announce(sim: GmailSim) -> None:
    ready = {"url": sim.url, "token": sim.token, "email": sim.email, "control_token": sim.control_token}
    print(json.dumps(ready), flush=True)
