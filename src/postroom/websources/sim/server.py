"""Starts the stand-in web site: inside a test, or as a process of its own. Listens on the loopback address only."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass

from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.sim.serving import HOST, serving, until_told_to_stop
from postroom.webserver import listening
from postroom.websources.sim.app import SiteApp
from postroom.websources.sim.documents import Gazette
from postroom.websources.sim.journal import Journal
from postroom.websources.sim.site import Site


@dataclass(frozen=True)
class SiteSim:
    """A running stand-in, as its callers see it."""

    url: str
    control_token: str
    site: Site
    journal: Journal


@contextlib.asynccontextmanager
async def running_site(
    documents: int = 100, seed: int = 0, *, port: int = 0, clock: Clock | None = None
) -> AsyncIterator[SiteSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    site, journal, token = Site(Gazette(documents, seed), clock), Journal(clock), secrets.token_urlsafe(24)
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(SiteApp(site, journal, token), listener, before_stop=lambda: None):
        yield SiteSim(url, token, site, journal)


async def serve(*, port: int, documents: int, seed: int) -> None:
    """Serve until SIGTERM or SIGINT; one line of JSON on standard output says when and where."""
    stopped = until_told_to_stop()
    async with running_site(documents, seed, port=port) as sim:
        print(json.dumps({"url": sim.url, "control_token": sim.control_token}), flush=True)
        await stopped.wait()
