"""Page and API of settings: tokens, logins, the passphrase, the kill switch, the model."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from pydantic import BaseModel, Field, StrictBool
from starlette.responses import Response

from postroom import kill_switch
from postroom.contract.backfill import SWITCH
from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.dashboard.security.login_throttle import TooManyAttempts
from postroom.dashboard.security.passphrase import LONGEST, SHORTEST
from postroom.dashboard.security.proof import (
    PassphraseChanged,
    SensitiveChange,
    change_passphrase,
    give_proof,
    require_proof,
)
from postroom.dashboard.settings.queries import Setup, TokenRow, all_settings, end_one, end_others, setup, token_row
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import PERMISSIONS, Permission, Role, all_permissions
from postroom.switchboard.tokens import NewToken, checked, create_token, revoke_all, revoke_with_made
from postroom.triage.model import api_key, meter_for

pages = pages_router()

SECTION = "settings"


@pages.get("/settings")
async def settings_page(here: Here) -> Response:
    return await _page(here)


@pages.post("/settings/tokens")
async def submit_token(here: Here) -> Response:
    """Answered with the page itself and not with a redirect: the token is shown this once, and stored nowhere."""
    form = await here.form()
    try:
        new = _new_token(form)
        checked(new, here.now)
        await require_proof(here, SensitiveChange.MAKE_TOKEN, form)
        token, text = await here.write(lambda tx: create_token(tx, new, here.now, here.actor))
    except BadInput as error:
        field = error.field.replace("-", "_")
        return await _page(here, 422, form=form.refused(BadInput(field, error.problem)))
    return await _page(here, made=token, secret=text)


@pages.post("/settings/tokens/{token_id}/revoke")
async def submit_revoke(here: Here, token_id: str) -> Response:
    token, fell = await here.write(lambda tx: revoke_with_made(tx, token_id, here.now, here.actor))
    also = f", nor do {plural(fell, 'token')} that it made" if fell else ""
    return await here.go("/settings#tokens", f"The token {token.name} opens nothing any more{also}.")


@pages.post("/settings/revoke-tokens")
async def submit_revoke_all(here: Here) -> Response:
    fell = await here.write(lambda tx: revoke_all(tx, here.now, here.actor))
    return await here.go("/settings#tokens", f"{plural(fell, 'token')} revoked.")


@pages.post("/settings/sessions/{session_id}/end")
async def submit_end_session(here: Here, session_id: str) -> Response:
    await here.write(lambda tx: end_one(tx, session_id, here.actor, here.now))
    return await here.go("/settings#sessions", "That login is ended.")


@pages.post("/settings/sessions/end-others")
async def submit_end_other_sessions(here: Here) -> Response:
    own = here.visitor.session
    ended = await here.write(lambda tx: end_others(tx, own.id if own else None, here.actor, here.now))
    return await here.go("/settings#sessions", f"{plural(ended, 'other login')} ended.")


@pages.post("/settings/passphrase")
async def submit_passphrase(here: Here) -> Response:
    form = await here.form()
    current, chosen, repeated = (form.secret(name) for name in ("current", "passphrase", "repeated"))
    try:
        changed = await change_passphrase(here, current, chosen, repeated, revoke_tokens=form.checked("revoke_tokens"))
    except BadInput as error:
        return await _page(here, 422, form=form.refused(error))
    except TooManyAttempts as error:
        return await _page(here, 429, form=form.refused(BadInput("current", error.message)))
    said = f"The passphrase is changed, and {plural(changed.logins_ended, 'other login')} ended."
    if form.checked("revoke_tokens"):
        said += f" {plural(changed.tokens_revoked, 'token')} revoked."
    return await here.go("/settings#sessions", said)


@pages.post("/settings/backfill-switch")
async def submit_backfill_switch(here: Here) -> Response:
    on = (await here.form()).one_of("enabled", ("on", "off")) == "on"
    await here.call(SWITCH, {"enabled": on})
    return await here.go("/settings#backfill", f"The switch is {'on' if on else 'off'}.")


@pages.post("/settings/model-switch")
async def submit_model_switch(here: Here) -> Response:
    form = await here.form()
    on = form.one_of("enabled", ("on", "off")) == "on"
    await here.write(lambda tx: kill_switch.turn_model(tx, on, here.actor, here.now))
    back = "/" if form["back"] == "/" else "/settings#model"
    return await here.go(
        back,
        "The model is on." if on else "The model is off: it is asked nothing, and nothing it wanted is done unasked.",
    )


def _new_token(form: Form) -> NewToken:
    role = Role(form.one_of("role", list(Role)))
    days = form.number("expires_days") if form["expires_days"] else None
    chosen = form.all("permissions")
    asked = [Permission(each) for each in chosen if each in all_permissions(role)] if chosen else None
    return NewToken(role, form["name"], days, form.optional("identity"), asked)


async def _page(here: RequestContext, status: int = 200, **values: Any) -> Response:
    settings = here.app.settings
    shown = await here.read(lambda tx: setup(tx, settings, here.now))
    tariff = meter_for(settings.model).tariff
    return await here.page(
        "settings.html",
        SECTION,
        status,
        **{"made": None, "secret": "", "form": Form(), **values},
        setup=shown,
        settings=settings,
        price=None if tariff is None else tariff.describe(),
        has_key=settings.model.provider is not None and api_key(settings.model, here.app.vault) is not None,
        roles=list(Role),
        permissions=PERMISSIONS,
        shortest=SHORTEST,
        all_settings=list(all_settings(settings)),
    )


api = api_router("settings")


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


class PassphraseProof(BaseModel, extra="forbid"):
    passphrase: str = Field(max_length=LONGEST)


class ProofReply(BaseModel):
    until: datetime = Field(description="until then this login may make sensitive changes")


class RevokedTokens(BaseModel):
    tokens: int


class SwitchWanted(BaseModel, extra="forbid"):
    enabled: StrictBool


@api.get("")
@permits(Permission.READ)
async def show(here: Here) -> Setup:
    """Accounts, tokens, logins, and whether backfill and the model are switched on."""
    return await _setup(here)


@api.post("/tokens", status_code=201)
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def make_token(here: Here, wanted: TokenWanted) -> MadeToken:
    """Make a token. It is shown this once; only a hash of it is kept. A token makes none that may do more than it."""
    maker = here.visitor.caller.token_id
    if maker is None:
        await require_proof(here, SensitiveChange.MAKE_TOKEN)
    new = NewToken(wanted.role, wanted.name, wanted.expires_days, wanted.identity, wanted.permissions)
    token, text = await here.write(lambda tx: create_token(tx, new, here.now, here.actor, maker))
    return MadeToken(token=text, stored=token_row(token, here.now))


@api.post("/tokens/{token_id}/revoke")
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def revoke(here: Here, token_id: UUID) -> TokenRow:
    """From now on it opens nothing, nor does what it made. A token may revoke itself and what it made."""
    asker = here.visitor.caller.token_id
    token, _ = await here.write(lambda tx: revoke_with_made(tx, str(token_id), here.now, here.actor, asker))
    return token_row(token, here.now)


@api.post("/revoke-tokens")
@permits(Permission.TOKENS)
async def revoke_every_token(here: Here) -> RevokedTokens:
    """Revoke every token there is. For a login; a token revokes itself and what it made, one by one."""
    if here.visitor.session is None:
        raise NotAllowed("A token can revoke itself and the tokens that it made, and no other.")
    return RevokedTokens(tokens=await here.write(lambda tx: revoke_all(tx, here.now, here.actor)))


@api.post("/sessions/{session_id}/end")
@permits(Permission.SETTINGS)
async def end_session(here: Here, session_id: UUID) -> Setup:
    """End a login."""
    await here.write(lambda tx: end_one(tx, str(session_id), here.actor, here.now))
    return await _setup(here)


@api.post("/passphrase")
@permits(Permission.SETTINGS)
async def change(here: Here, wanted: PassphraseWanted) -> PassphraseChanged:
    """Change the passphrase. Needs the one that holds; wrong ones are counted as at the login."""
    new = wanted.passphrase
    return await change_passphrase(here, wanted.current, new, new, revoke_tokens=wanted.revoke_tokens)


@api.post("/proof")
@permits(Permission.SETTINGS)
async def prove(here: Here, wanted: PassphraseProof) -> ProofReply:
    """Give the passphrase again, before a sensitive change. Only for a login; wrong ones are counted as there."""
    await give_proof(here, wanted.passphrase)
    return ProofReply(until=here.now + timedelta(minutes=here.app.settings.dashboard.proof_minutes))


@api.post("/backfill-switch")
@permits(Permission.BACKFILL)
async def turn_switch(here: Here, wanted: SwitchWanted) -> Setup:
    """Turn the kill switch of all backfill."""
    await here.call(SWITCH, {"enabled": wanted.enabled})
    return await _setup(here)


@api.post("/model-switch")
@permits(Permission.SETTINGS)
async def turn_model(here: Here, wanted: SwitchWanted) -> Setup:
    """Stop the model in every process, or let it be asked again."""
    await here.write(lambda tx: kill_switch.turn_model(tx, wanted.enabled, here.actor, here.now))
    return await _setup(here)


async def _setup(here: RequestContext) -> Setup:
    return await here.read(lambda tx: setup(tx, here.app.settings, here.now))
