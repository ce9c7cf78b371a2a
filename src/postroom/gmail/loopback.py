"""The login of an installed app (RFC 8252): the browser is sent to Google and comes back to a port of this machine.

PKCE (S256) binds the code to this process, and the state binds the visit: a request to the port that does not know
the state is turned away and the wait goes on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode, urlsplit

from postroom.domain.errors import Fatal, NotAllowed
from postroom.gmail.client_secrets import ClientSecrets

HOST = "127.0.0.1"

_LONGEST_HEAD = 16 * 1024
_HEAD_S = 10.0
_DONE = "Postroom has what it needs. You can close this window."
_DECLINED = "Access was not granted. You can close this window and try again."
_WHY_DECLINED = (
    'Access was declined on Google\'s page, or the account may not use this app while it is in "Testing" (add it as a '
    "test user in Google's console). Nothing was stored."
)
_STRANGER = "This is not the answer Postroom is waiting for. Use the link that it showed."


@dataclass(frozen=True)
class Pkce:
    """A secret of this login and its hash, which alone is shown beforehand."""

    verifier: str = field(repr=False)

    @classmethod
    def fresh(cls) -> Pkce:
        return cls(secrets.token_urlsafe(64))

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Visit:
    """One login in progress: the address to open, and the code that the browser brings back."""

    def __init__(self, client: ClientSecrets, scopes: frozenset[str], email: str, redirect_uri: str) -> None:
        self.redirect_uri = redirect_uri
        self.pkce = Pkce.fresh()
        self._state = secrets.token_urlsafe(32)
        self._outcome: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()
        self.url = f"{client.auth_uri}?" + urlencode(
            {
                "response_type": "code",
                "client_id": client.client_id,
                "redirect_uri": redirect_uri,
                "scope": " ".join(sorted(scopes)),
                "state": self._state,
                "code_challenge": self.pkce.challenge,
                "code_challenge_method": "S256",
                "access_type": "offline",
                "prompt": "consent",
                "login_hint": email,
            }
        )

    async def code(self, timeout_s: float) -> str:
        """Wait for the owner's answer."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._outcome
        except TimeoutError:
            raise Fatal(
                f"Nobody finished the login within {timeout_s:.0f} seconds; nothing was stored. Begin it again and "
                "open the link in a browser on this machine (from another machine, forward the port with ssh -L)."
            ) from None
        if "code" in answer:
            return answer["code"]
        if answer.get("error") == "access_denied":
            raise NotAllowed(_WHY_DECLINED)
        raise Fatal(
            f"Google's page ended the login with {answer.get('error', 'no answer')[:60]!r}; nothing was stored."
        )

    def answer(self, target: str) -> tuple[int, str]:
        """What to tell a browser that asks for this path; the right one ends the wait."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/":
            return 404, _STRANGER
        if not hmac.compare_digest(query.get("state", "").encode(), self._state.encode()):
            return 400, _STRANGER
        if "code" not in query and "error" not in query:
            return 400, _STRANGER
        if not self._outcome.done():
            self._outcome.set_result(query)
        return 200, _DONE if "code" in query else _DECLINED


@asynccontextmanager
async def visit(client: ClientSecrets, scopes: frozenset[str], email: str) -> AsyncIterator[Visit]:
    """Listen on a free loopback port for as long as the block runs."""
    visits: list[Visit] = []
    callers: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = asyncio.current_task()
        assert caller is not None  # noqa: S101 - a coroutine that runs has a task
        callers.add(caller)
        try:
            await _serve_one(visits[0], reader, writer)
        finally:
            callers.discard(caller)
            writer.close()

    server = await asyncio.start_server(serve, HOST, 0, limit=_LONGEST_HEAD)
    try:
        visits.append(Visit(client, scopes, email, f"http://{HOST}:{server.sockets[0].getsockname()[1]}/"))
        yield visits[0]
    finally:
        server.close()
        for caller in callers:  # browsers open connections ahead of need; those would keep us here
            caller.cancel()


async def _serve_one(login: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        async with asyncio.timeout(_HEAD_S):
            target = await _read_target(reader)
            status, text = (405, _STRANGER) if target is None else login.answer(target)
            writer.write(_page(status, text))
            await writer.drain()
    except (OSError, ValueError, EOFError, asyncio.LimitOverrunError):
        return  # a caller that went away or spoke nonsense is none of this login's business


async def _read_target(reader: asyncio.StreamReader) -> str | None:
    """The path that a GET asks for; None for any other request."""
    head = await reader.readuntil(b"\r\n\r\n")
    verb, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
    return target if verb == "GET" else None


def _page(status: int, text: str) -> bytes:
    body = f"<!doctype html><meta charset=utf-8><title>Postroom</title><p>{text}</p>\n".encode()
    head = (
        f"HTTP/1.1 {status} Answer\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        "Cache-Control: no-store\r\nContent-Security-Policy: default-src 'none'\r\nReferrer-Policy: no-referrer\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
