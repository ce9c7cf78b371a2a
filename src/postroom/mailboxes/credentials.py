"""Logins by browser, of Gmail accounts and of IMAP accounts at Google and Microsoft: stored in the vault, and refreshed
once however many callers need a token. The server's address is part of the grant, so that a token is never sent to
another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal, Retryable
from postroom.domain.ids import normal_email
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.gmail.methods import GOOGLE, login_command
from postroom.mailboxes.imap.connection import ImapLogin, ServerAddress
from postroom.mailboxes.imap.login import ImapLogins
from postroom.mailboxes.imap.providers import SignIn
from postroom.mailboxes.ports import Credentials
from postroom.telemetry import logs
from postroom.vault import Lock, Vault

if TYPE_CHECKING:
    from postroom.mailboxes.browser_login import ClientSecrets

_LOCK_POLL_S = 0.02
_LOCK_PATIENCE_S = 60.0


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    email: str
    api_base: str = GOOGLE
    access_token: str = Field(repr=False)


class StaticGrant(_Stored):
    """A bare access token, used until it expires."""

    kind: Literal["static"] = "static"


class OAuthGrant(_Stored):
    """A login: the access token of the hour, and the refresh token that brings the next."""

    kind: Literal["oauth"] = "oauth"
    expires_at: datetime
    refresh_token: str = Field(repr=False)
    scopes: frozenset[str]
    client_id: str
    client_secret: str = Field(repr=False)
    auth_uri: str
    token_uri: str
    sign_in: SignIn | None = None
    """Set where the mailbox is reached by IMAP; `api_base` is then the server."""
    submission: str = ""

    @property
    def client(self) -> ClientSecrets:
        from postroom.mailboxes.browser_login import ClientSecrets

        return ClientSecrets(self.client_id, self.client_secret, self.auth_uri, self.token_uri, sign_in=self.sign_in)


StoredGrant = StaticGrant | OAuthGrant
_format: TypeAdapter[StoredGrant] = TypeAdapter(Annotated[StoredGrant, Field(discriminator="kind")])


class GrantStore:
    """The grants of all Gmail accounts of this installation."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    @property
    def imap(self) -> ImapLogins:
        """The logins of IMAP accounts, in the same vault."""
        return ImapLogins(self._vault)

    def find(self, email: str) -> StoredGrant | None:
        sealed = self._vault.get(_entry(email))
        if sealed is None:
            return None
        try:
            grant = _format.validate_json(sealed)
        except ValidationError:
            raise LoginNeeded(
                f"The stored login of {email} cannot be read by this version of Postroom. Log in again with "
                f"{login_command(email)}."
            ) from None
        _keep_out_of_logs(grant)
        return grant

    def load(self, email: str) -> StoredGrant:
        grant = self.find(email)
        if grant is None:
            raise LoginNeeded(f"{email} is not logged in here. Run {login_command(email)}.")
        return grant

    def save(self, grant: StoredGrant) -> None:
        _keep_out_of_logs(grant)
        self._vault.put(_entry(grant.email), _format.dump_json(grant))

    def remove(self, email: str) -> bool:
        return self._vault.remove(_entry(email))

    @asynccontextmanager
    async def locked(self, email: str, clock: Clock) -> AsyncIterator[None]:
        """Lock the account's grant across processes. Waiting for the lock does not block the event loop."""
        lock = await self._wait_for_lock(email, clock)
        try:
            yield
        finally:
            lock.release()

    async def _wait_for_lock(self, email: str, clock: Clock) -> Lock:
        deadline = clock.monotonic() + _LOCK_PATIENCE_S
        while (lock := self._vault.try_lock(_entry(email))) is None:
            if clock.monotonic() >= deadline:
                raise Retryable(f"Another process is busy with the login of {email} and does not finish.")
            await clock.sleep(_LOCK_POLL_S)
            await asyncio.sleep(0)
        return lock


def _entry(email: str) -> str:
    return f"gmail:{normal_email(email)}"


def _keep_out_of_logs(grant: StoredGrant) -> None:
    logs.learn_secrets([grant.access_token])
    if isinstance(grant, OAuthGrant):
        logs.learn_secrets([grant.refresh_token, grant.client_secret])


log = logs.get(__name__)

_FRESH_FOR = timedelta(minutes=1)
"""A token this close to its expiry is replaced before it is used, because the call itself takes time."""


class StaticCredentials:
    """A token that cannot be renewed. `refused` is said where it is not accepted."""

    def __init__(self, token: str, email: str, refused: str = "") -> None:
        self._token = token
        self._email = email
        self._refused = refused

    def __repr__(self) -> str:
        return f"StaticCredentials({self._email!r})"

    async def access_token(self, *, rejected: str | None = None) -> str:
        if rejected == self._token:
            raise LoginNeeded(
                self._refused
                or f"The access token of {self._email} was refused: it has expired or was withdrawn, and a bare token "
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
        from postroom.mailboxes.browser_login import TokenEndpoint  # brings an HTTP client, slow to load

        endpoint = TokenEndpoint(stored.client, self._email, self._clock, stored.scopes)
        tokens = await endpoint.refresh(stored.refresh_token)
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
    """The login of an account as the vault has it now: a renewed login takes effect, even one of another kind."""

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
    """The credentials of this account. Without a login, raises LoginNeeded with the command to run."""
    grant = grants.load(email)
    if isinstance(grant, StaticGrant):
        return StaticCredentials(grant.access_token, email)
    return OAuthCredentials(grants, email, clock)


def imap_login_by(grant: OAuthGrant, tokens: Credentials) -> ImapLogin:
    address = ServerAddress.parse(grant.api_base)
    return ImapLogin(grant.email, address, grant.email, "", grant.submission, tokens)


def imap_login_of(grants: GrantStore, email: str, clock: Clock) -> ImapLogin:
    """The login of an IMAP account, by browser or by password. Raises LoginNeeded where there is none."""
    grant = grants.find(email)
    if isinstance(grant, OAuthGrant) and grant.sign_in is not None:
        return imap_login_by(grant, OAuthCredentials(grants, email, clock))
    return grants.imap.load(email)
