"""`postroom sim gmail`: the stand-in as a process, with a generated mailbox."""

from __future__ import annotations

import json
from dataclasses import replace

import uvloop

from postroom.gmail.sim.mailbox import GeneratedMailbox
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.remembering import RememberingSource
from postroom.gmail.sim.server import Sim, limits_named, run_until_stopped

EMAIL = "owner@example.com"
SERVICE_TIME_S = 0.02
"""With a quota, calls take about as long as a quick answer of the real service, so that its limit on requests in
flight means something; without one, nothing may slow down what is measured."""


def build(messages: int, seed: int, email: str = EMAIL) -> MailSource:
    """The mailbox that the command serves."""
    return RememberingSource(GeneratedMailbox(messages=messages, seed=seed, email=email))


def serve(*, port: int, messages: int, seed: int, quota: str) -> None:
    """Serve until told to stop; one line of JSON on standard output says when and where."""
    limits = limits_named(quota)
    if limits.profile is not None:
        limits = replace(limits, service_time_s=SERVICE_TIME_S)
    source = build(messages, seed)
    uvloop.run(run_until_stopped(source, quota=limits, port=port, announce=_announce))


def _announce(sim: Sim) -> None:
    ready = {"url": sim.url, "token": sim.token, "email": sim.email, "control_token": sim.control_token}
    print(json.dumps(ready), flush=True)
