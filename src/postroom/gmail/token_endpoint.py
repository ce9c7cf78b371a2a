"""Trades a code or a refresh token for an access token. The one edge where the login server's refusals become ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import isnan
from urllib.parse import urlsplit

import httpx2

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, PostroomError, Retryable
from postroom.gmail.client_secrets import ClientSecrets
from postroom.gmail.errors import LoginNeeded
from postroom.gmail.reach import http_client, unreachable
from postroom.gmail.retry_after import retry_after
from postroom.gmail.skew import complaint, skew_of
from postroom.telemetry import logs

_LONGEST_LIFETIME_S = 7 * 86_400


@dataclass(frozen=True)
class Tokens:
    """What the login server gave."""

    access_token: str = field(repr=False)
    expires_at: datetime
    scopes: frozenset[str]
    refresh_token: str | None = field(repr=False, default=None)
    clock_complaint: str | None = None


class TokenEndpoint:
    def __init__(self, client: ClientSecrets, email: str, clock: Clock) -> None:
        self._client = client
        self._email = email
        self._clock = clock

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """The first tokens of a login."""
        return await self._ask(
            {
                "grant_type": "authorization_code",
                "code": code,
                "code_verifier": verifier,
                "redirect_uri": redirect_uri,
            }
        )

    async def refresh(self, refresh_token: str) -> Tokens:
        return await self._ask({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def _ask(self, form: Mapping[str, str]) -> Tokens:
        identity = {"client_id": self._client.client_id, "client_secret": self._client.client_secret}
        try:
            async with http_client() as http:
                response = await http.post(self._client.token_uri, data={**form, **identity})
        except httpx2.TransportError as error:
            # Without the chain: the request in it holds the secrets.
            raise unreachable(error, self._client.token_uri) from None
        answer = _json(response)
        skew = complaint(skew_of(response.headers, self._clock.now()), self._host)
        if response.status_code != 200:
            raise self._refusal(response, answer, skew, is_first="code" in form)
        return self._tokens(answer, skew)

    @property
    def _host(self) -> str:
        return urlsplit(self._client.token_uri).hostname or self._client.token_uri

    def _tokens(self, answer: Mapping[str, object], skew: str | None) -> Tokens:
        token, lifetime = answer.get("access_token"), answer.get("expires_in", 3_600)
        if not isinstance(token, str) or not token or not isinstance(lifetime, int | float) or isnan(lifetime):
            raise Retryable(
                f"{self._host} answered with something that is no token. A captive portal or a proxy may be in the "
                "way; open a web page in a browser on this machine and see."
            )
        refresh, scope = answer.get("refresh_token"), answer.get("scope")
        logs.learn_secrets([token, refresh if isinstance(refresh, str) else ""])
        return Tokens(
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
        again = f"`postroom account add gmail --email {self._email} --client-secrets FILE`"
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
