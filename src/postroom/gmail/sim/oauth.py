"""The login endpoints: consent (always yes, at once), tokens, revocation and token inspection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl, urlencode, urlsplit

from postroom.gmail.sim.errors import ApiError
from postroom.gmail.sim.grants import ACCESS_LIFETIME_S, GrantError, Grants, known_scopes
from postroom.gmail.sim.http import Reply, Request, json_reply

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class OAuth:
    def __init__(self, grants: Grants, email: str) -> None:
        self._grants = grants
        self._email = email
        self._pages: dict[tuple[str, str], Callable[[Mapping[str, str]], Reply]] = {
            ("GET", "/o/oauth2/auth"): self._consent,
            ("GET", "/o/oauth2/v2/auth"): self._consent,
            ("POST", "/token"): self._token,
            ("POST", "/revoke"): self._revoke,
            ("GET", "/tokeninfo"): self._tokeninfo,
            ("POST", "/tokeninfo"): self._tokeninfo,
        }

    def serves(self, request: Request) -> bool:
        return (request.verb, request.path) in self._pages

    def answer(self, request: Request) -> Reply:
        form = dict(parse_qsl(request.query_string)) | dict(parse_qsl(request.body.decode("latin-1")))
        try:
            return self._pages[request.verb, request.path](form)
        except GrantError as error:
            return _refusal(error)

    def _consent(self, form: Mapping[str, str]) -> Reply:
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
        return Reply(302, headers=(("Location", f"{redirect}{separator}{urlencode(answer)}"),))

    def _token(self, form: Mapping[str, str]) -> Reply:
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

    def _revoke(self, form: Mapping[str, str]) -> Reply:
        if not self._grants.revoke(form.get("token", "")):
            raise GrantError("invalid_token", "Token expired or revoked")
        return json_reply({})

    def _tokeninfo(self, form: Mapping[str, str]) -> Reply:
        try:
            access = self._grants.check(form.get("access_token", ""))
        except ApiError:
            raise GrantError("invalid_token", "Invalid Value") from None
        info = {"scope": " ".join(sorted(access.scopes)), "expires_in": str(self._grants.remaining_s(access))}
        return json_reply(info | {"email": self._email, "access_type": "offline"})


def _token_reply(token: str, granted: frozenset[str], refresh: str | None) -> Reply:
    answer: dict[str, object] = {
        "access_token": token,
        "expires_in": ACCESS_LIFETIME_S,
        "scope": " ".join(sorted(granted)),
        "token_type": "Bearer",
    }
    return json_reply(answer if refresh is None else answer | {"refresh_token": refresh})


def _refusal(error: GrantError) -> Reply:
    return json_reply({"error": error.error, "error_description": error.description}, 400)
