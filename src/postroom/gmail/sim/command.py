"""`postroom sim gmail`: the stand-in as a process, with a generated mailbox."""

from __future__ import annotations

import json
from importlib import import_module

import uvloop

from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.server import Sim, run_until_stopped

EMAIL = "owner@example.com"


def build(messages: int, seed: int, email: str = EMAIL) -> MailSource:
    """The mailbox that the command serves."""
    mailbox = import_module("postroom.gmail.sim.mailbox")
    source: MailSource = mailbox.GeneratedMailbox(messages=messages, seed=seed, email=email)
    return source


def serve(*, port: int, messages: int, seed: int, quota: str) -> None:
    """Serve until told to stop; one line of JSON on standard output says when and where."""
    source = build(messages, seed)
    uvloop.run(run_until_stopped(source, quota=quota, port=port, announce=_announce))


def _announce(sim: Sim) -> None:
    ready = {"url": sim.url, "token": sim.token, "email": sim.email, "control_token": sim.control_token}
    print(json.dumps(ready), flush=True)
