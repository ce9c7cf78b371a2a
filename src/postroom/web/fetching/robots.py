"""robots.txt by RFC 9309, cached for all processes: what a site forbids is not fetched, and its delay is kept.

No robots.txt (4xx) allows everything. One that cannot be fetched (5xx, 429, timeout) forbids everything for now,
unless an older one is still known: that one stays in force.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select

from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.web import robots_cache
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, NotAllowed
from postroom.mail.charsets import decode_text
from postroom.telemetry import logs
from postroom.web.extraction.web_reader import RobotsVerdict, WebReader
from postroom.web.fetching.fetcher import HttpAnswer, WebFetcher
from postroom.web.fetching.interface import Disallowed, Unavailable, UnknownHost
from postroom.web.fetching.targets import Target, read_target, redirected

log = logs.get(__name__)

LARGEST = 512 * 1024
"""At least 500 KiB must be read by the standard; what goes beyond is treated as a broken file: as if there was none."""
ASK_AGAIN = timedelta(minutes=10)
"""After a failed attempt."""
_MOST_REDIRECTS = 5
_MOST_REMEMBERED = 64
_NO_ANSWER = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """The cached robots.txt of an origin."""

    status: int
    body: str
    fetched_at: datetime
    expires_at: datetime

    @property
    def is_readable(self) -> bool:
        return 200 <= self.status < 300

    @property
    def allows_all(self) -> bool:
        return 400 <= self.status < 500


class Robots:
    """The robots.txt rules that `WebFetcher` obeys. `agent` is the product token that rules may name."""

    def __init__(
        self, database: Database, clock: Clock, agent: str, keep: timedelta, reader: WebReader | None = None
    ) -> None:
        self._database = database
        self._clock = clock
        self._agent = agent
        self._keep = keep
        self._reader = reader or WebReader()
        self._unreadable: OrderedDict[tuple[str, datetime], str] = OrderedDict()

    async def crawl_delay(self, target: Target, fetch: WebFetcher, patience: timedelta | None) -> float:
        known = await self._current(target, fetch, patience)
        if known.allows_all:
            return 0.0
        if not known.is_readable:
            raise Unavailable(
                f"{target.origin}/robots.txt {_problem(known)}, so nothing is fetched from there for now",
                retry_after=max(known.expires_at - self._clock.now(), timedelta(seconds=1)),
            )
        verdict = await self._verdict(target, known)
        if not verdict.allowed:
            raise Disallowed(f"robots.txt of {target.origin} does not allow {target.shown}")
        return verdict.delay_s

    async def _current(self, target: Target, fetch: WebFetcher, patience: timedelta | None) -> _Known:
        while True:
            known = await self._remembered(target.origin)
            if known is not None and self._is_fresh(known):
                return known
            answer = await self._ask(target.origin, fetch, patience)
            if answer is not None:
                return await self._remember(target, known, *answer)

    async def _remembered(self, origin: str) -> _Known | None:
        return await self._database.read(lambda tx: _read(tx, origin))

    def _is_fresh(self, known: _Known) -> bool:
        return self._clock.now() < known.expires_at

    async def _remember(self, target: Target, known: _Known | None, status: int, body: str) -> _Known:
        now = self._clock.now()
        lasting = 200 <= status < 300 or 400 <= status < 500
        fresh = _Known(status, body, now, now + (self._keep if lasting else ASK_AGAIN))
        if not (fresh.is_readable or fresh.allows_all) and known is not None and known.is_readable:
            log.warning("web.robots_stale", origin=target.origin, status=fresh.status)
            fresh = _Known(known.status, known.body, known.fetched_at, fresh.expires_at)
        await self._database.write(lambda tx: _write(tx, target.origin, fresh))
        return fresh

    async def _ask(self, origin: str, fetch: WebFetcher, patience: timedelta | None) -> tuple[int, str] | None:
        """The status in force and the text; None if another process fetched it while we waited for our turn."""
        target = read_target(f"{origin}/robots.txt")

        async def needless() -> bool:
            known = await self._remembered(origin)
            return known is not None and self._is_fresh(known)

        try:
            for _ in range(_MOST_REDIRECTS + 1):
                answer = await fetch.ask(target, largest=LARGEST, patience=patience, needless=needless)
                if answer is None:
                    return None
                if answer.status not in (301, 302, 303, 307, 308):
                    return _in_force(answer)
                target, patience = redirected(target, answer.headers.get("location", "")), None
        except UnknownHost:
            raise
        except Unavailable as error:
            log.info("web.robots_unreachable", origin=origin, reason=error.message)
            return _NO_ANSWER, ""
        except (Fatal, BadInput) as error:
            log.info("web.robots_broken", origin=origin, reason=error.message)
            return 404, ""
        except NotAllowed as error:
            if target.origin == origin:
                raise
            log.warning("web.robots_elsewhere", origin=origin, reason=error.message)
            return _NO_ANSWER, ""
        return 404, ""  # redirects without end: as if there was none, says the standard

    async def _verdict(self, target: Target, known: _Known) -> RobotsVerdict:
        """A file that could not be parsed once is not parsed again, since each attempt may take seconds."""
        key = (target.origin, known.fetched_at)
        if (problem := self._unreadable.get(key)) is not None:
            raise Disallowed(problem)
        try:
            return await self._reader.robots(target.origin, known.body, target.url, self._agent)
        except Disallowed as error:
            self._unreadable[key] = error.message
            if len(self._unreadable) > _MOST_REMEMBERED:
                self._unreadable.popitem(last=False)
            raise


def _problem(known: _Known) -> str:
    return "could not be fetched" if known.status == _NO_ANSWER else f"answered with status {known.status}"


def _in_force(answer: HttpAnswer) -> tuple[int, str]:
    if answer.status == 429:
        return _NO_ANSWER, ""
    if 200 <= answer.status < 300:
        return answer.status, decode_text(answer.body, "utf-8")[0]
    return answer.status, ""


def _read(tx: Tx, origin: str) -> _Known | None:
    row = tx.execute(select(robots_cache).where(robots_cache.c.origin == origin)).one_or_none()
    return None if row is None else _Known(row.status, row.body, row.fetched_at, row.expires_at)


def _write(tx: Tx, origin: str, known: _Known) -> None:
    values = {
        "status": known.status,
        "body": known.body,
        "fetched_at": known.fetched_at,
        "expires_at": known.expires_at,
    }
    row = insert(tx, robots_cache).values(origin=origin, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[robots_cache.c.origin], set_=values))
