"""`/api/settings`: accounts, tokens, logins, the kill switch."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool

from postroom import kill_switch
from postroom.dashboard.api import api_router
from postroom.dashboard.changing.passphrase import PassphraseChanged, change_passphrase, give_proof, require_proof
from postroom.dashboard.changing.settings import end_one
from postroom.dashboard.reading.settings import Setup, TokenRow, setup, token_row
from postroom.dashboard.security.passphrase import LONGEST, SHORTEST
from postroom.dashboard.security.permits import permits
from postroom.dashboard.security.proof import Sensitive
from postroom.dashboard.visit import Here, Visit
from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Permission, Role
from postroom.switchboard.tokens import NewToken, create_token, revoke_all, revoke_with_made

router = api_router("settings")


class TokenWanted(BaseModel, extra="forbid"):
    role: Role
    name: str = Field(min_length=1, max_length=100, description="stands in the audit for whoever uses it")
    expires_days: int | None = Field(None, ge=1, le=3_650, description="left out: never, or when its maker expires")
    identity: str | None = Field(None, max_length=320, description="good for this mailbox only")
    permissions: list[Permission] | None = Field(
        None, max_length=20, description="left out: all of the role's but `approve` and `tokens`"
    )


class MadeToken(BaseModel):
    token: str = Field(description="shown this once")
    stored: TokenRow


class PassphraseWanted(BaseModel, extra="forbid"):
    current: str = Field(max_length=LONGEST)
    passphrase: str = Field(min_length=SHORTEST, max_length=LONGEST, description="the new one")
    revoke_tokens: StrictBool = Field(False, description="also revoke every token, this one included")


class Proof(BaseModel, extra="forbid"):
    passphrase: str = Field(max_length=LONGEST)


class Proved(BaseModel):
    until: datetime = Field(description="until then this login may make sensitive changes")


class Revoked(BaseModel):
    tokens: int


class SwitchWanted(BaseModel, extra="forbid"):
    enabled: StrictBool


@router.get("")
@permits(Permission.READ)
async def show(here: Here) -> Setup:
    """Accounts, tokens, logins, and whether backfill and the model are switched on."""
    return await _setup(here)


@router.post("/tokens", status_code=201)
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def make_token(here: Here, wanted: TokenWanted) -> MadeToken:
    """Make a token. It is shown this once; only a hash of it is kept. A token makes none that may do more than it."""
    maker = here.visitor.caller.token_id
    if maker is None:
        await require_proof(here, Sensitive.MAKE_TOKEN)
    new = NewToken(wanted.role, wanted.name, wanted.expires_days, wanted.identity, wanted.permissions)
    token, text = await here.write(lambda tx: create_token(tx, new, here.now, here.actor, maker))
    return MadeToken(token=text, stored=token_row(token, here.now))


@router.post("/tokens/{token_id}/revoke")
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def revoke(here: Here, token_id: UUID) -> TokenRow:
    """From now on it opens nothing, nor does what it made. A token may revoke itself and what it made."""
    asker = here.visitor.caller.token_id
    token, _ = await here.write(lambda tx: revoke_with_made(tx, str(token_id), here.now, here.actor, asker))
    return token_row(token, here.now)


@router.post("/revoke-tokens")
@permits(Permission.TOKENS)
async def revoke_every_token(here: Here) -> Revoked:
    """Revoke every token there is. For a login; a token revokes itself and what it made, one by one."""
    if here.visitor.session is None:
        raise NotAllowed("A token can revoke itself and the tokens that it made, and no other.")
    return Revoked(tokens=await here.write(lambda tx: revoke_all(tx, here.now, here.actor)))


@router.post("/sessions/{session_id}/end")
@permits(Permission.SETTINGS)
async def end_session(here: Here, session_id: UUID) -> Setup:
    """End a login."""
    await here.write(lambda tx: end_one(tx, str(session_id), here.actor, here.now))
    return await _setup(here)


@router.post("/passphrase")
@permits(Permission.SETTINGS)
async def change(here: Here, wanted: PassphraseWanted) -> PassphraseChanged:
    """Change the passphrase. Needs the one that holds; wrong ones are counted as at the login."""
    new = wanted.passphrase
    return await change_passphrase(here, wanted.current, new, new, revoke_tokens=wanted.revoke_tokens)


@router.post("/proof")
@permits(Permission.SETTINGS)
async def prove(here: Here, wanted: Proof) -> Proved:
    """Give the passphrase again, before a sensitive change. Only for a login; wrong ones are counted as there."""
    await give_proof(here, wanted.passphrase)
    return Proved(until=here.now + timedelta(minutes=here.app.settings.dashboard.proof_minutes))


@router.post("/backfill-switch")
@permits(Permission.BACKFILL)
async def turn_switch(here: Here, wanted: SwitchWanted) -> Setup:
    """Turn the kill switch of all backfill."""
    await here.call("backfill.switch", {"enabled": wanted.enabled})
    return await _setup(here)


@router.post("/model-switch")
@permits(Permission.SETTINGS)
async def turn_model(here: Here, wanted: SwitchWanted) -> Setup:
    """Stop the model in every process, or let it be asked again."""
    await here.write(lambda tx: kill_switch.turn_model(tx, wanted.enabled, here.actor, here.now))
    return await _setup(here)


async def _setup(here: Visit) -> Setup:
    return await here.read(lambda tx: setup(tx, here.app.settings, here.now))
