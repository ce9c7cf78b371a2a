"""The login of an installed app (RFC 8252): the browser goes to Google and returns to a loopback port with a code,
which the token endpoint exchanges for tokens.

PKCE (S256) binds the code to this process, and the state binds the visit. Requests to the port without the right
state are rejected and the wait goes on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isnan
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed, PostroomError, Retryable
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.gmail.client_secrets import ClientSecrets
from postroom.mailboxes.gmail.error_mapping import retry_after
from postroom.mailboxes.gmail.permissions import login_command
from postroom.mailboxes.reachability import http_client, skew_of, skew_problem, unreachable
from postroom.telemetry import logs

LOOPBACK_HOST = "127.0.0.1"

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
    """The PKCE verifier of this login and its challenge."""

    verifier: str = field(repr=False)

    @classmethod
    def fresh(cls) -> Pkce:
        return cls(secrets.token_urlsafe(64))

    @property
    def challenge(self) -> str:
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class LoginVisit:
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
                f"The login was not finished within {timeout_s:.0f} seconds; nothing was stored. Begin it again and "
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
        """The answer to a browser that asks for this path; the redirect with the right state ends the wait."""
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
async def login_visit(client: ClientSecrets, scopes: frozenset[str], email: str) -> AsyncIterator[LoginVisit]:
    """Listen on a free loopback port for as long as the block runs."""
    visits: list[LoginVisit] = []
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

    server = await asyncio.start_server(serve, LOOPBACK_HOST, 0, limit=_LONGEST_HEAD)
    try:
        visits.append(
            LoginVisit(client, scopes, email, f"http://{LOOPBACK_HOST}:{server.sockets[0].getsockname()[1]}/")
        )
        yield visits[0]
    finally:
        server.close()
        for caller in callers:  # browsers open connections ahead of need; those would keep us here
            caller.cancel()


async def _serve_one(login: LoginVisit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


_LONGEST_LIFETIME_S = 7 * 86_400


@dataclass(frozen=True)
class LoginTokens:
    """What the login server gave."""

    access_token: str = field(repr=False)
    expires_at: datetime
    scopes: frozenset[str]
    refresh_token: str | None = field(repr=False, default=None)
    clock_complaint: str | None = None


class TokenEndpoint:
    def __init__(self, client: ClientSecrets, email: str, clock: Clock, scopes: frozenset[str] = frozenset()) -> None:
        """`scopes` are those of the login so far, so that a new one can have the same."""
        self._client = client
        self._email = email
        self._clock = clock
        self._scopes = scopes

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> LoginTokens:
        """The first tokens of a login."""
        return await self._ask(
            {
                "grant_type": "authorization_code",
                "code": code,
                "code_verifier": verifier,
                "redirect_uri": redirect_uri,
            }
        )

    async def refresh(self, refresh_token: str) -> LoginTokens:
        return await self._ask({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _ask(self, form: Mapping[str, str]) -> LoginTokens:
        identity = {"client_id": self._client.client_id, "client_secret": self._client.client_secret}
        try:
            async with http_client() as http:
                response = await http.post(self._client.token_uri, data={**form, **identity})
        except httpx2.TransportError as error:
            # Without the chain: the request in it holds the secrets.
            raise unreachable(error, self._client.token_uri) from None
        answer = _json(response)
        skew = skew_problem(skew_of(response.headers, self._clock.now()), self._host)
        if response.status_code != 200:
            raise self._refusal(response, answer, skew, is_first="code" in form)
        return self._tokens(answer, skew)

    @property
    def _host(self) -> str:
        return urlsplit(self._client.token_uri).hostname or self._client.token_uri

    def _tokens(self, answer: Mapping[str, object], skew: str | None) -> LoginTokens:
        token, lifetime = answer.get("access_token"), answer.get("expires_in", 3_600)
        if not isinstance(token, str) or not token or not isinstance(lifetime, int | float) or isnan(lifetime):
            raise Retryable(
                f"{self._host} answered with something that is no token. A captive portal or a proxy may be in the "
                "way; open a web page in a browser on this machine and see."
            )
        refresh, scope = answer.get("refresh_token"), answer.get("scope")
        logs.learn_secrets([token, refresh if isinstance(refresh, str) else ""])
        return LoginTokens(
            access_token=token,
            expires_at=self._clock.now() + timedelta(seconds=min(max(lifetime, 0), _LONGEST_LIFETIME_S)),
            scopes=frozenset(scope.split()) if isinstance(scope, str) else frozenset(),
            refresh_token=refresh if isinstance(refresh, str) and refresh else None,
            clock_complaint=skew,
        )

    def _refusal(
        self, response: httpx2.Response, answer: Mapping[str, object], skew: str | None, *, is_first: bool
    ) -> PostroomError:
        name, status = answer.get("error"), response.status_code
        if status == 429 or status >= 500:
            wait = retry_after(response.headers, "", self._clock.now())
            return Retryable(f"{self._host} is not able to answer now ({status}).", retry_after=wait)
        again = login_command(self._email, self._scopes)
        suffix = f" {skew}" if skew else ""
        if name == "invalid_grant" and is_first:
            return LoginNeeded(
                f"Google did not accept the code that its page gave for {self._email}: it was used before or is too "
                f"old. Log in again with {again}.{suffix}"
            )
        if name == "invalid_grant":
            return LoginNeeded(
                f"Google no longer accepts the login of {self._email}: access was withdrawn, the password was changed, "
                'it was unused for six months, or the app is in "Testing", where a login ends after seven days '
                f"(publish it in Google's console under OAuth consent screen). Log in again with {again}.{suffix}"
            )
        if name in ("invalid_client", "unauthorized_client"):
            return LoginNeeded(
                f"{self._host} does not know the app of {self._email} ({name}): its client secrets are wrong, or it "
                f"was deleted in Google's console. Download the file again and log in with {again}.{suffix}"
            )
        if not isinstance(name, str):
            return Fatal(
                f"{self._client.token_uri} does not answer like a login server ({status}). "
                f"Check `token_uri` in the client-secrets file.{suffix}"
            )
        return LoginNeeded(
            f"{self._host} refused the login of {self._email} ({name[:60]}). Log in again with {again}.{suffix}"
        )


def _json(response: httpx2.Response) -> Mapping[str, object]:
    try:
        answer = response.json()
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
