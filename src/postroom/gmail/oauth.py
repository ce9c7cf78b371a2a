"""Logging in to Gmail, and a token that is good whenever one is asked for: refreshed once, however many ask."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, NotAllowed
from postroom.gmail.client_secrets import ClientSecrets
from postroom.gmail.errors import LoginNeeded
from postroom.gmail.grants import GrantStore, OAuthGrant, StaticGrant, StoredGrant
from postroom.gmail.loopback import visit
from postroom.gmail.ports import Credentials
from postroom.gmail.scope import shortage, wanted
from postroom.gmail.token_endpoint import TokenEndpoint, Tokens
from postroom.gmail.transport import GOOGLE
from postroom.telemetry import logs

log = logs.get(__name__)

LOGIN_TIMEOUT_S = 300.0
_FRESH_FOR = timedelta(minutes=1)
"""A token this close to its end is replaced before it is shown, as the call itself takes time."""


class StaticCredentials:
    """A token that cannot be renewed."""

    def __init__(self, token: str, email: str) -> None:
        self._token = token
        self._email = email

    def __repr__(self) -> str:
        return f"StaticCredentials({self._email!r})"

    async def access_token(self, *, rejected: str | None = None) -> str:
        if rejected == self._token:
            raise LoginNeeded(
                f"The access token of {self._email} was refused: it has expired or was withdrawn, and a bare token "
                f"cannot be renewed. Run `postroom account add gmail --email {self._email}` again with a new one, or "
                "with --client-secrets to log in for good."
            )
        return self._token


class OAuthCredentials:
    """The login of one account, kept in the vault. Processes share it: the loser of a race uses the winner's token."""

    def __init__(self, grants: GrantStore, email: str, clock: Clock) -> None:
        self._grants = grants
        self._email = email
        self._clock = clock
        self._grant: OAuthGrant | None = None
        self._one_at_a_time = asyncio.Lock()

    def __repr__(self) -> str:
        return f"OAuthCredentials({self._email!r})"

    async def access_token(self, *, rejected: str | None = None) -> str:
        if self._grant is not None and self._is_good(self._grant, rejected):
            return self._grant.access_token
        async with self._one_at_a_time:
            if self._grant is None or not self._is_good(self._grant, rejected):
                self._grant = await self._shared_or_refreshed(rejected)
            return self._grant.access_token

    def _is_good(self, grant: OAuthGrant, rejected: str | None) -> bool:
        return grant.access_token != rejected and grant.expires_at - self._clock.now() > _FRESH_FOR

    async def _shared_or_refreshed(self, rejected: str | None) -> OAuthGrant:
        stored = self._load()
        if self._is_good(stored, rejected):
            return stored
        async with self._grants.locked(self._email, self._clock):
            stored = self._load()
            return stored if self._is_good(stored, rejected) else await self._refresh(stored)

    def _load(self) -> OAuthGrant:
        grant = self._grants.load(self._email)
        if isinstance(grant, OAuthGrant):
            return grant
        raise Fatal(f"{self._email} now has a bare access token in place of a login; start this process again.")

    async def _refresh(self, stored: OAuthGrant) -> OAuthGrant:
        tokens = await TokenEndpoint(stored.client, self._email, self._clock).refresh(stored.refresh_token)
        if tokens.clock_complaint:
            log.warning("clock.skewed", account=self._email, problem=tokens.clock_complaint)
        renewed = stored.model_copy(
            update={
                "access_token": tokens.access_token,
                "expires_at": tokens.expires_at,
                "refresh_token": tokens.refresh_token or stored.refresh_token,
                "scopes": tokens.scopes or stored.scopes,
            }
        )
        self._grants.save(renewed)
        log.info("login.refreshed", account=self._email)
        return renewed


class CurrentCredentials:
    """The login of an account as the vault has it now: one that was renewed is taken up, also one of another kind."""

    def __init__(self, grants: GrantStore, email: str, clock: Clock) -> None:
        self._grants = grants
        self._email = email
        self._clock = clock
        self._known: StoredGrant | None = None
        self._inner: Credentials | None = None

    def __repr__(self) -> str:
        return f"CurrentCredentials({self._email!r})"

    async def access_token(self, *, rejected: str | None = None) -> str:
        if self._inner is None:
            return await self._renewed().access_token(rejected=rejected)
        try:
            return await self._inner.access_token(rejected=rejected)
        except Fatal:
            if self._grants.find(self._email) == self._known:
                raise
            return await self._renewed().access_token(rejected=rejected)

    def _renewed(self) -> Credentials:
        self._inner = credentials_for(self._grants, self._email, self._clock)
        self._known = self._grants.find(self._email)
        return self._inner


def credentials_for(grants: GrantStore, email: str, clock: Clock) -> Credentials:
    """How to speak for this account; LoginNeeded with the command to run if nobody has logged in."""
    grant = grants.load(email)
    if isinstance(grant, StaticGrant):
        return StaticCredentials(grant.access_token, email)
    return OAuthCredentials(grants, email, clock)


async def log_in(
    client: ClientSecrets,
    email: str,
    clock: Clock,
    *,
    show: Callable[[str], None],
    api_base: str = GOOGLE,
    full_access: bool = False,
    timeout_s: float = LOGIN_TIMEOUT_S,
) -> OAuthGrant:
    """Let the owner log in by browser; `show` gets the address to open. Nothing is stored."""
    async with visit(client, wanted(full_access=full_access), email) as login:
        show(login.url)
        code = await login.code(timeout_s)
    logs.learn_secrets([code, client.client_secret])  # tokens are learnt where they arrive
    endpoint = TokenEndpoint(client, email, clock)
    tokens = await endpoint.redeem(code, login.pkce.verifier, login.redirect_uri)
    return _first_grant(tokens, client, email, api_base, full_access)


def _first_grant(tokens: Tokens, client: ClientSecrets, email: str, api_base: str, full_access: bool) -> OAuthGrant:
    if tokens.refresh_token is None:
        raise Fatal(
            f"Google gave no refresh token, so the login of {email} would end within the hour. Withdraw the app's "
            "access at https://myaccount.google.com/permissions and log in again."
        )
    if tokens.scopes and (missing := shortage(tokens.scopes, email, full_access=full_access)):
        raise NotAllowed(missing)
    return OAuthGrant(
        email=email,
        api_base=api_base,
        access_token=tokens.access_token,
        expires_at=tokens.expires_at,
        refresh_token=tokens.refresh_token,
        scopes=tokens.scopes or wanted(full_access=full_access),
        client_id=client.client_id,
        client_secret=client.client_secret,
        auth_uri=client.auth_uri,
        token_uri=client.token_uri,
    )
