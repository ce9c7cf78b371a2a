"""`/api/settings`: accounts, tokens, logins, the kill switch."""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel, Field, StrictBool

from postroom import kill_switch
from postroom.dashboard.api import api_router
from postroom.dashboard.changing.passphrase import change_passphrase
from postroom.dashboard.changing.settings import end_one
from postroom.dashboard.reading.settings import Setup, TokenRow, setup, token_row
from postroom.dashboard.security.passphrase import LONGEST, SHORTEST
from postroom.dashboard.visit import Here, Visit
from postroom.domain.roles import Role
from postroom.switchboard.tokens import NewToken, create_token, revoke_token

router = api_router("settings")


class TokenWanted(BaseModel, extra="forbid"):
    role: Role
    name: str = Field(min_length=1, max_length=100, description="stands in the audit for whoever uses it")
    expires_days: int | None = Field(None, ge=1, le=3_650)
    identity: str | None = Field(None, max_length=320, description="for a connector: good for this mailbox only")


class MadeToken(BaseModel):
    token: str = Field(description="shown this once")
    stored: TokenRow


class PassphraseWanted(BaseModel, extra="forbid"):
    current: str = Field(max_length=LONGEST)
    passphrase: str = Field(min_length=SHORTEST, max_length=LONGEST, description="the new one")


class Changed(BaseModel):
    logins_ended: int = Field(description="all but the one that asked")


class SwitchWanted(BaseModel, extra="forbid"):
    enabled: StrictBool


@router.get("")
async def show(here: Here) -> Setup:
    """Accounts, tokens, logins, and whether backfill and the model are switched on."""
    return await _setup(here)


@router.post("/tokens", status_code=201)
async def make_token(here: Here, wanted: TokenWanted) -> MadeToken:
    """Make a token. It is shown this once; only a hash of it is kept."""
    new = NewToken(wanted.role, wanted.name, wanted.expires_days, wanted.identity)
    token, text = await here.write(lambda tx: create_token(tx, new, here.now, here.actor))
    return MadeToken(token=text, stored=token_row(token, here.now))


@router.post("/tokens/{token_id}/revoke")
async def revoke(here: Here, token_id: UUID) -> TokenRow:
    """From now on it opens nothing."""
    token = await here.write(lambda tx: revoke_token(tx, str(token_id), here.now, here.actor))
    return token_row(token, here.now)


@router.post("/sessions/{session_id}/end")
async def end_session(here: Here, session_id: UUID) -> Setup:
    """End a login."""
    await here.write(lambda tx: end_one(tx, str(session_id), here.actor, here.now))
    return await _setup(here)


@router.post("/passphrase")
async def change(here: Here, wanted: PassphraseWanted) -> Changed:
    """Change the passphrase. Needs the one that holds; wrong ones are counted as at the login."""
    new = wanted.passphrase
    return Changed(logins_ended=await change_passphrase(here, wanted.current, new, new))


@router.post("/backfill-switch")
async def turn_switch(here: Here, wanted: SwitchWanted) -> Setup:
    """Turn the kill switch of all backfill."""
    await here.call("backfill.switch", {"enabled": wanted.enabled})
    return await _setup(here)


@router.post("/model-switch")
async def turn_model(here: Here, wanted: SwitchWanted) -> Setup:
    """Stop the model in every process, or let it be asked again."""
    await here.write(lambda tx: kill_switch.turn_model(tx, wanted.enabled, here.actor, here.now))
    return await _setup(here)


async def _setup(here: Visit) -> Setup:
    return await here.read(lambda tx: setup(tx, here.app.settings, here.now))
