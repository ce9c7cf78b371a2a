"""Fetches pages: each hop of a redirect is checked, allowed by robots.txt and waits for its domain's turn.

Each request has a connection of its own, to an address that was checked a moment before; the name is looked up once, so
a name that resolves differently a moment later leads nowhere else. TLS and `Host` still use the name.

What the owner asks for one by one (the pictures of a message, unsubscribing from a list, a mail provider's settings)
goes over the same wire, so to public addresses only and within bounds. It carries no cookie, no referrer and no name of
this program. robots.txt is for programs that walk sites; here a person asked for one thing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from email.message import Message
from typing import Protocol

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.mailboxes.gmail.error_mapping import retry_after
from postroom.settings import WebSettings
from postroom.tls import trusted
from postroom.web.fetching import interface, targets
from postroom.web.fetching.decompression import decode_body

_ACCEPT = "text/html, application/xhtml+xml, application/xml;q=0.9, application/pdf;q=0.9, */*;q=0.5"
_SMALL = 64 * 1024
"""Less than this is decompressed in the event loop."""
_NO_BODY = frozenset({204, 304, *range(300, 304), 307, 308})


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class PinnedTransport:
    def __init__(
        self,
        guard: targets.AddressGuard,
        limits: interface.FetchLimits,
        user_agent: str,
        tls: ssl.SSLContext | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._guard = guard
        self._limits = limits
        self._user_agent = user_agent
        connections = httpx2.Limits(max_connections=None, max_keepalive_connections=0)
        self._transport = transport or httpx2.AsyncHTTPTransport(
            verify=tls or trusted(), trust_env=False, limits=connections
        )

    async def close(self) -> None:
        await self._transport.aclose()

    async def exchange(
        self,
        target: targets.Target,
        headers: Mapping[str, str],
        *,
        largest: int | None = None,
        form: bytes | None = None,
    ) -> HttpAnswer:
        """Send one request and read the whole answer within the limits. With a `form` it is a POST, sent once: another
        address of the host is tried only where the one before refused the connection."""
        most = self._limits.largest_body if largest is None else largest
        try:
            async with asyncio.timeout(self._limits.total_s):
                addresses = await self._guard.addresses(target)
                async with self._asked(target, addresses, headers, form) as response:
                    return await _read(target, response, most)
        except TimeoutError:
            raise interface.Unavailable(f"{target.shown} took longer than {self._limits.total_s:g} s") from None
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise interface.Unreachable(f"{target.shown} cannot be reached: {error or type(error).__name__}") from None
        except httpx2.TimeoutException as error:
            raise interface.Unavailable(f"{target.shown} did not answer in time ({type(error).__name__})") from None
        except httpx2.RemoteProtocolError as error:
            raise interface.Unavailable(f"{target.shown} broke off or does not speak HTTP: {error}") from None
        except httpx2.HTTPError as error:
            raise interface.Unavailable(f"{target.shown} cannot be reached: {error or type(error).__name__}") from None

    @asynccontextmanager
    async def _asked(
        self, target: targets.Target, addresses: list[targets.Address], headers: Mapping[str, str], form: bytes | None
    ) -> AsyncIterator[httpx2.Response]:
        response = await self._first_that_answers(target, addresses, headers, form)
        try:
            yield response
        finally:
            await response.aclose()

    async def _first_that_answers(
        self, target: targets.Target, addresses: list[targets.Address], headers: Mapping[str, str], form: bytes | None
    ) -> httpx2.Response:
        *others, last = addresses
        for address in others:
            try:
                return await self._transport.handle_async_request(self._request(target, address, headers, form))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._transport.handle_async_request(self._request(target, last, headers, form))

    def _request(
        self, target: targets.Target, address: targets.Address, headers: Mapping[str, str], form: bytes | None
    ) -> httpx2.Request:
        host = f"[{address}]" if address.version == 6 else str(address)
        limits = self._limits
        return httpx2.Request(
            "GET" if form is None else "POST",
            f"{target.scheme}://{host}:{target.port}{target.path}",
            headers={
                "Host": target.authority,
                "User-Agent": self._user_agent,
                "Accept": _ACCEPT,
                "Accept-Encoding": "gzip, deflate",
                "Connection": "close",
                **({} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}),
                **headers,
            },
            content=form,
            extensions={
                "sni_hostname": target.host,
                "timeout": {
                    "connect": limits.connect_s,
                    "read": limits.read_s,
                    "write": limits.read_s,
                    "pool": limits.connect_s,
                },
            },
        )


async def _read(target: targets.Target, response: httpx2.Response, most: int) -> HttpAnswer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    if response.status_code in _NO_BODY:
        return HttpAnswer(response.status_code, headers, b"")
    raw = await _read_raw(target, response, most)
    encoding = headers.get("content-encoding", "")
    try:
        if len(raw) <= _SMALL and not encoding:
            return HttpAnswer(response.status_code, headers, raw)
        body = await asyncio.to_thread(decode_body, raw, encoding, most)
    except interface.BadAnswer as error:
        raise interface.BadAnswer(f"{target.shown}: {error.message}") from None
    except interface.TooLarge as error:
        raise interface.TooLarge(f"{target.shown}: {error.message}") from None
    return HttpAnswer(response.status_code, headers, body)


async def _read_raw(target: targets.Target, response: httpx2.Response, most: int) -> bytes:
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and len(announced) < 19 and int(announced) > most:
        raise interface.TooLarge(f"{target.shown} has {int(announced):,} bytes; at most {most:,} are fetched.")
    pieces, size = [], 0
    async for piece in response.aiter_raw():
        size += len(piece)
        if size > most:
            raise interface.TooLarge(f"{target.shown} has more than the {most:,} bytes that are fetched.")
        pieces.append(piece)
    return b"".join(pieces)


_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MISSING = frozenset({404, 410})
_OVERLOADED = frozenset({429, 503})
_LATER = frozenset({408, 425, *range(500, 600)})


class RobotsRules(Protocol):
    async def crawl_delay(self, target: targets.Target, fetch: WebFetcher, patience: timedelta | None) -> float:
        """Seconds that the site asks for between requests; raises Disallowed where it forbids this one."""


class WebFetcher:
    """Implements `Fetching`."""

    def __init__(
        self,
        wire: PinnedTransport,
        pace: interface.DomainPace,
        robots: RobotsRules,
        limits_of: interface.LimitsOf,
        limits: interface.FetchLimits,
        clock: Clock,
        may_lead: interface.MayLead = lambda here, there: True,
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
        purpose: interface.Purpose,
        conditional: interface.Validators | None = None,
        patience: timedelta | None = None,
    ) -> interface.Fetched:
        target = first = targets.read_target(url)
        headers = conditional.headers() if conditional else {}
        visited = {target.url}
        while True:
            answer = await self._hop(target, headers, purpose, patience)
            if answer.status not in _REDIRECTS:
                return self._fetched(url, target, answer, conditional=bool(headers))
            target = self._next(target, answer, visited)
            if not self._may_lead(first.host, target.host):
                raise interface.Astray(
                    f"{first.shown} redirects to {target.host}, which is none of its source's domains"
                )
            # What was waited for is not thrown away: once under way, a chain of redirects is followed to its end.
            patience = None

    async def ask(
        self,
        target: targets.Target,
        *,
        largest: int,
        patience: timedelta | None,
        needless: Callable[[], Awaitable[bool]],
    ) -> HttpAnswer | None:
        """One request in its turn, and the answer whatever its status; for robots.txt. None if the request is no longer
        needed when its turn comes, because another process has fetched the same."""
        limits = self._limits_of(target.host)
        async with self._pace.turn(limits, patience=patience):
            return None if await needless() else await self._answer(limits, target, {}, largest)

    async def _hop(
        self, target: targets.Target, headers: Mapping[str, str], purpose: interface.Purpose, patience: timedelta | None
    ) -> HttpAnswer:
        delay = 0.0
        if purpose is not interface.Purpose.ROBOTS:
            delay = await self._robots.crawl_delay(target, self, patience)
        limits = self._limits_of(target.host)
        async with self._pace.turn(limits, crawl_delay_s=delay, patience=patience):
            return await self._answer(limits, target, headers, None)

    async def _answer(
        self, limits: interface.DomainLimits, target: targets.Target, headers: Mapping[str, str], largest: int | None
    ) -> HttpAnswer:
        answer = await self._wire.exchange(target, headers, largest=largest)
        if answer.status in _OVERLOADED and (wait := self._asked_wait(answer)):
            await self._pace.hold(limits.domain, wait)
        return answer

    def _asked_wait(self, answer: HttpAnswer) -> timedelta | None:
        return retry_after(answer.headers, "", self._clock.now())

    def _next(self, target: targets.Target, answer: HttpAnswer, visited: set[str]) -> targets.Target:
        location = answer.headers.get("location", "")
        if not location:
            raise interface.BadAnswer(f"{target.shown} redirects to nowhere.")
        if len(visited) > self._limits.most_redirects:
            raise interface.BadAnswer(f"{target.shown} redirects on after {self._limits.most_redirects} redirects.")
        try:
            following = targets.redirected(target, location)
        except BadInput as error:
            raise interface.BadAnswer(
                f"{target.shown} redirects to something that is no web address: {error.problem}"
            ) from None
        if following.url in visited:
            raise interface.BadAnswer(f"{target.shown} redirects in a circle.")
        visited.add(following.url)
        return following

    def _fetched(self, url: str, target: targets.Target, answer: HttpAnswer, *, conditional: bool) -> interface.Fetched:
        self._require_page(target, answer, conditional=conditional)
        content_type, charset = _content_type(answer.headers.get("content-type", ""))
        return interface.Fetched(
            url=url,
            final_url=target.url,
            status=answer.status,
            body=answer.body,
            content_type=content_type,
            charset=charset,
            validators=interface.Validators(_validator(answer, "etag"), _validator(answer, "last-modified")),
            fetched_at=self._clock.now(),
        )

    def _require_page(self, target: targets.Target, answer: HttpAnswer, *, conditional: bool) -> None:
        status = answer.status
        if 200 <= status < 300 or (status == 304 and conditional):
            return
        if status in _MISSING:
            raise interface.Missing("url", f"{target.shown} does not exist (status {status})")
        if status == 429:
            raise interface.Throttled(f"{target.shown} asks for fewer requests", retry_after=self._asked_wait(answer))
        if status in _LATER:
            raise interface.Unavailable(
                f"{target.shown} answered with status {status}", retry_after=self._asked_wait(answer)
            )
        raise interface.Refused(f"{target.shown} answered with status {status}", status=status)


def _validator(answer: HttpAnswer, name: str) -> str | None:
    """The value as sent, if it can be stored and sent back; else None."""
    value = answer.headers.get(name, "").strip()
    return value if value and len(value) <= 500 and value.isascii() and value.isprintable() else None


def _content_type(header: str) -> tuple[str, str | None]:
    parsed = Message()
    parsed["content-type"] = "".join(each for each in header[:300] if each.isprintable())
    named = parsed.get_content_type() if header.strip() else ""
    charset = parsed.get_param("charset")
    return named, charset[:40] if isinstance(charset, str) else None


_UNNAMED = "Mozilla/5.0"
"""Says nothing about the program or the machine."""
_PICTURES = "image/png, image/jpeg, image/gif, image/webp"
_MOST_REDIRECTS = 3
_LIMITS = interface.FetchLimits(
    largest_body=4 << 20, total_s=10.0, connect_s=5.0, read_s=5.0, most_redirects=_MOST_REDIRECTS
)


class OwnerRequests:
    def __init__(self, wire: PinnedTransport) -> None:
        self._wire = wire

    async def picture(self, url: str, *, largest: int) -> bytes:
        """The body behind the address, through a few redirects, each checked anew. What it is has to be looked at."""
        return await self._followed(url, _PICTURES, largest)

    async def document(self, url: str, *, largest: int) -> bytes:
        """The same for a file that is only believed over TLS: a redirect to plain HTTP is refused."""
        return await self._followed(url, "application/xml, text/xml", largest, only_tls=True)

    async def _followed(self, url: str, accept: str, largest: int, *, only_tls: bool = False) -> bytes:
        target = targets.read_target(url)
        for _ in range(_MOST_REDIRECTS + 1):
            if only_tls and target.scheme != "https":
                raise interface.BadAnswer(f"{target.shown} is not protected by TLS.")
            answer = await self._wire.exchange(target, {"Accept": accept}, largest=largest)
            if answer.status not in _REDIRECTS:
                return _body(target, answer)
            target = targets.redirected(target, answer.headers.get("location", ""))
        raise interface.BadAnswer(f"{target.shown} redirects on after {_MOST_REDIRECTS} redirects.")

    async def post_form(self, url: str, form: bytes) -> int:
        """Send a form once; the status of the answer. Redirects are not followed."""
        answer = await self._wire.exchange(targets.read_target(url), {"Accept": "*/*"}, form=form)
        return answer.status


def _body(target: targets.Target, answer: HttpAnswer) -> bytes:
    if answer.status != 200:
        raise interface.Refused(f"{target.shown} answered with status {answer.status}", status=answer.status)
    return answer.body


@asynccontextmanager
async def open_owner_requests(
    settings: WebSettings, *, resolver: targets.Resolver | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[OwnerRequests]:
    """Hosts that `web.allow_private_hosts` names may have private addresses, as for web sources."""
    guard = targets.AddressGuard(resolver or targets.SystemResolver(), settings.private_hosts)
    wire = PinnedTransport(guard, _LIMITS, _UNNAMED, tls)
    try:
        yield OwnerRequests(wire)
    finally:
        await wire.close()
