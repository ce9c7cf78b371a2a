"""The page that sets settings, and its API: how a setting is labelled, entered and shown, and where it comes from.
Every change asks for the passphrase and says whether it needs a restart.

A key is never sent back to the browser: where the passphrase is missing, both are asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ValidationError
from starlette.responses import Response

from postroom.contract import settings as contract
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.security.login import PROOF_FIELD, PassphraseNeeded, call_with_proof
from postroom.domain.errors import BadInput
from postroom.domain.money import parse_dollars, to_cents
from postroom.domain.roles import Permission
from postroom.domain.validation import problem_text
from postroom.settings import DISCORD_TOKEN_ENTRY, MODEL_KEY_ENTRY, NEED_RESTART, NOTICED_WITHIN_S


class FieldKind(StrEnum):
    TEXT = "text"
    NUMBER = "number"
    DOLLARS = "dollars"
    YES_NO = "yes_no"
    CHOICE = "choice"


class YesNo(StrEnum):
    YES = "true"
    NO = "false"

    @property
    def label(self) -> str:
        return "Yes" if self is YesNo.YES else "No"


class ModelProvider(StrEnum):
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    COMPATIBLE = "compatible"

    @property
    def label(self) -> str:
        return {"openai": "OpenAI", "anthropic": "Anthropic"}.get(self.value, "Another server that speaks OpenAI's API")


class DigestCadence(StrEnum):
    OFF = "off"
    DAILY = "daily"
    WEEKLY = "weekly"

    @property
    def label(self) -> str:
        return {"off": "Never", "daily": "Every day"}.get(self.value, "Every Monday")


@dataclass(frozen=True, slots=True)
class EditField:
    key: str
    label: str
    kind: FieldKind = FieldKind.TEXT
    hint: str = ""
    choices: type[StrEnum] | None = None
    none: str | None = None
    """The text of the empty choice."""

    @property
    def name(self) -> str:
        return self.key.replace(".", "_")

    @property
    def options(self) -> list[StrEnum]:
        return [] if self.choices is None else list(self.choices)

    def shown(self, value: str) -> str:
        if self.kind is not FieldKind.DOLLARS or not value:
            return value
        dollars, cents = divmod(int(value), 100)
        return f"{dollars}.{cents:02d}"

    def entered(self, text: str) -> str:
        """As the settings have it."""
        if self.kind is not FieldKind.DOLLARS or not text:
            return text
        return str(to_cents(parse_dollars(text, self.key)))


_NUMBER, _DOLLARS, _YES_NO = FieldKind.NUMBER, FieldKind.DOLLARS, FieldKind.YES_NO

FORMS: Mapping[str, tuple[EditField, ...]] = {
    "model": (
        EditField("model.provider", "Provider", FieldKind.CHOICE, "", ModelProvider, "No model: only rules decide"),
        EditField("model.name", "Model", hint="As its provider calls it, for example gpt-5-mini."),
        EditField("model.base_url", "Address", hint="Needed for another server; empty: the provider's own."),
        EditField("model.input_price", "Price of a million tokens in", hint="In dollars. Empty: the published price."),
        EditField("model.output_price", "Price of a million tokens out", hint="Set both prices or neither."),
        EditField("model.max_output_tokens", "Longest answer, in tokens", _NUMBER),
        EditField("model.timeout_s", "Wait for an answer, in seconds"),
    ),
    "limits": (
        EditField(
            "backfill.enabled",
            "Backfill may run",
            _YES_NO,
            "The switch on the Backfill page stops and starts jobs at once; this says whether they may run at all. "
            "`BACKFILL_ENABLED` in the environment always wins.",
            YesNo,
        ),
        EditField("backfill.daily_cost_cap_cents", "Dollars a day", _DOLLARS, "For jobs without a cap of their own."),
        EditField("backfill.rate_limit_per_hour", "Messages an hour", _NUMBER),
        EditField("backfill.background_daily_cost_cap_cents", "Dollars a day in the background", _DOLLARS),
        EditField("backfill.background_rate_limit_per_hour", "Messages an hour in the background", _NUMBER),
        EditField(
            "backfill.share_of_ceiling_percent",
            "Share of the daily ceiling, in percent",
            _NUMBER,
            "The most that all backfill jobs together may use of it.",
        ),
        EditField(
            "backfill.day_zone", "Time zone of the day", hint="Daily caps begin anew at its midnight. Needs a restart."
        ),
        EditField("backfill.auto_resume", "Resume automatically after a cap", _YES_NO, "", YesNo),
    ),
    "notifications": (
        EditField("discord.channel_id", "Discord channel", hint="Its id, in which the bot asks for approvals."),
        EditField("discord.public_key", "Public key of the Discord application"),
        EditField("discord.allowed_users", "Who may answer", hint="Ids of Discord users, separated by commas."),
        EditField("sync.self_email", "Put alerts into the mailbox", _YES_NO, "At most one an hour each.", YesNo),
    ),
    "digest": (
        EditField(
            "digest.every",
            "Send it by e-mail",
            FieldKind.CHOICE,
            "To yourself, about the day or the week before.",
            DigestCadence,
        ),
        EditField("digest.at", "Time of day", hint="Such as 07:00."),
        EditField("digest.zone", "Time zone", hint="Such as Europe/Zagreb. Empty: the one that backfill uses."),
    ),
}
_BY_KEY = {field.key: field for fields in FORMS.values() for field in fields}


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A field with its value."""

    field: EditField
    value: str
    origin: str
    is_fixed: bool
    needs_restart: bool


def rows_of(settings: Iterable[contract.SettingReply]) -> dict[str, list[FieldRow]]:
    """By form."""
    by_key = {each.key: each for each in settings}
    return {name: [_row(field, by_key[field.key]) for field in fields] for name, fields in FORMS.items()}


def _row(field: EditField, setting: contract.SettingReply) -> FieldRow:
    return FieldRow(
        field, field.shown(setting.value), origin_in_words(setting), setting.variable is not None, setting.needs_restart
    )


def origin_in_words(setting: contract.SettingReply) -> str:
    if setting.variable is not None:
        return f"Fixed by `{setting.variable}` in the environment; change it there."
    return {"dashboard": "Set here.", "file": "From `postroom.toml`.", "default": "Default."}[setting.source]


def filled(rows: Mapping[str, list[FieldRow]]) -> Form:
    """All forms with what holds now."""
    return Form({row.field.name: (row.value,) for each in rows.values() for row in each})


def entered(form: Form, name: str) -> dict[str, str]:
    """The settings that a form sent, by key. Fixed ones are not sent."""
    return {field.key: field.entered(form[field.name]) for field in FORMS[name] if field.name in form.values}


def beside_field(error: BadInput) -> BadInput:
    """The error, named by the field that it belongs to: what concerns a whole group names the setting first."""
    if error.field in _BY_KEY:
        return BadInput(_BY_KEY[error.field].name, error.problem)
    if named := [key for key in _BY_KEY if key in error.problem]:
        return BadInput(_BY_KEY[min(named, key=error.problem.index)].name, error.problem)
    return BadInput("settings" if error.field == "version" else error.field, error.problem)


pages = pages_router()
api = api_router("settings")

PAGE = "/settings/edit"
SECRETS = {"model_key": MODEL_KEY_ENTRY, "bot_token": DISCORD_TOKEN_ENTRY}
"""By the name of the form's field."""
_HOLDS = f"In use from the next job on, in every process within {NOTICED_WITHIN_S} seconds."


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
    found = await call_with_proof(here, contract.CHANGE_SETTINGS, wanted, form)
    if not found.changed:
        return await here.go(f"{PAGE}#{name}", "Nothing was changed: it was set like this already.")
    return await here.go(f"{PAGE}#{name}", saved(found))


async def _store(here: RequestContext, form: Form) -> Response:
    wanted = {field: each for field in SECRETS if (each := _secret_of(form, field)) is not None}
    if not wanted:
        raise BadInput("model_key", "is empty; enter a key or a token")
    for field, arguments in wanted.items():
        await _store_one(here, form, field, arguments)
    return await here.go(f"{PAGE}#secrets", f"Saved in the vault. {_HOLDS}")


def _secret_of(form: Form, field: str) -> contract.StoreSecretArguments | None:
    """What to do with one of the secrets; None: nothing. Both are checked before one is stored."""
    text = form.secret(field).strip()
    if not text and not form.checked(f"remove_{field}"):
        return None
    try:
        return contract.StoreSecretArguments.model_validate({"name": SECRETS[field], "secret": text or None})
    except ValidationError as error:
        raise BadInput(field, problem_text(error.errors(include_input=False)[0])) from None


async def _store_one(here: RequestContext, form: Form, field: str, arguments: contract.StoreSecretArguments) -> None:
    """The form is not sent on to the page that confirms: a key must not travel back."""
    try:
        await call_with_proof(here, contract.STORE_SECRET, arguments, form)
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
    always = {"need_restart": NEED_RESTART, "within": NOTICED_WITHIN_S, "problem": here.app.current.problem}
    shown = {**always, "found": found, "rows": rows, "form": form, "restart": _new(found), "secrets": _by_field(found)}
    return await here.page("configuration/edit.html", "settings", status, is_proved=here.caller.is_proved, **shown)


def saved(found: contract.ChangedSettingsReply) -> str:
    """What was saved, and when it holds."""
    late = [key for key in found.changed if key in found.need_restart]
    said = [f"Saved {_named(found.changed)}."]
    if len(late) < len(found.changed):
        said.append(_HOLDS)
    if late:
        said.append(f"Restart Postroom to use {_named(late)}.")
    return " ".join(said)


def _named(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys)


async def waiting_for_restart(here: RequestContext) -> list[str]:
    """The keys of what this process does not use before it is restarted; none where the files cannot be read."""
    try:
        return _new(await show_values(here))
    except BadInput:
        return []


def _new(found: contract.SettingsReply) -> list[str]:
    return [each.key for each in found.settings if each.needs_restart]


def _by_field(found: contract.SettingsReply) -> dict[str, contract.SecretReply]:
    by_name = {each.name: each for each in found.secrets}
    return {field: by_name[name] for field, name in SECRETS.items()}


@api.get("/values")
@permits(Permission.READ)
async def show_values(here: Here) -> contract.SettingsReply:
    """The settings that can be changed here, with where each value comes from."""
    return await here.call(contract.LIST_SETTINGS, {})


@api.post("/values")
@permits(Permission.SETTINGS)
async def change_values(here: Here, wanted: contract.ChangeSettingsArguments) -> contract.ChangedSettingsReply:
    """Change settings. Needs a login that gave the passphrase; the reply names those that hold only after a restart."""
    return await here.call(contract.CHANGE_SETTINGS, wanted)


@api.post("/secrets")
@permits(Permission.SETTINGS)
async def store_secret(here: Here, wanted: contract.StoreSecretArguments) -> contract.SecretReply:
    """Store a key in the vault, or remove it. Needs a login that gave the passphrase."""
    return await here.call(contract.STORE_SECRET, wanted)


@api.post("/model-check")
@permits(Permission.SETTINGS)
async def check_model(here: Here) -> contract.ModelCheckReply:
    """Try the model as it is set: key, price, then one tiny call, which costs money."""
    return await here.call(contract.CHECK_MODEL, {})
