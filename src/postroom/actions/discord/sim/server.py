"""Discord's REST API for one channel, and `/_sim/` for what a person or a test does behind its back."""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from postroom.actions.discord.sim.board import Board, Fault, Json
from postroom.gmail.sim.serving import HOST, serving, until_told_to_stop
from postroom.webserver import listening

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
    board: Board

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
    def __init__(self, board: Board, token: str, control_token: str) -> None:
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
                self.board.add_fault(Fault.model_validate_json(body))
                return {}
            case "portal":
                self.board.interactions_url = _Portal.model_validate_json(body).interactions_url
                return await self.board.ping()
            case "press":
                wanted = _Press.model_validate_json(body)
                return await self.board.press(wanted.message_id, wanted.button, wanted.user_id, wanted.username)
            case _:
                raise KeyError("known are messages, faults, portal, press")


def _failed(fault: Fault) -> Response:
    body: Json = {"message": "refused by the stand-in", "code": fault.code}
    headers = {}
    if fault.retry_after is not None:
        body["retry_after"] = fault.retry_after
        headers["retry-after"] = str(int(fault.retry_after) + 1)
    return JSONResponse(body, fault.status, headers)


@contextlib.asynccontextmanager
async def running_discord(*, port: int = 0) -> AsyncIterator[DiscordSim]:
    """The stand-in on a free port, until the block ends."""
    board, token, control_token = Board(CHANNEL_ID), secrets.token_urlsafe(24), secrets.token_urlsafe(24)
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
    stopped = until_told_to_stop()
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
