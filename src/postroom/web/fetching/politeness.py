"""Turns at a domain, shared by all processes through the database: so many at once, so long apart, with jitter.

Where a domain takes one request at a time, the delay counts from the end of an answer; where it takes several, from
the start of a request. Each host is treated as its source says, else as the settings say; of several sources, the
gentlest counts.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from sqlalchemy import delete, func, insert, select, update

from postroom.db import Database, Tx
from postroom.db.tables.web import domain_leases, domain_pace, web_lanes
from postroom.domain.clock import Clock
from postroom.domain.ids import new_id
from postroom.settings import WebSettings
from postroom.web.fetching.interface import DomainLimits, LimitsOf, NotYet
from postroom.web.fetching.urls import host_of
from postroom.web.sources import ConfiguredSources, WebSource

LONGEST_HOLD = timedelta(days=1)
_LOOK_AGAIN_S = 0.2
"""How soon to try again while other requests are under way, whose end is unknown."""
_LONGEST_NAP_S = 60.0
_GRACE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class _Lease:
    id: str
    domain: str


@dataclass(frozen=True, slots=True)
class _Wait:
    seconds: float


class DatabasePace:
    """Implements `DomainPace`."""

    def __init__(
        self, database: Database, clock: Clock, longest_request: timedelta, dice: random.Random | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._lease_for = longest_request + _GRACE
        self._dice = dice or random.Random()  # noqa: S311 (jitter, not a secret)

    @asynccontextmanager
    async def turn(
        self, limits: DomainLimits, *, crawl_delay_s: float = 0.0, patience: timedelta | None = None
    ) -> AsyncIterator[None]:
        lease = await self._wait_for(limits, crawl_delay_s, patience)
        try:
            yield
        finally:
            await self._database.write(lambda tx: self._release(tx, lease, limits, crawl_delay_s))

    async def hold(self, domain: str, wait: timedelta) -> None:
        await self._database.write(lambda tx: _not_before(tx, domain, self._clock.now() + min(wait, LONGEST_HOLD)))

    async def wait_of(self, limits: DomainLimits) -> timedelta:
        """About how long it is until the domain's next turn; takes no turn."""
        query = select(domain_pace.c.next_allowed_at).where(domain_pace.c.domain == limits.domain)
        at: datetime | None = await self._database.read(lambda tx: tx.execute(query).scalar_one_or_none())
        now = self._clock.now()
        return at - now if at is not None and now < at <= now + LONGEST_HOLD + _GRACE else timedelta()

    async def _wait_for(self, limits: DomainLimits, crawl_delay_s: float, patience: timedelta | None) -> _Lease:
        until = None if patience is None else self._clock.monotonic() + patience.total_seconds()
        while True:
            answer = await self._database.write(lambda tx: self._ask(tx, limits, crawl_delay_s))
            if isinstance(answer, _Lease):
                return answer
            if until is not None and self._clock.monotonic() + answer.seconds > until:
                wait = timedelta(seconds=answer.seconds)
                raise NotYet(
                    f"It is not the turn of {limits.domain} for another {answer.seconds:.1f} s", retry_after=wait
                )
            await self._clock.sleep(min(answer.seconds, _LONGEST_NAP_S))

    def _ask(self, tx: Tx, limits: DomainLimits, crawl_delay_s: float) -> _Lease | _Wait:
        """A lease if the domain is free, else how long to wait."""
        next_allowed = _locked(tx, limits.domain, self._clock)
        now = self._clock.now()  # after the lock: the wait for it must not count
        if next_allowed is not None and now < next_allowed <= now + LONGEST_HOLD + _GRACE:
            return _Wait((next_allowed - now).total_seconds())
        tx.execute(
            delete(domain_leases).where(domain_leases.c.domain == limits.domain, domain_leases.c.expires_at <= now)
        )
        under_way = select(func.count()).select_from(domain_leases).where(domain_leases.c.domain == limits.domain)
        if tx.execute(under_way).scalar_one() >= limits.max_concurrent:
            return _Wait(_LOOK_AGAIN_S)
        lease = _Lease(new_id(), limits.domain)
        tx.execute(insert(domain_leases).values(id=lease.id, domain=lease.domain, expires_at=now + self._lease_for))
        _set_next(tx, limits.domain, now + self._delay(limits, crawl_delay_s), now)
        return lease

    def _release(self, tx: Tx, lease: _Lease, limits: DomainLimits, crawl_delay_s: float) -> None:
        _locked(tx, lease.domain, self._clock)
        tx.execute(delete(domain_leases).where(domain_leases.c.id == lease.id))
        if limits.max_concurrent == 1:
            _not_before(tx, lease.domain, self._clock.now() + self._delay(limits, crawl_delay_s))

    def _delay(self, limits: DomainLimits, crawl_delay_s: float) -> timedelta:
        """The site's own delay raises the least, and the jitter stays: requests on the dot look like an attack."""
        least = max(limits.min_delay_s, min(crawl_delay_s, LONGEST_HOLD.total_seconds()))
        return timedelta(seconds=self._dice.uniform(least, least + limits.max_delay_s - limits.min_delay_s))


def place_in_line(tx: Tx, line: str, wait: timedelta, interval: timedelta, now: datetime, *, longest: int) -> timedelta:
    """How long a job should wait that cannot run for another `wait`. Callers get times one interval apart, so that they
    do not all return for the same turn. A line has at most `longest` places, since cancelled jobs never return."""
    tx.insert_missing(web_lanes, {"name": line, "next_at": None})
    end = tx.execute(tx.locking(select(web_lanes.c.next_at).where(web_lanes.c.name == line))).scalar_one()
    earliest = now + wait
    at = earliest if end is None else min(max(earliest, end), earliest + longest * interval)
    tx.execute(update(web_lanes).where(web_lanes.c.name == line).values(next_at=at + interval))
    return at - now


def _locked(tx: Tx, domain: str, clock: Clock) -> datetime | None:
    """When the next request to the domain is allowed; locks its row."""
    tx.insert_missing(domain_pace, {"domain": domain, "next_allowed_at": None, "updated_at": clock.now()})
    query = select(domain_pace.c.next_allowed_at).where(domain_pace.c.domain == domain)
    found: datetime | None = tx.execute(tx.locking(query)).scalar_one()
    return found


def _not_before(tx: Tx, domain: str, moment: datetime) -> None:
    """Postpone the next turn; never make it earlier."""
    tx.insert_missing(domain_pace, {"domain": domain, "next_allowed_at": None, "updated_at": moment})
    sooner = domain_pace.c.next_allowed_at.is_(None) | (domain_pace.c.next_allowed_at < moment)
    tx.execute(update(domain_pace).where(domain_pace.c.domain == domain, sooner).values(next_allowed_at=moment))


def _set_next(tx: Tx, domain: str, moment: datetime, now: datetime) -> None:
    values = {"next_allowed_at": moment, "updated_at": now}
    tx.execute(update(domain_pace).where(domain_pace.c.domain == domain).values(**values))


_PORTS = {"http": 80, "https": 443}


def limits_of(sources: ConfiguredSources, web: WebSettings) -> LimitsOf:
    def of(host: str) -> DomainLimits:
        named = [_limits(source, web) for source in sources.of_host(host)] or [_limits(None, web)]
        least, most, concurrent = (list(column) for column in zip(*named, strict=True))
        return DomainLimits(_paced(sources, host), max(least) / 1_000, max(*least, *most) / 1_000, min(concurrent))

    return of


def private_hosts(sources: ConfiguredSources) -> frozenset[str]:
    """Hosts that their source allows to have a private address, each only on the ports of the source's endpoints, so
    that other services of the same machine stay out of reach."""
    allowed: set[str] = set()
    for source in sources:
        if source.allow_private:
            urls = [urlsplit(endpoint.url) for endpoint in source.endpoint]
            ports = {url.port or _PORTS[url.scheme] for url in urls}
            hosts = {*source.domains, *(host_of(endpoint.url) for endpoint in source.endpoint)}
            allowed |= {f"{host}:{port}" for host in hosts for port in ports}
    return frozenset(allowed)


def _limits(source: WebSource | None, web: WebSettings) -> tuple[int, int, int]:
    if source is None:
        return web.min_delay_ms, web.max_delay_ms, web.max_concurrent
    least = web.min_delay_ms if source.min_delay_ms is None else source.min_delay_ms
    most = web.max_delay_ms if source.max_delay_ms is None else source.max_delay_ms
    return least, most, source.max_concurrent or web.max_concurrent


def _paced(sources: ConfiguredSources, host: str) -> str:
    """The domain that a host belongs to, which is paced as one server."""
    domains = [domain for source in sources.of_host(host) for domain in source.domains]
    return min((domain for domain in domains if host == domain or host.endswith(f".{domain}")), key=len, default=host)
