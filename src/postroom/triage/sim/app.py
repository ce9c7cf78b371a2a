"""The stand-in as an ASGI application: keys, routes, and the faults that concern connections."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Callable
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.gmail.sim.asgi import Receive, Scope, Send
from postroom.gmail.sim.http import Reply, json_reply
from postroom.gmail.sim.serving import ABORT
from postroom.triage.sim.chat import BadRequest, error_body, read_request
from postroom.triage.sim.desk import Desk
from postroom.triage.sim.script import Answer, Fault, Script

CONTROL_HEADER = "x-sim-control"
MODELS = ("simulated-small", "simulated-large")
_LARGEST_BODY = 16 * 1024 * 1024


class _Queue(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answers: list[Answer]


class ModelApp:
    def __init__(self, desk: Desk, token: str, control_token: str, clock: Clock) -> None:
        self._desk = desk
        self._token = token
        self._control_token = control_token
        self._clock = clock
        self._released = asyncio.Event()
        self._controls: dict[str, Callable[[bytes], object]] = {
            "state": lambda body: desk.state(),
            "prompts": lambda body: {"prompts": list(desk.prompts)},
            "queue": lambda body: desk.stage.queue.extend(_Queue.model_validate_json(body).answers),
            "scripts": lambda body: desk.stage.add_script(Script.model_validate_json(body)),
            "faults": lambda body: desk.stage.add_fault(TypeAdapter(Fault).validate_json(body)),
            "faults/clear": lambda body: desk.stage.clear_faults(),
            "release": lambda body: self.release(),
            "reset": lambda body: desk.reset(),
        }

    def release(self) -> None:
        """Let go of every request that hangs."""
        self._released.set()
        self._released = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"the stand-in serves http only, not {scope['type']}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        body = await _body(receive)
        if body is None:
            return
        reply = await self._reply(scope["method"], scope["path"], headers, body)
        if reply is not None:
            await _write(reply, send)
        if reply is None or reply.announced_length is not None:
            cast("dict[str, Any]", scope["extensions"])[ABORT]["abort"]()
            while (await receive())["type"] != "http.disconnect":
                pass

    async def _reply(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> Reply | None:
        """None cuts the connection."""
        if path.startswith("/_sim/"):
            return self._control(path.removeprefix("/_sim/"), headers, body)
        if not hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {self._token}".encode()):
            return self._refuse(401, "Incorrect API key provided.", "invalid_request_error", "invalid_api_key")
        match verb, path.removeprefix("/v1"):
            case "GET", "/models":
                return _marked(json_reply({"object": "list", "data": [_model(name) for name in MODELS]}))
            case "POST", "/chat/completions":
                return await self._chat(body)
            case _:
                return self._refuse(404, f"Invalid URL ({verb} {path[:100]})", "invalid_request_error")

    async def _chat(self, body: bytes) -> Reply | None:
        try:
            request = read_request(body)
        except BadRequest as error:
            return self._refuse(400, str(error), "invalid_request_error")
        fault = self._desk.fault_for(request)
        if fault is not None:
            if fault.seconds:
                await self._clock.sleep(fault.seconds)
            if fault.kind == "hang":
                await self._released.wait()
            if fault.kind in ("hang", "drop"):
                return None
            if fault.kind == "error":
                return _error(fault)
        reply = _marked(json_reply(self._desk.answer(request, fault).as_json()))
        if fault is not None and fault.kind == "truncate":
            return Reply(200, reply.body[: len(reply.body) // 2], announced_length=len(reply.body))
        if fault is not None and fault.kind == "malformed_json":
            return Reply(200, reply.body[:-1] + b",,")
        return reply

    def _control(self, name: str, headers: dict[str, str], body: bytes) -> Reply:
        if not hmac.compare_digest(headers.get(CONTROL_HEADER, "").encode(), self._control_token.encode()):
            return self._refuse(401, f"The control endpoint needs its token in {CONTROL_HEADER}.", "sim_error")
        action = self._controls.get(name)
        if action is None:
            return self._refuse(404, f"There is nothing here; known are {', '.join(self._controls)}.", "sim_error")
        try:
            return json_reply(action(body or b"{}") or {})
        except (ValueError, BadInput) as error:
            return self._refuse(400, str(error), "sim_error")

    def _refuse(self, status: int, message: str, kind: str, code: str | None = None) -> Reply:
        self._desk.tally.refused += 1
        return _marked(json_reply(error_body(message, kind, code), status))


def _error(fault: Fault) -> Reply:
    kind = "rate_limit_exceeded" if fault.code == 429 else "server_error"
    wait = () if fault.retry_after_s is None else (("Retry-After", str(fault.retry_after_s)),)
    return Reply(fault.code, json.dumps(error_body(fault.message, kind, kind)).encode(), headers=wait)


def _marked(reply: Reply) -> Reply:
    return Reply(reply.status, reply.body, reply.content_type, (*reply.headers, ("X-Postroom-Simulated", "true")))


def _model(name: str) -> dict[str, object]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "postroom-simulated"}


async def _body(receive: Receive) -> bytes | None:
    """The whole body; None if the caller went away."""
    pieces: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return None
        pieces.append(event.get("body", b""))
        size += len(pieces[-1])
        more = event.get("more_body", False) and size <= _LARGEST_BODY
    return b"".join(pieces)


async def _write(reply: Reply, send: Send) -> None:
    length = len(reply.body) if reply.announced_length is None else reply.announced_length
    headers = [(b"content-length", b"%d" % length), (b"content-type", reply.content_type.encode("latin-1"))]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": reply.body, "more_body": reply.announced_length is not None})
