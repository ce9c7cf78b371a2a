"""The stand-in web site as an ASGI application with a control endpoint, inside a test or as a process of its own.

It listens on the loopback address only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import ValidationError

from postroom.domain.clock import Clock, SystemClock
from postroom.sim.serving import ABORT, HOST, Receive, Scope, Send, serving, until_stopped
from postroom.sim.web.gazette import Gazette, SiteReply
from postroom.sim.web.site import DocumentChange, GazetteSite, RobotsFile, SiteFault, VisitJournal
from postroom.webserver import listening

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
