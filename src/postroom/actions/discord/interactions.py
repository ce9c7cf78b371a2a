"""`POST /discord/interactions`: buttons pressed in Discord. Nothing is trusted before its Ed25519 signature holds.

Only listed users are heard. A repeated or late press changes nothing and is answered with the current state.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from starlette.types import Receive, Scope, Send

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalOutcome, ApprovalVerdict
from postroom.actions.discord import notices
from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.errors import BadInput, PostroomError
from postroom.queue import JobQueue
from postroom.settings import DiscordSettings
from postroom.telemetry import logs
from postroom.webserver import mark_known

OLDEST = timedelta(minutes=5)
_SECONDS = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[0-9a-fA-F]{128}")


class SignatureVerifier:
    def __init__(self, public_key: str) -> None:
        self._key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key))

    def holds(self, signature: str, timestamp: str, body: bytes, now: datetime) -> bool:
        """False for a wrong signature, and for a right one with an old timestamp, which may be a replay."""
        if not _SECONDS.fullmatch(timestamp) or not _SIGNATURE.fullmatch(signature):
            return False
        if abs(now.timestamp() - int(timestamp)) > OLDEST.total_seconds():
            return False
        try:
            self._key.verify(bytes.fromhex(signature), timestamp.encode("ascii") + body)
        except InvalidSignature:
            return False
        return True


log = logs.get(__name__)

PATH = "/discord/interactions"
LARGEST_BODY = 64 << 10
_PING, _COMPONENT = 1, 3
_PONG, _SAY, _UPDATE = 1, 4, 7
_EPHEMERAL = 1 << 6
_UNNAMED = re.compile(r"[^\w .-]+")
Json = dict[str, Any]


class _InteractionRefused(Exception):
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem


class DiscordInteractions:
    """An ASGI application."""

    def __init__(self, settings: DiscordSettings, queue: JobQueue) -> None:
        self._verifier = SignatureVerifier(settings.public_key or "")
        self._users = settings.users
        self._queue = queue

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            status, answer = 200, await self._answer(await self._verified(scope, receive))
        except _InteractionRefused as refused:
            log.warning("discord.refused", status=refused.status, problem=refused.problem)
            status, answer = refused.status, {"error": refused.problem}
        await _send(send, status, answer)

    async def _verified(self, scope: Scope, receive: Receive) -> Json:
        if scope["method"] != "POST":
            raise _InteractionRefused(405, "Only POST is served here.")
        signature, timestamp = _header(scope, b"x-signature-ed25519"), _header(scope, b"x-signature-timestamp")
        if not signature or not timestamp:
            raise _InteractionRefused(401, "The signature is missing.")
        body = await _body(receive)
        if not self._verifier.holds(signature, timestamp, body, self._queue.clock.now()):
            raise _InteractionRefused(401, "The signature does not hold.")
        mark_known(scope)
        try:
            interaction = json.loads(body)
        except (ValueError, RecursionError):
            interaction = None
        if not isinstance(interaction, dict):
            raise _InteractionRefused(400, "The body is not a JSON object.")
        return interaction

    async def _answer(self, interaction: Json) -> Json:
        match interaction.get("type"):
            case int(kind) if kind == _PING:
                return {"type": _PONG}
            case int(kind) if kind == _COMPONENT:
                return await self._pressed(interaction)
            case _:
                raise _InteractionRefused(400, "Only buttons are served here.")

    async def _pressed(self, interaction: Json) -> Json:
        data = interaction.get("data")
        button = notices.parse_custom_id(data.get("custom_id") if isinstance(data, dict) else None)
        if button is None:
            raise _InteractionRefused(400, "The button is not one of Postroom's.")
        user = _user(interaction)
        if user is None or user[0] not in self._users:
            log.warning("discord.not_allowed", user=user[0] if user else None)
            return _only_to_you("You are not among those who may answer.")
        return await self._record(*button, Actor("discord", f"{user[1]} ({user[0]})"))

    async def _record(self, verdict: ApprovalVerdict, action_id: str, who: Actor) -> Json:
        def write(tx: Tx) -> ApprovalOutcome:
            return approvals.answer(tx, self._queue, action_id, verdict, who)

        try:
            answer = await self._queue.database.write(write)
        except BadInput:
            return _only_to_you("The action is no longer known here.")
        except PostroomError as error:
            log.error("discord.not_recorded", error=error.message)
            return _only_to_you("Your answer could not be recorded now. Press again in a moment.")
        return {"type": _UPDATE, "data": notices.answered(answer.question)}


def _user(interaction: Json) -> tuple[str, str] | None:
    """Id and name of the person who pressed: in a server the member's user, in a direct message the user."""
    member = interaction.get("member")
    user = member.get("user") if isinstance(member, dict) else interaction.get("user")
    if not isinstance(user, dict) or not isinstance(user.get("id"), str) or not user["id"].isdecimal():
        return None
    return user["id"], _UNNAMED.sub("", str(user.get("username", "")))[:40] or "someone"


def _only_to_you(text: str) -> Json:
    return {"type": _SAY, "data": {"content": text, "flags": _EPHEMERAL, "allowed_mentions": {"parse": []}}}


def _header(scope: Scope, name: bytes) -> str | None:
    """None if the header occurs more than once."""
    values = [value for each, value in scope["headers"] if each == name]
    return values[0].decode("latin-1") if len(values) == 1 else None


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _InteractionRefused(400, "The body broke off.")
        body += event.get("body", b"")
        if len(body) > LARGEST_BODY:
            raise _InteractionRefused(413, "The body is too large.")
        if not event.get("more_body"):
            return bytes(body)


async def _send(send: Send, status: int, content: Json) -> None:
    body = json.dumps(content).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
