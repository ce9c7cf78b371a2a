"""The fields of the settings forms: how a setting is labelled, entered and shown, and where it comes from. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from postroom.contract.settings import SettingReply
from postroom.dashboard.forms import Form
from postroom.domain.errors import BadInput
from postroom.domain.money import parse_dollars, to_cents


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
        return {"openai": "OpenAI", "anthropic": "Anthropic"}.get(self.value, "Another server with OpenAI's API")


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
        EditField("backfill.day_zone", "Time zone of the day", hint="Daily caps begin anew at its midnight."),
        EditField("backfill.auto_resume", "Resume by itself after a cap", _YES_NO, "", YesNo),
    ),
    "notifications": (
        EditField("discord.channel_id", "Discord channel", hint="Its id, in which the bot asks for approvals."),
        EditField("discord.public_key", "Public key of the Discord application"),
        EditField("discord.allowed_users", "Who may answer", hint="Ids of Discord users, separated by commas."),
        EditField("sync.self_email", "Put alerts into the mailbox", _YES_NO, "At most one an hour each.", YesNo),
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


def rows_of(settings: Iterable[SettingReply]) -> dict[str, list[FieldRow]]:
    """By form."""
    by_key = {each.key: each for each in settings}
    return {name: [_row(field, by_key[field.key]) for field in fields] for name, fields in FORMS.items()}


def _row(field: EditField, setting: SettingReply) -> FieldRow:
    return FieldRow(
        field, field.shown(setting.value), origin_in_words(setting), setting.variable is not None, setting.needs_restart
    )


def origin_in_words(setting: SettingReply) -> str:
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
