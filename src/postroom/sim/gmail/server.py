"""The stand-in's HTTP server, and how it is started: inside a test, or as `postroom sim gmail` with a generated
mailbox. Loopback only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from email.utils import format_datetime
from http import HTTPStatus
from typing import cast

import uvloop

from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName
from postroom.sim.gmail import oauth
from postroom.sim.gmail.api_errors import ApiError, invalid
from postroom.sim.gmail.call import MailboxState, MultipartSection, section, sections
from postroom.sim.gmail.control import ControlEndpoint, SimControl
from postroom.sim.gmail.faults import Faults, FaultsOfCall, GmailFault, refuse_at_once, spoiled
from postroom.sim.gmail.gateway import Gateway, QuotaLimits, QuotaMeter, refusal
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.oauth import Grants, OAuth
from postroom.sim.gmail.sources import MailboxSource, RememberingSource
from postroom.sim.serving import ABORT, HOST, Receive, Scope, Send, SimReply, SimRequest, serving, until_stopped
from postroom.webserver import listening

MOST_PARTS = 100
_BOUNDARY = "batch_postroom_sim"


def run_batch(gateway: Gateway, request: SimRequest) -> SimReply:
    """Each call of the batch has its own answer, charge and failure."""
    parts = sections(request.body, request.headers.get("content-type", ""))
    if len(parts) > MOST_PARTS:
        raise invalid(f"The batch request has {len(parts)} calls, which exceeds the maximum of {MOST_PARTS}.")
    gateway.meter.tally.batches += 1
    answers = [_answer(part, _one(gateway, request, part, number)) for number, part in enumerate(parts)]
    body = b"".join(answers) + f"--{_BOUNDARY}--\r\n".encode()
    return SimReply(200, body, content_type=f"multipart/mixed; boundary={_BOUNDARY}")


def _one(gateway: Gateway, outer: SimRequest, part: MultipartSection, number: int) -> SimReply:
    try:
        call = gateway.admit(_inner(outer, part))
        fault = gateway.trouble_for(call, in_batch=True).fault
        gateway.meter.check_batch_part(number)
        refuse_at_once(fault)
        return spoiled(gateway.carry_out(call, fault), fault)
    except ApiError as error:
        return gateway.refuse(error)


def _inner(outer: SimRequest, part: MultipartSection) -> SimRequest:
    """The request inside a part; it may bring its own credentials, else those of the batch count."""
    line, _, rest = part.body.lstrip(b"\r\n").partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) < 2:
        raise invalid("Failed to parse batch request, error: a part has no request line.")
    path, _, query_string = words[1].partition("?")
    inner = section(rest)
    headers = {"authorization": outer.headers.get("authorization", "")} | inner.headers
    return SimRequest(words[0].upper(), path, query_string, headers, inner.body)


def _answer(part: MultipartSection, reply: SimReply) -> bytes:
    content_id = part.headers.get("content-id", "").strip("<>")
    lines = [f"--{_BOUNDARY}", "Content-Type: application/http"]
    if content_id:
        lines.append(f"Content-ID: <response-{content_id}>")
    lines += ["", f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}"]
    if reply.body:
        lines.append(f"Content-Type: {reply.content_type}")
    lines.append(f"Content-Length: {len(reply.body)}")
    lines += [f"{name}: {value}" for name, value in reply.headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + reply.body + b"\r\n"


MAX_BODY = 64 * 1024 * 1024
_BATCH = ("/batch", "/batch/gmail/v1")


class _Dropped(Exception):
    """The connection is to be cut without an answer."""


class GmailApp:
    def __init__(self, gateway: Gateway, oauth: OAuth, control: SimControl, control_token: str, clock: Clock) -> None:
        self._gateway = gateway
        self._oauth = oauth
        self._control = control
        self._control_endpoint = ControlEndpoint(control, control_token)
        self._clock = clock
        self._released = asyncio.Event()
        self._date_second = -1
        self._date = b""
        control.on_release = self.release

    def release(self) -> None:
        """Let go of every call that hangs; later ones hang again."""
        self._released.set()
        self._released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the stand-in serves http only, not {scope['type']}")
        is_control = scope["path"].startswith("/_sim/")
        if not is_control:
            self._gateway.meter.enter()
        try:
            reply = await self._reply(scope, receive, is_control)
            await self._write(reply, send)
            if reply.announced_length is not None:
                raise _Dropped
        except _Dropped:
            _abort(scope)()
            await _gone(receive)
        finally:
            if not is_control:
                self._gateway.meter.leave()

    async def _reply(self, scope: Scope, receive: Receive, is_control: bool) -> SimReply:
        try:
            request = await _read(scope, receive)
            if is_control:
                return self._control_endpoint.answer(request, scope["client"][0] if scope["client"] else "")
            if self._oauth.serves(request):
                return await self._login(request, receive)
            if request.path in _BATCH and request.verb == "POST":
                return await self._batch(request, receive)
            return await self._call(request, receive)
        except ApiError as error:
            return refusal(error) if is_control else self._gateway.refuse(error)

    async def _call(self, request: SimRequest, receive: Receive) -> SimReply:
        call = self._gateway.admit(request)
        self._gateway.meter.check_in_flight()
        await self._take_time()
        trouble = self._gateway.trouble_for(call)
        return await self._under(trouble, receive, lambda: self._gateway.carry_out(call, trouble.fault))

    async def _batch(self, request: SimRequest, receive: Receive) -> SimReply:
        if "authorization" in request.headers:
            self._gateway.authenticate(request)
        self._gateway.meter.check_in_flight()
        await self._take_time()
        self._gateway.meter.tally.calls["batch"] += 1
        trouble = self._gateway.faults.strike("batch")
        return await self._under(trouble, receive, lambda: run_batch(self._gateway, request))

    async def _login(self, request: SimRequest, receive: Receive) -> SimReply:
        if request.path != "/token":
            return self._oauth.answer(request)
        self._gateway.meter.tally.calls["token"] += 1
        trouble = self._gateway.faults.strike("token")
        return await self._under(trouble, receive, lambda: self._oauth.answer(request))

    async def _take_time(self) -> None:
        if self._gateway.meter.limits.service_time_s:
            await self._clock.sleep(self._gateway.meter.limits.service_time_s)

    async def _under(self, trouble: FaultsOfCall, receive: Receive, act: Callable[[], SimReply]) -> SimReply:
        """Carry out the request, with the fault before or after it."""
        if trouble.delay_s:
            await self._clock.sleep(trouble.delay_s)
        fault = trouble.fault
        if fault is None:
            return act()
        refuse_at_once(fault)
        if not fault.after_effect:
            await self._break_off(fault, receive)
        reply = act()
        await self._break_off(fault, receive)
        return spoiled(reply, fault)

    async def _break_off(self, fault: GmailFault, receive: Receive) -> None:
        if fault.kind == "hang":
            await self._hang(receive)
        if fault.kind in ("hang", "drop"):
            raise _Dropped

    async def _hang(self, receive: Receive) -> None:
        """Hang until released, or until the caller disconnects."""
        waits = [asyncio.ensure_future(self._released.wait()), asyncio.ensure_future(_gone(receive))]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _write(self, reply: SimReply, send: Send) -> None:
        length = len(reply.body) if reply.announced_length is None else reply.announced_length
        headers = [(b"date", self._date_header())]
        if reply.status != 204:
            headers.append((b"content-length", b"%d" % length))
        if reply.body:
            headers.append((b"content-type", reply.content_type.encode("latin-1")))
        headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
        more = reply.announced_length is not None
        await send({"type": "http.response.body", "body": reply.body, "more_body": more})

    def _date_header(self) -> bytes:
        now = self._clock.now() + self._control.skew
        if int(now.timestamp()) != self._date_second:
            self._date_second = int(now.timestamp())
            self._date = format_datetime(now, usegmt=True).encode()
        return self._date


async def _read(scope: Scope, receive: Receive) -> SimRequest:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    body = b""
    if scope["method"] != "GET":
        body = await _body(receive)
    path = scope["raw_path"].decode("latin-1")
    return SimRequest(scope["method"], path, scope["query_string"].decode("latin-1"), headers, body)


async def _body(receive: Receive) -> bytes:
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _Dropped
        if event["type"] == "http.request":
            pieces.append(event["body"])
            size += len(event["body"])
            more = event["more_body"]
        if size > MAX_BODY:
            raise ApiError(413, "uploadTooLarge", f"A request may have {MAX_BODY} bytes.")
    return b"".join(pieces)


async def _gone(receive: Receive) -> None:
    """Waits until the connection is closed; returning earlier from a dropped call would look like an error of ours."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _abort(scope: Scope) -> Callable[[], None]:
    extensions = cast("dict[str, dict[object, object]]", scope.get("extensions") or {})
    return cast("Callable[[], None]", extensions[ABORT]["abort"])


REQUESTS_IN_FLIGHT = 10
BATCH_PARTS_AT_ONCE = 50


@dataclass(frozen=True)
class GmailSim:
    """A running stand-in, as its callers see it."""

    url: str
    token: str
    email: str
    control_token: str
    control: SimControl


def limits_named(quota: str) -> QuotaLimits:
    """`legacy` and `2026` as Google has them, `none` for no limit at all."""
    if quota == "none":
        return QuotaLimits()
    if quota not in list(ProfileName):
        raise BadInput("quota", f"{quota!r} is not known; choose one of {', '.join(ProfileName)}, none")
    return QuotaLimits(PROFILES[ProfileName(quota)], REQUESTS_IN_FLIGHT, BATCH_PARTS_AT_ONCE)


@contextlib.asynccontextmanager
async def running_sim(
    source: MailboxSource,
    *,
    quota: str | QuotaLimits = "none",
    clock: Clock | None = None,
    port: int = 0,
) -> AsyncIterator[GmailSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    limits = limits_named(quota) if isinstance(quota, str) else quota
    box, grants, meter, faults = MailboxState(source, clock), Grants(clock), QuotaMeter(limits, clock), Faults()
    control, control_token = SimControl(box, grants, meter, faults), secrets.token_urlsafe(24)
    gateway = Gateway(box, grants, meter, faults)
    app = GmailApp(gateway, OAuth(grants, source.email), control, control_token, clock)
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(app, listener, before_stop=app.release):
        yield GmailSim(url, grants.allow(oauth.ALL_SCOPES), source.email, control_token, control)


async def run_until_stopped(
    source: MailboxSource,
    *,
    quota: str | QuotaLimits,
    port: int,
    announce: Callable[[GmailSim], None],
    clock: Clock | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; `announce` is called once, when the stand-in answers."""
    stopped = until_stopped()
    async with running_sim(source, quota=quota, port=port, clock=clock) as sim:
        announce(sim)
        await stopped.wait()


EMAIL = "owner@example.com"
SERVICE_TIME_S = 0.02
"""With a quota, calls take about as long as a quick answer of the real service, so that its limit on requests in
flight means something; without one, nothing may slow down what is measured."""


def build(messages: int, seed: int, email: str = EMAIL) -> MailboxSource:
    """The mailbox that the command serves."""
    return RememberingSource(GeneratedMailbox(messages=messages, seed=seed, email=email))


def serve(*, port: int, messages: int, seed: int, quota: str) -> None:
    """Serve until stopped; one line of JSON on standard output says when and where."""
    limits = limits_named(quota)
    if limits.profile is not None:
        limits = replace(limits, service_time_s=SERVICE_TIME_S)
    source = build(messages, seed)
    uvloop.run(run_until_stopped(source, quota=limits, port=port, announce=_announce))


def _announce(sim: GmailSim) -> None:
    ready = {"url": sim.url, "token": sim.token, "email": sim.email, "control_token": sim.control_token}
    print(json.dumps(ready), flush=True)
