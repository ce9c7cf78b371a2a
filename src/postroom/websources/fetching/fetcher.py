"""Gets pages by the one road: each hop of a redirect is checked, allowed by robots.txt and waits for its turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from email.message import Message
from typing import Protocol

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.gmail.retry_after import retry_after
from postroom.websources.fetching.errors import Astray, BadAnswer, Missing, Refused, Throttled, Unavailable
from postroom.websources.fetching.ports import (
    DomainLimits,
    Fetched,
    FetchLimits,
    LimitsOf,
    MayLead,
    Pace,
    Purpose,
    Validators,
)
from postroom.websources.fetching.targets import Target, read_target, redirected
from postroom.websources.fetching.wire import Answer, Wire

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_OVERLOADED = frozenset({429, 503})
_LATER = frozenset({408, 425, *range(500, 600)})


class RobotsRules(Protocol):
    async def crawl_delay(self, target: Target, fetch: Fetcher, patience: timedelta | None) -> float:
        """Seconds that the site asks for between requests; raises Disallowed where it forbids this one."""


class Fetcher:
    """Implements `ports.Fetching`."""

    def __init__(
        self,
        wire: Wire,
        pace: Pace,
        robots: RobotsRules,
        limits_of: LimitsOf,
        limits: FetchLimits,
        clock: Clock,
        may_lead: MayLead = lambda here, there: True,
    ) -> None:
        self._wire = wire
        self._pace = pace
        self._robots = robots
        self._limits_of = limits_of
        self._limits = limits
        self._clock = clock
        self._may_lead = may_lead

    async def get(
        self,
        url: str,
        *,
        purpose: Purpose,
        conditional: Validators | None = None,
        patience: timedelta | None = None,
    ) -> Fetched:
        target = first = read_target(url)
        headers = conditional.headers() if conditional else {}
        visited = {target.url}
        while True:
            answer = await self._hop(target, headers, purpose, patience)
            if answer.status not in _REDIRECTS:
                return self._fetched(url, target, answer, conditional=bool(headers))
            target = self._next(target, answer, visited)
            if not self._may_lead(first.host, target.host):
                raise Astray(f"{first.shown} redirects to {target.host}, which is none of its source's domains")
            # What was waited for is not thrown away: once under way, a chain of redirects is followed to its end.
            patience = None

    async def ask(
        self, target: Target, *, largest: int, patience: timedelta | None, needless: Callable[[], Awaitable[bool]]
    ) -> Answer | None:
        """One polite exchange and its bare answer, whatever the status: for robots.txt. None where the question has
        become needless by the time that it is our turn: others were waiting for the same."""
        limits = self._limits_of(target.host)
        async with self._pace.turn(limits, patience=patience):
            return None if await needless() else await self._answer(limits, target, {}, largest)

    async def _hop(
        self, target: Target, headers: Mapping[str, str], purpose: Purpose, patience: timedelta | None
    ) -> Answer:
        delay = 0.0
        if purpose is not Purpose.ROBOTS:
            delay = await self._robots.crawl_delay(target, self, patience)
        limits = self._limits_of(target.host)
        async with self._pace.turn(limits, crawl_delay_s=delay, patience=patience):
            return await self._answer(limits, target, headers, None)

    async def _answer(
        self, limits: DomainLimits, target: Target, headers: Mapping[str, str], largest: int | None
    ) -> Answer:
        answer = await self._wire.exchange(target, headers, largest=largest)
        if answer.status in _OVERLOADED and (wait := self._asked_wait(answer)):
            await self._pace.hold(limits.domain, wait)
        return answer

    def _asked_wait(self, answer: Answer) -> timedelta | None:
        return retry_after(answer.headers, "", self._clock.now())

    def _next(self, target: Target, answer: Answer, visited: set[str]) -> Target:
        location = answer.headers.get("location", "")
        if not location:
            raise BadAnswer(f"{target.shown} redirects to nowhere.")
        if len(visited) > self._limits.most_redirects:
            raise BadAnswer(f"{target.shown} redirects on after {self._limits.most_redirects} redirects.")
        try:
            following = redirected(target, location)
        except BadInput as error:
            raise BadAnswer(f"{target.shown} redirects to something that is no web address: {error.problem}") from None
        if following.url in visited:
            raise BadAnswer(f"{target.shown} redirects in a circle.")
        visited.add(following.url)
        return following

    def _fetched(self, url: str, target: Target, answer: Answer, *, conditional: bool) -> Fetched:
        self._require_page(target, answer, conditional=conditional)
        content_type, charset = _content_type(answer.headers.get("content-type", ""))
        return Fetched(
            url=url,
            final_url=target.url,
            status=answer.status,
            body=answer.body,
            content_type=content_type,
            charset=charset,
            validators=Validators(_validator(answer, "etag"), _validator(answer, "last-modified")),
            fetched_at=self._clock.now(),
        )

    def _require_page(self, target: Target, answer: Answer, *, conditional: bool) -> None:
        status = answer.status
        if 200 <= status < 300 or (status == 304 and conditional):
            return
        if status in _MISSING:
            raise Missing("url", f"{target.shown} does not exist (status {status})")
        if status == 429:
            raise Throttled(f"{target.shown} asks for fewer requests", retry_after=self._asked_wait(answer))
        if status in _LATER:
            raise Unavailable(f"{target.shown} answered with status {status}", retry_after=self._asked_wait(answer))
        raise Refused(f"{target.shown} answered with status {status}", status=status)


def _validator(answer: Answer, name: str) -> str | None:
    """As it was sent, if it is fit to be stored and sent back."""
    value = answer.headers.get(name, "").strip()
    return value if value and len(value) <= 500 and value.isascii() and value.isprintable() else None


def _content_type(header: str) -> tuple[str, str | None]:
    parsed = Message()
    parsed["content-type"] = "".join(each for each in header[:300] if each.isprintable())
    named = parsed.get_content_type() if header.strip() else ""
    charset = parsed.get_param("charset")
    return named, charset[:40] if isinstance(charset, str) else None
