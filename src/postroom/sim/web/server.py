"""The stand-in web site as an ASGI application, inside a test or as a process of its own: its pages by path, a control
endpoint that changes them, and a journal of every request with its times.

It listens on the loopback address only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, cast
from urllib.parse import parse_qsl

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from postroom.domain.clock import Clock, SystemClock
from postroom.sim.serving import ABORT, HOST, Receive, Scope, Send, serving, until_stopped
from postroom.sim.web import gazette as listings
from postroom.sim.web import hostile
from postroom.sim.web.gazette import Gazette, SiteReply, html, missing, redirect
from postroom.webserver import listening


@dataclass(slots=True)
class SiteVisit:
    number: int
    path: str
    agent: str
    began: float
    """Seconds on the stand-in's own clock."""
    in_flight: int
    """Requests under way when this one came, itself included."""
    status: int | None = None
    ended: float | None = None


class VisitJournal:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.visits: list[SiteVisit] = []
        self._in_flight = 0

    def begin(self, path: str, agent: str) -> SiteVisit:
        self._in_flight += 1
        visit = SiteVisit(len(self.visits) + 1, path, agent, self._clock.monotonic(), self._in_flight)
        self.visits.append(visit)
        return visit

    def end(self, visit: SiteVisit, status: int | None) -> None:
        self._in_flight -= 1
        visit.ended, visit.status = self._clock.monotonic(), status

    @property
    def most_in_flight(self) -> int:
        return max((visit.in_flight for visit in self.visits), default=0)

    def gaps(self) -> list[float]:
        """Seconds from the beginning of each request to that of the next."""
        return [later.began - earlier.began for earlier, later in zip(self.visits, self.visits[1:], strict=False)]

    def as_json(self) -> list[dict[str, object]]:
        return [asdict(visit) for visit in self.visits]


ROBOTS = "User-agent: *\nDisallow: /private/\nSitemap: {origin}/sitemap.xml\n"


class SiteFault(BaseModel):
    """What the next requests under a path get in place of their page."""

    model_config = ConfigDict(extra="forbid")
    path: str = Field("/", description="requests whose path begins so")
    status: int = Field(503, ge=200, le=599)
    retry_after: str | None = None
    times: int = Field(1, ge=1)


class RobotsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")
    text: str = ROBOTS
    status: int = Field(200, ge=200, le=599)
    location: str | None = None


class DocumentChange(BaseModel):
    """A document gets a new version."""

    model_config = ConfigDict(extra="forbid")
    number: int = Field(ge=1)


@dataclass
class GazetteSite:
    gazette: Gazette
    clock: Clock
    robots: RobotsFile = field(default_factory=RobotsFile)
    faults: list[SiteFault] = field(default_factory=list)

    def change(self, change: DocumentChange) -> None:
        self.gazette.versions[change.number] = self.gazette.versions.get(change.number, 1) + 1

    def answer(self, origin: str, path: str, query: str, headers: dict[str, str]) -> SiteReply:
        fault = self._fault(path)
        if fault is not None:
            wait = (("Retry-After", fault.retry_after),) if fault.retry_after else ()
            return SiteReply(fault.status, b"<h1>Trouble</h1>", headers=wait)
        if path == "/robots.txt":
            return self._robots_txt(origin)
        asked = dict(parse_qsl(query))
        return self._found(origin, path, asked, headers) or missing()

    def _fault(self, path: str) -> SiteFault | None:
        fault = next((each for each in self.faults if path.startswith(each.path)), None)
        if fault is not None:
            fault.times -= 1
            self.faults = [each for each in self.faults if each.times > 0]
        return fault

    def _robots_txt(self, origin: str) -> SiteReply:
        if self.robots.location:
            return redirect(self.robots.location)
        text = self.robots.text.replace("{origin}", origin)
        return SiteReply(self.robots.status, text.encode(), "text/plain; charset=utf-8")

    def _found(self, origin: str, path: str, asked: dict[str, str], headers: dict[str, str]) -> SiteReply | None:
        if path in hostile.HOSTILE:
            return hostile.HOSTILE[path]()
        first = path.split("/")[1]
        page = _number(asked.get("page"), 1)
        if first.startswith("sitemap"):
            return listings.sitemap(self.gazette, origin, path)
        match first:
            case "archive":
                return listings.archive(self.gazette, path)
            case "news" | "news-loop":
                return listings.news(self.gazette, page, loops=first == "news-loop")
            case "endless":
                return listings.endless(page)
            case "documents":
                document = self.gazette.by_path(path)
                return None if document is None else self.gazette.page(document, headers)
            case _:
                return self._special(path, asked) or self._redirected(path, asked)

    def _special(self, path: str, asked: dict[str, str]) -> SiteReply | None:
        match path.split("/")[1:]:
            case [""]:
                return html("Stand-in gazette", "<h1>Službeni glasnik</h1><p><a href='/news'>Novosti</a></p>")
            case ["about" | "private", *_]:
                return html(path, f"<article><h1>{path}</h1><p>Stranica koja se rijetko mijenja.</p></article>")
            case ["slow"]:
                seconds = min(_number(asked.get("seconds"), 5), 600)
                return SiteReply(stream=hostile.slow_body(seconds, self.clock))
            case ["bombs", "endless"]:
                return SiteReply(stream=hostile.endless_body())
            case _:
                return None

    def _redirected(self, path: str, asked: dict[str, str]) -> SiteReply | None:
        match path.split("/")[1:]:
            case ["redirect", number]:
                return redirect(f"/documents/{number}", 301)
            case ["redirect-loop", name]:
                return redirect(f"/redirect-loop/{'b' if name == 'a' else 'a'}")
            case ["redirect-chain", number] if number.isdecimal():
                return redirect(f"/redirect-chain/{int(number) - 1}" if int(number) > 1 else "/about")
            case ["redirect-to"]:
                return redirect(asked.get("url", ""))
            case _:
                return None


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else otherwise


CONTROL_HEADER = "x-sim-control"
_JSON = "application/json"


class SiteApp:
    def __init__(self, site: GazetteSite, journal: VisitJournal, control_token: str) -> None:
        self.site = site
        self.journal = journal
        self._token = control_token
        self._controls: dict[str, Callable[[bytes], object]] = {
            "requests": lambda body: {"requests": journal.as_json(), "most_in_flight": journal.most_in_flight},
            "robots": self._set_robots,
            "faults": lambda body: site.faults.append(SiteFault.model_validate_json(body)),
            "change": lambda body: site.change(DocumentChange.model_validate_json(body)),
            "reset": self._reset,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the stand-in serves http only, not {scope['type']}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = str(scope["path"])
        if path.startswith("/_sim/"):
            reply = self._control(path.removeprefix("/_sim/"), headers, await _body(receive))
            await _write(reply, scope, receive, send)
            return
        query = scope["query_string"].decode("latin-1")
        visit = self.journal.begin(f"{path}?{query}" if query else path, headers.get("user-agent", ""))
        status = None
        try:
            reply = self.site.answer(f"http://{headers.get('host', '')}", path, query, headers)
            status = reply.status
            await _write(reply, scope, receive, send)
        finally:
            self.journal.end(visit, status)

    def _control(self, name: str, headers: dict[str, str], body: bytes) -> SiteReply:
        if not hmac.compare_digest(headers.get(CONTROL_HEADER, "").encode(), self._token.encode()):
            return _json({"error": f"the control endpoint needs its token in {CONTROL_HEADER}"}, 401)
        action = self._controls.get(name)
        if action is None:
            return _json({"error": f"there is nothing here; known are {', '.join(self._controls)}"}, 404)
        try:
            return _json(action(body or b"{}") or {})
        except ValidationError as error:
            return _json({"error": str(error)}, 400)

    def _set_robots(self, body: bytes) -> None:
        self.site.robots = RobotsFile.model_validate_json(body)

    def _reset(self, body: bytes) -> None:
        self.journal.visits.clear()
        self.site.faults.clear()
        self.site.robots = RobotsFile()


def _json(value: object, status: int = 200) -> SiteReply:
    return SiteReply(status, json.dumps(value).encode(), _JSON)


async def _body(receive: Receive) -> bytes:
    pieces, more = [], True
    while more:
        event = await receive()
        pieces.append(event.get("body", b""))
        more = event.get("more_body", False)
    return b"".join(pieces)


async def _stream(pieces: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    """Send until the end, or until the reader disconnects: some bodies never end."""
    gone = asyncio.create_task(_gone(receive))
    try:
        async for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            await asyncio.sleep(0)
            if gone.done():
                return
    finally:
        gone.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(reply: SiteReply, scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", reply.content_type.encode("latin-1"))] if reply.status not in (304, 204) else []
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    headers.append((b"x-postroom-simulated", b"true"))
    lies = reply.announced_length is not None
    if reply.stream is None and reply.status != 304:
        length = reply.announced_length if reply.announced_length is not None else len(reply.body)
        headers.append((b"content-length", b"%d" % length))
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    if reply.stream is not None:
        await _stream(reply.stream, receive, send)
    await send({"type": "http.response.body", "body": reply.body, "more_body": lies})
    if lies:
        cast("dict[str, Any]", scope["extensions"])[ABORT]["abort"]()
        await _gone(receive)


@dataclass(frozen=True)
class SiteSim:
    """A running stand-in, as its callers see it."""

    url: str
    control_token: str
    site: GazetteSite
    journal: VisitJournal


@contextlib.asynccontextmanager
async def running_site(
    documents: int = 100, seed: int = 0, *, port: int = 0, clock: Clock | None = None
) -> AsyncIterator[SiteSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    site, journal, token = GazetteSite(Gazette(documents, seed), clock), VisitJournal(clock), secrets.token_urlsafe(24)
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(SiteApp(site, journal, token), listener, before_stop=lambda: None):
        yield SiteSim(url, token, site, journal)


async def serve(*, port: int, documents: int, seed: int) -> None:
    """Serve until SIGTERM or SIGINT; one line of JSON on standard output says when and where."""
    stopped = until_stopped()
    async with running_site(documents, seed, port=port) as sim:
        print(json.dumps({"url": sim.url, "control_token": sim.control_token}), flush=True)
        await stopped.wait()
