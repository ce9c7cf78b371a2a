"""Builds the fetcher of an installation, with robots.txt, pacing and the address check, for as long as a block runs."""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta

from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.settings import WebSettings
from postroom.web.fetching.fetcher import PinnedTransport, WebFetcher
from postroom.web.fetching.interface import FetchLimits, LimitsOf, MayLead
from postroom.web.fetching.politeness import DatabasePace
from postroom.web.fetching.robots import Robots
from postroom.web.fetching.targets import AddressGuard, Resolver, SystemResolver

ROBOTS_TOKEN = "postroom"  # noqa: S105 (a name, which robots.txt files may speak to)


@dataclass(frozen=True, slots=True)
class WebClient:
    fetcher: WebFetcher
    pace: DatabasePace


@asynccontextmanager
async def open_web_client(
    database: Database,
    clock: Clock,
    settings: WebSettings,
    limits_of: LimitsOf,
    *,
    may_lead: MayLead = lambda here, there: True,
    private_hosts: Collection[str] = (),
    resolver: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
    dice: random.Random | None = None,
) -> AsyncIterator[WebClient]:
    """`private_hosts`: what sources allow beside the settings. What follows it is for tests."""
    limits = FetchLimits(
        largest_body=settings.max_page_bytes,
        total_s=settings.timeout_s,
        connect_s=min(10.0, settings.timeout_s),
        read_s=min(20.0, settings.timeout_s),
        most_redirects=settings.max_redirects,
    )
    guard = AddressGuard(resolver or SystemResolver(), {*settings.private_hosts, *private_hosts})
    wire = PinnedTransport(guard, limits, settings.user_agent, tls)
    pace = DatabasePace(database, clock, timedelta(seconds=limits.total_s), dice)
    robots = Robots(database, clock, ROBOTS_TOKEN, timedelta(hours=settings.robots_hours))
    try:
        yield WebClient(WebFetcher(wire, pace, robots, limits_of, limits, clock, may_lead), pace)
    finally:
        await wire.close()
