"""Settings: accounts, who may come in, the kill switch, the model, caps."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from postroom import kill_switch
from postroom.dashboard.changing.passphrase import change_passphrase, require_proof
from postroom.dashboard.changing.settings import end_one, end_others
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.settings import all_settings, setup
from postroom.dashboard.security.passphrase import SHORTEST
from postroom.dashboard.security.proof import Sensitive
from postroom.dashboard.security.throttle import TooManyAttempts
from postroom.dashboard.visit import Here, Visit
from postroom.dashboard.wording import plural
from postroom.domain.errors import BadInput
from postroom.domain.roles import PERMISSIONS, Permission, Role, all_permissions
from postroom.switchboard.tokens import NewToken, checked, create_token, revoke_all, revoke_with_made
from postroom.triage.model import api_key, meter_for

router = pages_router()

SECTION = "settings"


@router.get("/settings")
async def show(here: Here) -> Response:
    return await _page(here)


@router.post("/settings/tokens")
async def make_token(here: Here) -> Response:
    """Answered with the page itself and not with a redirect: the token is shown this once, and stored nowhere."""
    form = await here.form()
    try:
        new = _new_token(form)
        checked(new, here.now)
        await require_proof(here, Sensitive.MAKE_TOKEN, form)
        token, text = await here.write(lambda tx: create_token(tx, new, here.now, here.actor))
    except BadInput as error:
        field = error.field.replace("-", "_")
        return await _page(here, 422, form=form.refused(BadInput(field, error.problem)))
    return await _page(here, made=token, secret=text)


@router.post("/settings/tokens/{token_id}/revoke")
async def revoke(here: Here, token_id: str) -> Response:
    token, fell = await here.write(lambda tx: revoke_with_made(tx, token_id, here.now, here.actor))
    also = f", nor do {plural(fell, 'token')} that it made" if fell else ""
    return await here.go("/settings#tokens", f"The token {token.name} opens nothing any more{also}.")


@router.post("/settings/revoke-tokens")
async def revoke_every_token(here: Here) -> Response:
    fell = await here.write(lambda tx: revoke_all(tx, here.now, here.actor))
    return await here.go("/settings#tokens", f"{plural(fell, 'token')} revoked.")


@router.post("/settings/sessions/{session_id}/end")
async def end(here: Here, session_id: str) -> Response:
    await here.write(lambda tx: end_one(tx, session_id, here.actor, here.now))
    return await here.go("/settings#sessions", "That login is ended.")


@router.post("/settings/sessions/end-others")
async def end_all_others(here: Here) -> Response:
    own = here.visitor.session
    ended = await here.write(lambda tx: end_others(tx, own.id if own else None, here.actor, here.now))
    return await here.go("/settings#sessions", f"{plural(ended, 'other login')} ended.")


@router.post("/settings/passphrase")
async def change(here: Here) -> Response:
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


@router.post("/settings/backfill-switch")
async def turn_switch(here: Here) -> Response:
    on = (await here.form()).one_of("enabled", ("on", "off")) == "on"
    await here.call("backfill.switch", {"enabled": on})
    return await here.go("/settings#backfill", f"The switch is {'on' if on else 'off'}.")


@router.post("/settings/model-switch")
async def turn_model(here: Here) -> Response:
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


async def _page(here: Visit, status: int = 200, **values: Any) -> Response:
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
