"""The model's stand-in as a server: keys, routes and connection faults, inside a test or as a process of its own.

A request meets faults first, then scripted answers, then made-up ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter

from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import BadInput
from postroom.sim.model.answers import (
    BadRequest,
    ChatRequest,
    Completion,
    ModelFault,
    ModelFaultKind,
    Script,
    ScriptedAnswer,
    ScriptQueue,
    arguments_text,
    assistant_message,
    error_body,
    invent,
    read_request,
    tokens_in,
)
from postroom.sim.serving import ABORT, HOST, Receive, Scope, Send, SimReply, json_reply, serving, until_stopped
from postroom.webserver import listening

_KEPT = 1_000


@dataclass
class ModelTally:
    requests: int = 0
    answered: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    """Requests with a wrong key or a wrong form."""


class ChatResponder:
    def __init__(self, seed: int, clock: Clock) -> None:
        self.stage = ScriptQueue()
        self.tally = ModelTally()
        self.prompts: deque[str] = deque(maxlen=_KEPT)
        """What was asked, the newest last."""
        self._seed = seed
        self._clock = clock

    def state(self) -> dict[str, object]:
        return asdict(self.tally) | {"faults": dict(self.tally.faults), "queued": len(self.stage.queue)}

    def reset(self) -> None:
        self.stage.clear()
        self.tally = ModelTally()
        self.prompts.clear()

    def fault_for(self, request: ChatRequest) -> ModelFault | None:
        self.tally.requests += 1
        self.prompts.append(request.prompt)
        fault = self.stage.fault_for(request.prompt)
        if fault is not None:
            self.tally.faults[fault.kind] += 1
        return fault

    def answer(self, request: ChatRequest, fault: ModelFault | None) -> Completion:
        answer = self.stage.answer_for(request.prompt) or invent(request, self._seed)
        if fault is not None:
            answer = _spoiled(answer, fault)
        kind = None if fault is None else fault.kind
        message, finish_reason, said = self._message(answer, request, kind)
        self.tally.answered += 1
        completion = Completion(
            id=f"simulated-{self.tally.answered}",
            created=int(self._clock.now().timestamp()),
            model=request.model,
            message=message,
            finish_reason=finish_reason,
            input_tokens=tokens_in(" " * request.size) if answer.input_tokens is None else answer.input_tokens,
            output_tokens=tokens_in(said) if answer.output_tokens is None else answer.output_tokens,
        )
        self.tally.input_tokens += completion.input_tokens
        self.tally.output_tokens += completion.output_tokens
        return completion

    def _message(
        self, answer: ScriptedAnswer, request: ChatRequest, kind: ModelFaultKind | None
    ) -> tuple[dict[str, object], str, str]:
        """The message, why it ends, and what was said; cut where the caller's limit is."""
        said = answer.text if answer.text is not None else arguments_text(answer)
        is_cut = request.max_tokens is not None and tokens_in(said) > request.max_tokens
        said = said[: 4 * request.max_tokens] if is_cut and request.max_tokens else said
        if answer.text is not None:
            return assistant_message(text=said), "length" if is_cut else "stop", said
        name = answer.tool or next((tool.name for tool in request.callable_tools), "none")
        number = self.tally.answered + 1
        calls = [(f"call_simulated_{number}_{each}", name, said) for each in range(2 if kind == "two_calls" else 1)]
        return assistant_message(*calls), "length" if is_cut else "tool_calls", said


def _spoiled(answer: ScriptedAnswer, fault: ModelFault) -> ScriptedAnswer:
    match fault.kind:
        case "malformed_tool_call":
            return answer.model_copy(update={"text": None, "arguments": arguments_text(answer)[:-1] + ",,"})
        case "unknown_tool":
            return answer.model_copy(update={"text": None, "tool": "no_such_tool"})
        case "text":
            return ScriptedAnswer(text="Simulated: I would rather talk.")
        case "empty":
            return ScriptedAnswer(text="")
        case _:
            return answer


CONTROL_HEADER = "x-sim-control"
MODELS = ("simulated-small", "simulated-large")
_LARGEST_BODY = 16 * 1024 * 1024


class _Queue(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answers: list[ScriptedAnswer]


class ModelApp:
    def __init__(self, responder: ChatResponder, token: str, control_token: str, clock: Clock) -> None:
        self._responder = responder
        self._token = token
        self._control_token = control_token
        self._clock = clock
        self._released = asyncio.Event()
        self._controls: dict[str, Callable[[bytes], object]] = {
            "state": lambda body: responder.state(),
            "prompts": lambda body: {"prompts": list(responder.prompts)},
            "queue": lambda body: responder.stage.queue.extend(_Queue.model_validate_json(body).answers),
            "scripts": lambda body: responder.stage.add_script(Script.model_validate_json(body)),
            "faults": lambda body: responder.stage.add_fault(TypeAdapter(ModelFault).validate_json(body)),
            "faults/clear": lambda body: responder.stage.clear_faults(),
            "release": lambda body: self.release(),
            "reset": lambda body: responder.reset(),
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

    async def _reply(self, verb: str, path: str, headers: dict[str, str], body: bytes) -> SimReply | None:
        """The reply; None if the connection is to be cut."""
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

    async def _chat(self, body: bytes) -> SimReply | None:
        try:
            request = read_request(body)
        except BadRequest as error:
            return self._refuse(400, str(error), "invalid_request_error")
        fault = self._responder.fault_for(request)
        if fault is not None:
            if fault.seconds:
                await self._clock.sleep(fault.seconds)
            if fault.kind == "hang":
                await self._released.wait()
            if fault.kind in ("hang", "drop"):
                return None
            if fault.kind == "error":
                return _error(fault)
        reply = _marked(json_reply(self._responder.answer(request, fault).as_json()))
        if fault is not None and fault.kind == "truncate":
            return SimReply(200, reply.body[: len(reply.body) // 2], announced_length=len(reply.body))
        if fault is not None and fault.kind == "malformed_json":
            return SimReply(200, reply.body[:-1] + b",,")
        return reply

    def _control(self, name: str, headers: dict[str, str], body: bytes) -> SimReply:
        if not hmac.compare_digest(headers.get(CONTROL_HEADER, "").encode(), self._control_token.encode()):
            return self._refuse(401, f"The control endpoint needs its token in {CONTROL_HEADER}.", "sim_error")
        action = self._controls.get(name)
        if action is None:
            return self._refuse(404, f"There is nothing here; known are {', '.join(self._controls)}.", "sim_error")
        try:
            return json_reply(action(body or b"{}") or {})
        except (ValueError, BadInput) as error:
            return self._refuse(400, str(error), "sim_error")

    def _refuse(self, status: int, message: str, kind: str, code: str | None = None) -> SimReply:
        self._responder.tally.refused += 1
        return _marked(json_reply(error_body(message, kind, code), status))


def _error(fault: ModelFault) -> SimReply:
    kind = "rate_limit_exceeded" if fault.code == 429 else "server_error"
    wait = () if fault.retry_after_s is None else (("Retry-After", str(fault.retry_after_s)),)
    return SimReply(fault.code, json.dumps(error_body(fault.message, kind, kind)).encode(), headers=wait)


def _marked(reply: SimReply) -> SimReply:
    return SimReply(reply.status, reply.body, reply.content_type, (*reply.headers, ("X-Postroom-Simulated", "true")))


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


async def _write(reply: SimReply, send: Send) -> None:
    length = len(reply.body) if reply.announced_length is None else reply.announced_length
    headers = [(b"content-length", b"%d" % length), (b"content-type", reply.content_type.encode("latin-1"))]
    headers += [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": reply.body, "more_body": reply.announced_length is not None})


@dataclass(frozen=True)
class ModelSim:
    """A running stand-in, as its callers see it."""

    url: str
    """What to give an OpenAI client as its base address."""
    token: str
    control_token: str
    responder: ChatResponder


@contextlib.asynccontextmanager
async def running_model(
    seed: int = 0, *, port: int = 0, token: str | None = None, clock: Clock | None = None
) -> AsyncIterator[ModelSim]:
    """The stand-in on a free port, until the block ends."""
    clock = clock or SystemClock()
    responder = ChatResponder(seed, clock)
    token, control_token = token or f"sk-simulated-{secrets.token_urlsafe(16)}", secrets.token_urlsafe(24)
    app = ModelApp(responder, token, control_token, clock)
    listener = listening(HOST, port)
    root = f"http://{HOST}:{listener.getsockname()[1]}"
    async with serving(app, listener, before_stop=app.release):
        yield ModelSim(f"{root}/v1", token, control_token, responder)


async def serve(*, port: int, seed: int) -> None:
    """Serve until SIGTERM or SIGINT; one line of JSON on standard output says when and where."""
    stopped = until_stopped()
    async with running_model(seed, port=port) as sim:
        ready = {"url": sim.url, "token": sim.token, "control_token": sim.control_token}
        print(json.dumps(ready), flush=True)
        await stopped.wait()
