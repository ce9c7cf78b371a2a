"""The login of an installed app (RFC 8252): the browser goes to the provider and returns to a loopback port with a
code, which the token endpoint exchanges for tokens. The client-secrets file that Google's console issues is read here;
a wrong file is refused with the reason.

PKCE (S256) binds the code to this process, and the state binds the visit. Requests to the port without the right state
are rejected and the wait goes on.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.gmail.error_mapping import retry_after
from postroom.mailboxes.gmail.methods import login_command
from postroom.mailboxes.imap.providers import SignIn
from postroom.mailboxes.reachability import http_client, require_safe_url, skew_of, skew_problem, unreachable
from postroom.telemetry import logs

_LARGEST = 64 * 1024
_LONGEST_PROJECT = 100
_HOW_TO_GET_ONE = (
    "in Google's console, under Google Auth Platform > Clients, create a client of type Desktop app and download its "
    "JSON"
)
_TOO_LARGE = f"is too large to be a client-secrets file; {_HOW_TO_GET_ONE}"


@dataclass(frozen=True)
class ClientSecrets:
    """The OAuth client of this installation."""

    client_id: str
    client_secret: str = field(repr=False)
    auth_uri: str
    token_uri: str
    project: str = ""
    """The project at Google that it belongs to, where the file names it."""
    sign_in: SignIn | None = None
    """Set where the mailbox is reached by IMAP."""

    @property
    def issuer(self) -> str:
        return (self.sign_in or SignIn.GOOGLE).shown

    def again(self, email: str, scopes: frozenset[str]) -> str:
        """The command that logs in again."""
        if self.sign_in is None:
            return login_command(email, scopes)
        client = "--client-secrets FILE" if self.sign_in is SignIn.GOOGLE else "--client-id ID"
        return f"`postroom account add imap --email {email} --oauth {self.sign_in} {client}`"


def read_client_secrets(path: Path) -> ClientSecrets:
    """The app in this file; anything else is refused with the file's name and the field."""
    try:
        if path.stat().st_size > _LARGEST:
            raise BadInput(str(path), _TOO_LARGE)
        content = path.read_bytes()
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from None
    return parse_client_secrets(content, str(path))


def parse_client_secrets(content: bytes, name: str) -> ClientSecrets:
    """The same from its content; `name` is what a refusal calls it."""
    parsed = _parse(content, name)
    if "installed" not in parsed:
        raise BadInput(name, _not_a_desktop_app(parsed))
    app = parsed["installed"]
    if not isinstance(app, dict):
        raise BadInput(name, "field `installed` is not an object; download the file again")
    return ClientSecrets(
        client_id=_text(name, app, "client_id"),
        client_secret=_text(name, app, "client_secret"),
        auth_uri=_address(name, app, "auth_uri"),
        token_uri=_address(name, app, "token_uri"),
        project=_project(app.get("project_id")),
    )


def _parse(content: bytes, name: str) -> dict[str, Any]:
    if len(content) > _LARGEST:
        raise BadInput(name, _TOO_LARGE)
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        raise BadInput(name, f"is not JSON; {_HOW_TO_GET_ONE}") from None
    if not isinstance(parsed, dict):
        raise BadInput(name, f"is JSON but no client-secrets file; {_HOW_TO_GET_ONE}")
    return parsed


def _not_a_desktop_app(content: dict[str, Any]) -> str:
    if "web" in content:
        return f"field `web`: this is a client of type Web application, which cannot log in here; {_HOW_TO_GET_ONE}"
    if content.get("type") == "service_account":
        return f"field `type`: this is the key of a service account, which has no mailbox of its own; {_HOW_TO_GET_ONE}"
    if "refresh_token" in content:
        return f"field `refresh_token`: these are a user's tokens, not an app's client secrets; {_HOW_TO_GET_ONE}"
    return f"field `installed` is missing; {_HOW_TO_GET_ONE}"


def _text(whole: str, app: dict[str, Any], name: str) -> str:
    value = app.get(name)
    if not isinstance(value, str) or not value.strip():
        raise BadInput(whole, f"field `installed.{name}` is missing or empty; download the file again")
    if not value.strip().isprintable():
        raise BadInput(whole, f"field `installed.{name}` holds characters that have no shape; download the file again")
    return value.strip()


def _project(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST_PROJECT and value.isprintable() else ""


def _address(whole: str, app: dict[str, Any], name: str) -> str:
    try:
        return require_safe_url(_text(whole, app, name), name)
    except BadInput as error:
        if error.field != name:
            raise
        raise BadInput(whole, f"field `installed.{name}`: {error.problem}") from None


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
        raise Fatal(f"The page ended the login with {answer.get('error', 'no answer')[:60]!r}; nothing was stored.")

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
    """Listen on a free loopback port for as long as the block runs. Microsoft knows this machine by its name only."""
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
        port = server.sockets[0].getsockname()[1]
        is_named = client.sign_in is SignIn.MICROSOFT
        back = f"http://localhost:{port}" if is_named else f"http://{LOOPBACK_HOST}:{port}/"
        visits.append(LoginVisit(client, scopes, email, back))
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


_UNUSED = {
    "Google": 'it was unused for six months, or the app is in "Testing", where a login ends after seven days (publish '
    "it in Google's console under OAuth consent screen).",
    "Microsoft": "or it was unused for 90 days.",
}


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
        secret = self._client.client_secret  # none for a public client, which must not send an empty one
        identity = {"client_id": self._client.client_id, **({"client_secret": secret} if secret else {})}
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
        again, issuer = self._client.again(self._email, self._scopes), self._client.issuer
        suffix = f" {skew}" if skew else ""
        if name == "invalid_grant" and is_first:
            return LoginNeeded(
                f"{issuer} did not accept the code that its page gave for {self._email}: it was used before or is too "
                f"old. Log in again with {again}.{suffix}"
            )
        if name == "invalid_grant":
            return LoginNeeded(
                f"{issuer} no longer accepts the login of {self._email}: access was withdrawn, the password was "
                f"changed, {_UNUSED[issuer]} Log in again with {again}.{suffix}"
            )
        if name in ("invalid_client", "unauthorized_client"):
            return LoginNeeded(
                f"{self._host} does not know the app of {self._email} ({name}): its client secrets are wrong, or it "
                f"was deleted in {issuer}'s console. Download the file again and log in with {again}.{suffix}"
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
