"""The page that sets settings, and its API. Every change asks for the passphrase and says whether it needs a restart.

A key is never sent back to the browser: where the passphrase is missing, both are asked for again.
"""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from postroom.contract.settings import (
    CHANGE_SETTINGS,
    CHECK_MODEL,
    LIST_SETTINGS,
    STORE_SECRET,
    ChangedSettingsReply,
    ChangeSettingsArguments,
    ModelCheckReply,
    SecretReply,
    SettingsReply,
    StoreSecretArguments,
)
from postroom.dashboard.configuration.fields import FORMS, beside_field, entered, filled, rows_of
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.security.proof import PROOF_FIELD, PassphraseNeeded, call_with_proof
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.domain.validation import problem_text
from postroom.settings import DISCORD_TOKEN_ENTRY, MODEL_KEY_ENTRY

pages = pages_router()
api = api_router("settings")

PAGE = "/settings/edit"
SECRETS = {"model_key": MODEL_KEY_ENTRY, "bot_token": DISCORD_TOKEN_ENTRY}
"""By the name of the form's field."""


@pages.get(PAGE)
async def edit_page(here: Here) -> Response:
    return await _page(here)


@pages.post(PAGE)
async def submit(here: Here) -> Response:
    form = await here.form()
    intent = form.one_of("intent", (*FORMS, "secrets", "test"))
    try:
        if intent == "test":
            return await _test(here)
        return await (_store(here, form) if intent == "secrets" else _change(here, form, intent))
    except BadInput as error:
        return await _refused(here, form, error)


async def _change(here: RequestContext, form: Form, name: str) -> Response:
    wanted = {"version": form["version"], "values": entered(form, name)}
    changed = (await call_with_proof(here, CHANGE_SETTINGS, wanted, form)).changed
    if not changed:
        return await here.go(f"{PAGE}#{name}", "Nothing was changed: it was set like this already.")
    names = ", ".join(f"`{key}`" for key in changed)
    return await here.go(f"{PAGE}#{name}", f"Saved {names}. Restart Postroom to use what is new.")


async def _store(here: RequestContext, form: Form) -> Response:
    wanted = {field: each for field in SECRETS if (each := _secret_of(form, field)) is not None}
    if not wanted:
        raise BadInput("model_key", "is empty; enter a key or a token")
    for field, arguments in wanted.items():
        await _store_one(here, form, field, arguments)
    return await here.go(f"{PAGE}#secrets", "Saved in the vault. Restart Postroom to use what is new.")


def _secret_of(form: Form, field: str) -> StoreSecretArguments | None:
    """What to do with one of the secrets; None: nothing. Both are checked before one is stored."""
    text = form.secret(field).strip()
    if not text and not form.checked(f"remove_{field}"):
        return None
    try:
        return StoreSecretArguments.model_validate({"name": SECRETS[field], "secret": text or None})
    except ValidationError as error:
        raise BadInput(field, problem_text(error.errors(include_input=False)[0])) from None


async def _store_one(here: RequestContext, form: Form, field: str, arguments: StoreSecretArguments) -> None:
    """The form is not sent on to the page that confirms: a key must not travel back."""
    try:
        await call_with_proof(here, STORE_SECRET, arguments, form)
    except PassphraseNeeded as needed:
        raise BadInput(PROOF_FIELD, needed.problem or "is needed; enter the key again too") from None
    except BadInput as error:
        raise BadInput(field, error.problem) from None


async def _test(here: RequestContext) -> Response:
    found = await check_model(here)
    said = " ".join(f"{each.message} {each.remedy}".strip() for each in found.findings)
    return await here.go(f"{PAGE}#model", said, "done" if found.works else "bad")


async def _refused(here: RequestContext, form: Form, error: BadInput) -> Response:
    """What was entered stays, but for a form that is older than the settings, and for keys."""
    if error.field == "version":
        return await _page(here, 422, refused=error)
    kept = {name: value for name, value in form.values.items() if name not in (*SECRETS, PROOF_FIELD)}
    return await _page(here, 422, sent=kept, refused=error)


async def _page(
    here: RequestContext, status: int = 200, sent: dict[str, Any] | None = None, refused: BadInput | None = None
) -> Response:
    try:
        found = await show_values(here)
    except BadInput as error:  # someone made a mistake in a file since this process started
        problem = f"{error.field}: {error.problem}"
        return await here.page("configuration/edit.html", "settings", status, found=None, problem=problem)
    rows = rows_of(found.settings)
    form = Form({**filled(rows).values, **(sent or {})})
    if refused is not None:
        form = form.refused(beside_field(refused))
    shown = {"found": found, "rows": rows, "form": form, "restart": _new(found), "secrets": _by_field(found)}
    return await here.page("configuration/edit.html", "settings", status, is_proved=here.caller.is_proved, **shown)


async def waiting_for_restart(here: RequestContext) -> list[str]:
    """The keys of what was changed since this process started; none where the files cannot be read."""
    try:
        return _new(await show_values(here))
    except BadInput:
        return []


def _new(found: SettingsReply) -> list[str]:
    settings = [each.key for each in found.settings if each.needs_restart]
    return [*settings, *(each.name for each in found.secrets if each.needs_restart)]


def _by_field(found: SettingsReply) -> dict[str, SecretReply]:
    by_name = {each.name: each for each in found.secrets}
    return {field: by_name[name] for field, name in SECRETS.items()}


@api.get("/values")
@permits(Permission.READ)
async def show_values(here: Here) -> SettingsReply:
    """The settings that can be changed here, with where each value comes from."""
    return await here.call(LIST_SETTINGS, {})


@api.post("/values")
@permits(Permission.SETTINGS)
async def change_values(here: Here, wanted: ChangeSettingsArguments) -> ChangedSettingsReply:
    """Change settings. Needs a login that gave the passphrase; they hold from the next start of Postroom."""
    return await here.call(CHANGE_SETTINGS, wanted)


@api.post("/secrets")
@permits(Permission.SETTINGS)
async def store_secret(here: Here, wanted: StoreSecretArguments) -> SecretReply:
    """Store a key in the vault, or remove it. Needs a login that gave the passphrase."""
    return await here.call(STORE_SECRET, wanted)


@api.post("/model-check")
@permits(Permission.SETTINGS)
async def check_model(here: Here) -> ModelCheckReply:
    """Try the model as it is set: key, price, then one tiny call, which costs money."""
    return await here.call(CHECK_MODEL, {})
