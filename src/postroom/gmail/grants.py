"""What an owner has granted, as it lies in the vault: all that a process needs to speak for an account, database or
not. The address that a token may be shown to is part of the grant, so that it is never shown to another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, Retryable
from postroom.gmail.client_secrets import ClientSecrets
from postroom.gmail.errors import LoginNeeded
from postroom.gmail.transport import GOOGLE
from postroom.telemetry import logs
from postroom.vault import Lock, Vault

_LOCK_POLL_S = 0.02
_LOCK_PATIENCE_S = 60.0


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    email: str
    api_base: str = GOOGLE
    access_token: str = Field(repr=False)


class StaticGrant(_Stored):
    """A bare access token that somebody handed us; it lasts as long as it lasts."""

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

    @property
    def client(self) -> ClientSecrets:
        return ClientSecrets(self.client_id, self.client_secret, self.auth_uri, self.token_uri)


StoredGrant = StaticGrant | OAuthGrant
_format: TypeAdapter[StoredGrant] = TypeAdapter(Annotated[StoredGrant, Field(discriminator="kind")])


def normal_email(text: str, field: str = "email") -> str:
    """The form under which an account is known: without spaces around it, in lower case."""
    email = text.strip().lower()
    name, at, host = email.rpartition("@")
    if not (name and at and host) or len(email) > 254 or any(ch.isspace() or not ch.isprintable() for ch in email):
        raise BadInput(field, f"{text!r} is not an e-mail address")
    return email


class GrantStore:
    """The grants of all Gmail accounts of this installation."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def find(self, email: str) -> StoredGrant | None:
        sealed = self._vault.get(_entry(email))
        if sealed is None:
            return None
        try:
            grant = _format.validate_json(sealed)
        except ValidationError:
            raise LoginNeeded(
                f"The stored login of {email} cannot be read by this version of Postroom. Log in again with "
                f"`postroom account add gmail --email {email} --client-secrets FILE`."
            ) from None
        _keep_out_of_logs(grant)
        return grant

    def load(self, email: str) -> StoredGrant:
        grant = self.find(email)
        if grant is None:
            raise LoginNeeded(
                f"Nobody is logged in as {email} here. Run `postroom account add gmail --email {email} "
                "--client-secrets FILE`."
            )
        return grant

    def save(self, grant: StoredGrant) -> None:
        _keep_out_of_logs(grant)
        self._vault.put(_entry(grant.email), _format.dump_json(grant))

    def remove(self, email: str) -> bool:
        return self._vault.remove(_entry(email))

    @asynccontextmanager
    async def locked(self, email: str, clock: Clock) -> AsyncIterator[None]:
        """Hold the account's grant against every other process; to wait must not stop this process's other tasks."""
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
