"""Login: which scopes allow which methods (as in Google's discovery document), access and refresh tokens,
authorization codes, and the endpoints for consent, tokens and revocation.

Consent is always given at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlencode, urlsplit

from postroom.domain.clock import Clock
from postroom.sim.gmail.api_errors import ApiError, unauthenticated
from postroom.sim.serving import SimReply, SimRequest, json_reply

FULL = "https://mail.google.com/"
_GMAIL = "https://www.googleapis.com/auth/gmail."
READONLY = _GMAIL + "readonly"
MODIFY = _GMAIL + "modify"
METADATA = _GMAIL + "metadata"
LABELS = _GMAIL + "labels"
INSERT = _GMAIL + "insert"
SEND = _GMAIL + "send"
COMPOSE = _GMAIL + "compose"

ALL_SCOPES = frozenset({FULL, READONLY, MODIFY, METADATA, LABELS, INSERT, SEND, COMPOSE})

TO_ERASE = frozenset({FULL})
TO_CHANGE = frozenset({FULL, MODIFY})
TO_READ_BODIES = frozenset({FULL, MODIFY, READONLY})
TO_READ = frozenset({FULL, MODIFY, READONLY, METADATA})
TO_SEE_PROFILE = TO_READ | {COMPOSE}
TO_INSERT = frozenset({FULL, MODIFY, INSERT})
TO_COMPOSE = frozenset({FULL, MODIFY, COMPOSE})
TO_SEND = TO_COMPOSE | {SEND}
TO_SEE_DRAFTS = TO_READ_BODIES | {COMPOSE}
TO_CHANGE_LABELS = frozenset({FULL, MODIFY, LABELS})
TO_SEE_LABELS = TO_READ | {LABELS}

ACCESS_LIFETIME_S = 3599
CODE_LIFETIME_S = 600


@dataclass(frozen=True)
class Access:
    scopes: frozenset[str]
    expires_at: float | None
    """On the monotonic clock; None lasts as long as the server."""
    refresh_token: str | None = None


@dataclass(frozen=True)
class PendingCode:
    client_id: str
    redirect_uri: str
    scopes: frozenset[str]
    challenge: str
    expires_at: float


class GrantError(Exception):
    """A refusal of the token endpoint, by its OAuth name."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.error = error
        self.description = description


class Grants:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._access: dict[str, Access] = {}
        self._refresh: dict[str, tuple[str, frozenset[str]]] = {}
        self._codes: dict[str, PendingCode] = {}

    def allow(self, token_scopes: frozenset[str], lifetime_s: float | None = None) -> str:
        """Issue an access token without a login."""
        return self._issue(token_scopes, lifetime_s, None)

    def check(self, token: str) -> Access:
        access = self._access.get(token)
        if access is None or (access.expires_at is not None and access.expires_at <= self._clock.monotonic()):
            raise unauthenticated()
        return access

    def remaining_s(self, access: Access) -> int:
        if access.expires_at is None:
            return ACCESS_LIFETIME_S
        return max(0, int(access.expires_at - self._clock.monotonic()))

    def consent(self, client_id: str, redirect_uri: str, wanted: frozenset[str], challenge: str) -> str:
        """The owner consents; returns a code that can be exchanged for tokens once."""
        code = "4/" + secrets.token_urlsafe(24)
        expires_at = self._clock.monotonic() + CODE_LIFETIME_S
        self._codes[code] = PendingCode(client_id, redirect_uri, wanted, challenge, expires_at)
        return code

    def redeem(self, code: str, client_id: str, redirect_uri: str, verifier: str) -> tuple[str, str, frozenset[str]]:
        """An access token and a refresh token for a code."""
        pending = self._codes.pop(code, None)
        if pending is None or pending.expires_at <= self._clock.monotonic() or pending.client_id != client_id:
            raise GrantError("invalid_grant", "Malformed auth code.")
        if pending.redirect_uri != redirect_uri:
            raise GrantError("redirect_uri_mismatch", "Bad Request")
        if pending.challenge and not hmac.compare_digest(pending.challenge, _s256(verifier)):
            raise GrantError("invalid_grant", "Invalid code verifier.")
        refresh_token = "1//" + secrets.token_urlsafe(32)
        self._refresh[refresh_token] = (client_id, pending.scopes)
        return self._issue(pending.scopes, ACCESS_LIFETIME_S, refresh_token), refresh_token, pending.scopes

    def refresh(self, refresh_token: str, client_id: str) -> tuple[str, frozenset[str]]:
        owner, granted = self._refresh.get(refresh_token, ("", frozenset[str]()))
        if not owner or owner != client_id:
            raise GrantError("invalid_grant", "Token has been expired or revoked.")
        return self._issue(granted, ACCESS_LIFETIME_S, refresh_token), granted

    def revoke(self, token: str) -> bool:
        """Take a grant back: a refresh token and everything made from it. False if there is no such token."""
        access = self._access.get(token)
        root = access.refresh_token if access else token
        known = self._refresh.pop(root or "", None) is not None or access is not None
        self._access = {
            key: held for key, held in self._access.items() if key != token and (not root or held.refresh_token != root)
        }
        return known

    def revoke_all(self) -> None:
        self._access.clear()
        self._refresh.clear()

    def expire_access(self, token: str | None = None) -> None:
        """Access tokens run out now; refresh tokens stay good."""
        for key, access in self._access.items():
            if token is None or key == token:
                self._access[key] = replace(access, expires_at=self._clock.monotonic())

    def _issue(self, granted: frozenset[str], lifetime_s: float | None, refresh_token: str | None) -> str:
        token = "ya29." + secrets.token_urlsafe(32)
        expires_at = None if lifetime_s is None else self._clock.monotonic() + lifetime_s
        self._access[token] = Access(granted, expires_at, refresh_token)
        return token


def known_scopes(text: str) -> frozenset[str]:
    """The Gmail scopes among those asked for; identity scopes are granted silently elsewhere and mean nothing here."""
    return frozenset(text.split()) & ALL_SCOPES


def _s256(verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class OAuth:
    def __init__(self, grants: Grants, email: str) -> None:
        self._grants = grants
        self._email = email
        self._pages: dict[tuple[str, str], Callable[[Mapping[str, str]], SimReply]] = {
            ("GET", "/o/oauth2/auth"): self._consent,
            ("GET", "/o/oauth2/v2/auth"): self._consent,
            ("POST", "/token"): self._token,
            ("POST", "/revoke"): self._revoke,
            ("GET", "/tokeninfo"): self._tokeninfo,
            ("POST", "/tokeninfo"): self._tokeninfo,
        }

    def serves(self, request: SimRequest) -> bool:
        return (request.verb, request.path) in self._pages

    def answer(self, request: SimRequest) -> SimReply:
        form = dict(parse_qsl(request.query_string)) | dict(parse_qsl(request.body.decode("latin-1")))
        try:
            return self._pages[request.verb, request.path](form)
        except GrantError as error:
            return _refusal(error)

    def _consent(self, form: Mapping[str, str]) -> SimReply:
        redirect = form.get("redirect_uri", "")
        if urlsplit(redirect).hostname not in _LOOPBACK:
            raise GrantError("redirect_uri_mismatch", "The redirect address must be on this machine.")
        if form.get("response_type") != "code" or not form.get("client_id"):
            raise GrantError("invalid_request", "response_type=code and client_id are needed.")
        challenge = form.get("code_challenge", "")
        if challenge and form.get("code_challenge_method") != "S256":
            raise GrantError("invalid_request", "code_challenge_method must be S256.")
        wanted = known_scopes(form.get("scope", ""))
        if not wanted:
            raise GrantError("invalid_scope", "No Gmail scope was asked for.")
        code = self._grants.consent(form["client_id"], redirect, wanted, challenge)
        answer = {"code": code, "scope": " ".join(sorted(wanted))}
        if "state" in form:
            answer["state"] = form["state"]
        separator = "&" if urlsplit(redirect).query else "?"
        return SimReply(302, headers=(("Location", f"{redirect}{separator}{urlencode(answer)}"),))

    def _token(self, form: Mapping[str, str]) -> SimReply:
        client_id = form.get("client_id", "")
        match form.get("grant_type"):
            case "authorization_code":
                redirect, verifier = form.get("redirect_uri", ""), form.get("code_verifier", "")
                token, refresh, granted = self._grants.redeem(form.get("code", ""), client_id, redirect, verifier)
                return _token_reply(token, granted, refresh)
            case "refresh_token":
                token, granted = self._grants.refresh(form.get("refresh_token", ""), client_id)
                return _token_reply(token, granted, None)
            case _:
                raise GrantError("unsupported_grant_type", "Invalid grant_type.")

    def _revoke(self, form: Mapping[str, str]) -> SimReply:
        if not self._grants.revoke(form.get("token", "")):
            raise GrantError("invalid_token", "Token expired or revoked")
        return json_reply({})

    def _tokeninfo(self, form: Mapping[str, str]) -> SimReply:
        try:
            access = self._grants.check(form.get("access_token", ""))
        except ApiError:
            raise GrantError("invalid_token", "Invalid Value") from None
        info = {"scope": " ".join(sorted(access.scopes)), "expires_in": str(self._grants.remaining_s(access))}
        return json_reply(info | {"email": self._email, "access_type": "offline"})


def _token_reply(token: str, granted: frozenset[str], refresh: str | None) -> SimReply:
    answer: dict[str, object] = {
        "access_token": token,
        "expires_in": ACCESS_LIFETIME_S,
        "scope": " ".join(sorted(granted)),
        "token_type": "Bearer",
    }
    return json_reply(answer if refresh is None else answer | {"refresh_token": refresh})


def _refusal(error: GrantError) -> SimReply:
    return json_reply({"error": error.error, "error_description": error.description}, 400)
