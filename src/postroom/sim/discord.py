"""The stand-in for Discord: its REST API for one channel, with messages, buttons and signed interactions.

`/_sim/` is for what a person or a test does outside the API.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx2
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.sim.serving import HOST, serving, until_stopped
from postroom.tls import trusted
from postroom.webserver import listening

Json = dict[str, Any]
_FIRST_ID = 1_300_000_000_000_000_000
_TIMEOUT_S = 10.0


class DiscordFault(BaseModel):
    """What becomes of the next calls. With `after_effect`, the call is carried out and only its answer is lost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    call: str = Field("*", pattern=r"^(create|edit|\*)$")
    status: int = Field(503, ge=400, le=599)
    code: int = 0
    retry_after: float | None = Field(None, ge=0)
    after_effect: bool = False
    times: int = Field(1, ge=1)


@dataclass
class SimChannel:
    channel_id: str
    private_key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    interactions_url: str | None = None
    """Where presses go, as it is set in Discord's developer portal."""
    messages: dict[str, Json] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    _faults: list[tuple[DiscordFault, list[int]]] = field(default_factory=list)

    @property
    def public_key(self) -> str:
        return self.private_key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def add_fault(self, fault: DiscordFault) -> None:
        self._faults.append((fault, [fault.times]))

    def clear_faults(self) -> None:
        self._faults.clear()

    def strike(self, call: str) -> DiscordFault | None:
        for fault, left in self._faults:
            if left[0] and fault.call in ("*", call):
                left[0] -= 1
                return fault
        return None

    def create(self, body: Json) -> Json:
        """With `enforce_nonce`, a nonce that is known gives the message that bears it."""
        if body.get("enforce_nonce"):
            for known in self.messages.values():
                if known.get("nonce") == body.get("nonce"):
                    return known
        message = {"id": str(_FIRST_ID + len(self.calls)), "channel_id": self.channel_id, **body}
        self.messages[message["id"]] = message
        return message

    def edit(self, message_id: str, body: Json) -> Json | None:
        if message_id not in self.messages:
            return None
        self.messages[message_id] |= body
        return self.messages[message_id]

    def button(self, message_id: str, label: str) -> str:
        """The custom id of a button; KeyError where the message has none of that name."""
        for row in self.messages[message_id].get("components", []):
            for component in row["components"]:
                if component["label"] == label:
                    return str(component["custom_id"])
        raise KeyError(f"the message has no button {label}")

    def signed(self, interaction: Json, timestamp: int | None = None) -> tuple[bytes, dict[str, str]]:
        """An interaction as Discord would send it: body and headers."""
        body = json.dumps(interaction).encode()
        stamp = str(int(time.time()) if timestamp is None else timestamp)
        signature = self.private_key.sign(stamp.encode() + body).hex()
        headers = {
            "X-Signature-Ed25519": signature,
            "X-Signature-Timestamp": stamp,
            "Content-Type": "application/json",
        }
        return body, headers

    async def press(self, message_id: str, label: str, user_id: str, username: str = "ana") -> Json:
        """A person presses a button; the answer is carried out as Discord does, and returned."""
        user = {"id": user_id, "username": username}
        data = {"component_type": 2, "custom_id": self.button(message_id, label)}
        answer = await self.deliver({"type": 3, "data": data, "member": {"user": user}})
        if answer.get("type") == 7:
            self.edit(message_id, answer["data"])
        return answer

    async def ping(self) -> Json:
        return await self.deliver({"type": 1})

    async def deliver(self, interaction: Json, timestamp: int | None = None) -> Json:
        body, headers = self.signed(interaction, timestamp)
        if self.interactions_url is None:
            raise KeyError("no interactions URL is set")
        async with httpx2.AsyncClient(timeout=_TIMEOUT_S, trust_env=False, verify=trusted()) as http:
            response = await http.post(self.interactions_url, content=body, headers=headers)
        answer: Json = response.json()
        return {**answer, "status": response.status_code}


BASE = "/api/v10"
CHANNEL_ID = "1200000000000000001"
CONTROL_HEADER = "x-sim-control"
_LONGEST_CONTENT = 2_000
_UNAUTHORIZED: Json = {"message": "401: Unauthorized", "code": 0}


class _Press(BaseModel):
    model_config = ConfigDict(extra="forbid")

    message_id: str
    button: str
    user_id: str
    username: str = "ana"


class _Portal(BaseModel):
    model_config = ConfigDict(extra="forbid")

    interactions_url: str


@dataclass(frozen=True)
class DiscordSim:
    """A running stand-in, as its callers see it."""

    url: str
    """What to give as `discord.base_url`."""
    token: str
    control_token: str
    board: SimChannel

    def settings(self, users: str) -> Json:
        """What to put under `[discord]`."""
        return {
            "base_url": self.url,
            "bot_token": self.token,
            "channel_id": self.board.channel_id,
            "public_key": self.board.public_key,
            "allowed_users": users,
        }


class _Api:
    def __init__(self, board: SimChannel, token: str, control_token: str) -> None:
        self.board, self.token, self.control_token = board, token, control_token

    async def create(self, request: Request) -> Response:
        return await self._call("create", request)

    async def edit(self, request: Request) -> Response:
        return await self._call("edit", request)

    async def _call(self, call: str, request: Request) -> Response:
        self.board.calls.append(call)
        if request.headers.get("authorization") != f"Bot {self.token}":
            return JSONResponse(_UNAUTHORIZED, 401)
        fault = self.board.strike(call)
        if fault is not None and not fault.after_effect:
            return _failed(fault)
        if request.path_params["channel"] != self.board.channel_id:
            return JSONResponse({"message": "Unknown Channel", "code": 10_003}, 404)
        answer = self._carry_out(call, await request.json(), request.path_params.get("message", ""))
        return _failed(fault) if fault is not None else answer

    def _carry_out(self, call: str, body: Any, message_id: str) -> Response:
        if not isinstance(body, dict) or not 0 < len(body.get("content", "")) <= _LONGEST_CONTENT:
            return JSONResponse({"message": "Invalid Form Body", "code": 50_035}, 400)
        if call == "create":
            return JSONResponse(self.board.create(body))
        edited = self.board.edit(message_id, body)
        return JSONResponse(*((edited,) if edited else ({"message": "Unknown Message", "code": 10_008}, 404)))

    async def control(self, request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get(CONTROL_HEADER, "").encode(), self.control_token.encode()):
            return JSONResponse({"error": f"The control endpoint needs its token in {CONTROL_HEADER}."}, 401)
        body = await request.body() or b"{}"
        try:
            return JSONResponse(await self._controlled(request.path_params["what"], body))
        except (ValidationError, KeyError) as error:
            return JSONResponse({"error": str(error)}, 400)

    async def _controlled(self, what: str, body: bytes) -> Any:
        match what:
            case "messages":
                return list(self.board.messages.values())
            case "faults":
                self.board.add_fault(DiscordFault.model_validate_json(body))
                return {}
            case "portal":
                self.board.interactions_url = _Portal.model_validate_json(body).interactions_url
                return await self.board.ping()
            case "press":
                wanted = _Press.model_validate_json(body)
                return await self.board.press(wanted.message_id, wanted.button, wanted.user_id, wanted.username)
            case _:
                raise KeyError("known are messages, faults, portal, press")


def _failed(fault: DiscordFault) -> Response:
    body: Json = {"message": "refused by the stand-in", "code": fault.code}
    headers = {}
    if fault.retry_after is not None:
        body["retry_after"] = fault.retry_after
        headers["retry-after"] = str(int(fault.retry_after) + 1)
    return JSONResponse(body, fault.status, headers)


@contextlib.asynccontextmanager
async def running_discord(*, port: int = 0) -> AsyncIterator[DiscordSim]:
    """The stand-in on a free port, until the block ends."""
    board, token, control_token = SimChannel(CHANNEL_ID), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
    api = _Api(board, token, control_token)
    app = Starlette(
        routes=[
            Route(f"{BASE}/channels/{{channel}}/messages", api.create, methods=["POST"]),
            Route(f"{BASE}/channels/{{channel}}/messages/{{message}}", api.edit, methods=["PATCH"]),
            Route("/_sim/{what}", api.control, methods=["POST"]),
        ]
    )
    listener = listening(HOST, port)
    url = f"http://{HOST}:{listener.getsockname()[1]}{BASE}"
    async with serving(app, listener, before_stop=board.clear_faults):
        yield DiscordSim(url, token, control_token, board)


async def serve(*, port: int) -> None:
    """Serve until SIGTERM or SIGINT; one line of JSON on standard output says when and where."""
    stopped = until_stopped()
    async with running_discord(port=port) as sim:
        ready = {
            "url": sim.url,
            "token": sim.token,
            "channel_id": sim.board.channel_id,
            "public_key": sim.board.public_key,
            "control_token": sim.control_token,
        }
        print(json.dumps(ready), flush=True)
        await stopped.wait()
