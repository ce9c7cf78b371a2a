"""Discord's REST API, as far as a bot needs it that asks questions in one channel.

Retryable   429 (knows when to come back), 5xx, no connection, an answer cut off
Fatal       401 the token, 403 the bot's rights, 404 the channel, 400 what was said
MessageGone 404 of a message: it was deleted
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import httpx2

from postroom.domain.errors import Fatal, NotFound, Retryable
from postroom.settings import DiscordSettings
from postroom.telemetry import logs
from postroom.tls import trusted

_TIMEOUT_S = 15.0
_LARGEST_ANSWER = 1 << 20
_LONGEST_WAIT_S = 3_600.0
_MOST_QUOTED = 200
Json = dict[str, Any]


class MessageGone(NotFound):
    """The bot's message is no longer in the channel."""

    def __init__(self) -> None:
        super().__init__("message", "it is no longer in the channel")


class DiscordChannel:
    """The channel in which the bot asks."""

    def __init__(self, http: httpx2.AsyncClient, settings: DiscordSettings) -> None:
        if settings.bot_token is None or settings.channel_id is None:
            raise Fatal("Discord is not set up: discord.bot_token and discord.channel_id are needed.")
        self._http = http
        self._token = settings.bot_token
        self._path = f"{settings.base_url.rstrip('/')}/channels/{settings.channel_id}/messages"

    async def post(self, message: Json, nonce: str) -> str:
        """Write a message; its id. The same nonce within some minutes gives the message that is there already."""
        answer = await self._call("POST", self._path, {**message, "nonce": nonce, "enforce_nonce": True})
        if not isinstance(answer.get("id"), str) or not answer["id"].isdecimal():
            raise Retryable("Discord's answer names no message.")
        return str(answer["id"])

    async def edit(self, message_id: str, message: Json) -> None:
        """Replace what a message says; MessageGone if it was deleted."""
        if not message_id.isdecimal():
            raise MessageGone
        await self._call("PATCH", f"{self._path}/{message_id}", message)

    async def _call(self, verb: str, url: str, body: Json) -> Json:
        headers = {
            "Authorization": f"Bot {self._token.get_secret_value()}",
            "User-Agent": "DiscordBot (https://postroom.invalid, 1)",
        }
        try:
            async with self._http.stream(verb, url, json=body, headers=headers) as response:
                content = await _read(response)
        except httpx2.HTTPError as error:
            # Without the chain: the request in it holds the token.
            raise Retryable(f"Discord cannot be reached ({type(error).__name__}).") from None
        return _understood(response, content, is_edit=verb == "PATCH")


@asynccontextmanager
async def open_channel(settings: DiscordSettings) -> AsyncIterator[DiscordChannel | None]:
    """The channel for as long as the block lasts; None where Discord is not set up."""
    if settings.bot_token is None:
        yield None
        return
    async with httpx2.AsyncClient(
        timeout=_TIMEOUT_S, follow_redirects=False, trust_env=False, verify=trusted()
    ) as http:
        yield DiscordChannel(http, settings)


async def _read(response: httpx2.Response) -> bytes:
    content = b""
    async for piece in response.aiter_bytes():
        content += piece
        if len(content) > _LARGEST_ANSWER:
            raise Retryable("Discord's answer is too large to be one.")
    return content


def _understood(response: httpx2.Response, content: bytes, *, is_edit: bool) -> Json:
    answer = _object(content)
    status = response.status_code
    if status == 429:
        raise Retryable("Discord asks for fewer calls.", retry_after=_wait(response, answer))
    if status >= 500 or status == 408:
        raise Retryable(f"Discord could not answer (status {status}).")
    if 200 <= status < 300:
        if answer is None:
            raise Retryable("Discord's answer cannot be read.")
        return answer
    if status == 404 and is_edit and _code(answer) != _UNKNOWN_CHANNEL:
        raise MessageGone
    raise Fatal(_REFUSALS.get(status, f"Discord refused the call (status {status}{_quoted(answer)})."))


_UNKNOWN_CHANNEL = 10_003
_REFUSALS = {
    401: "Discord does not accept the bot's token. Set discord.bot_token to the one in the developer portal.",
    403: "The bot may not write in the channel. Invite it to the server, and let it send messages in that channel.",
    404: "Discord knows no such channel. Check discord.channel_id, and that the bot is on that server.",
}


def _object(content: bytes) -> Json | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _code(answer: Json | None) -> object:
    return None if answer is None else answer.get("code")


def _wait(response: httpx2.Response, answer: Json | None) -> timedelta | None:
    """Seconds, with a fraction in the body; the header is the fallback."""
    wait = (answer or {}).get("retry_after", response.headers.get("retry-after"))
    try:
        seconds = float(wait) if isinstance(wait, int | float | str) else None
    except ValueError:
        return None
    return None if seconds is None or not 0 <= seconds < 1e9 else timedelta(seconds=min(seconds, _LONGEST_WAIT_S))


def _quoted(answer: Json | None) -> str:
    said = (answer or {}).get("message")
    return f": {logs.clean(said)[:_MOST_QUOTED]}" if isinstance(said, str) else ""
