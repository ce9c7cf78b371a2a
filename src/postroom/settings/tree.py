"""One typed tree of settings: defaults, then `postroom.toml` in the home folder, then the environment.

A key that does not exist is an error that names it; a value that does not fit says which key and why.
`docs/settings.md` is made from this tree.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from postroom.domain.errors import BadInput
from postroom.settings.groups import (
    ArchiverSettings,
    ArchiveSettings,
    BackfillSettings,
    DashboardSettings,
    DatabaseSettings,
    DiscordSettings,
    GmailSettings,
    ModelSettings,
    QueueSettings,
    RecurringSettings,
    RetentionSettings,
    SafetySettings,
    SettingsGroup,
    SwitchboardSettings,
    SyncSettings,
    TelemetrySettings,
    WebSettings,
    WorkerSettings,
)

ENV_PREFIX = "POSTROOM_"
ENV_NESTING = "__"
HOME_VARIABLE = "POSTROOM_HOME"
VAULT_KEY_VARIABLE = "POSTROOM_VAULT_KEY"
ACCESS_TOKEN_VARIABLE = "POSTROOM_ACCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MODEL_KEY_ENTRY = "model.api_key"  # the vault's name for it
FILE_NAME = "postroom.toml"


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=ENV_NESTING, extra="forbid", frozen=True
    )

    home: Path = Field(Path("~/.postroom"), description="the folder that holds everything of this installation")
    vault_key: SecretStr | None = Field(
        None, description="the key to the secrets at rest, 32 bytes in base64; unset: `vault.key` in the home folder"
    )
    database: DatabaseSettings = DatabaseSettings()
    queue: QueueSettings = QueueSettings()
    worker: WorkerSettings = WorkerSettings()
    archive: ArchiveSettings = ArchiveSettings()
    sync: SyncSettings = SyncSettings()
    archiver: ArchiverSettings = ArchiverSettings()
    recurring: RecurringSettings = RecurringSettings()
    switchboard: SwitchboardSettings = SwitchboardSettings()
    dashboard: DashboardSettings = DashboardSettings()
    backfill: BackfillSettings = BackfillSettings()
    retention: RetentionSettings = RetentionSettings()
    model: ModelSettings = ModelSettings()
    gmail: GmailSettings = GmailSettings()
    safety: SafetySettings = SafetySettings()
    discord: DiscordSettings = DiscordSettings()
    web: WebSettings = WebSettings()
    telemetry: TelemetrySettings = TelemetrySettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """`load` hands the file's content in as init values; the environment wins over it."""
        return env_settings, _NamedVariables(settings_cls), init_settings

    @property
    def database_url(self) -> str:
        if self.database.url is not None:
            return self.database.url.get_secret_value()
        return f"sqlite:///{self.home / 'postroom.db'}"

    def secrets(self) -> Iterator[str]:
        """Every secret value of the tree, so that logs can be kept clear of them."""
        for group in (value for _, value in self if isinstance(value, SettingsGroup)):
            for _, value in group:
                if isinstance(value, SecretStr):
                    yield value.get_secret_value()
        if self.vault_key is not None:
            yield self.vault_key.get_secret_value()
        if password := _password_of(self.database_url):
            yield password


class _NamedVariables(PydanticBaseSettingsSource):
    """The settings whose variable is fixed by a specification, and so does not follow our own rule for names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup)):
            return None, field_name, False
        found = {
            name: value
            for name, inner in field.annotation.model_fields.items()
            if (variable := _fixed_variable(inner)) and (value := os.environ.get(variable))
        }
        return found or None, field_name, True

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(field, name)[0] for name, field in self.settings_cls.model_fields.items()}
        return {name: value for name, value in values.items() if value is not None}


def _fixed_variable(field: FieldInfo) -> str | None:
    extra = field.json_schema_extra
    return str(extra["variable"]) if isinstance(extra, dict) and "variable" in extra else None


def _password_of(url: str) -> str | None:
    """The password within a database address, however odd the rest of it is."""
    match = re.match(r"[^:/?#]+://[^/?#]*?:([^/?#]*)@", url)
    return unquote(match[1]) if match else None


def load() -> Settings:
    """The settings of this process; makes the home folder (readable by its owner only) if it is missing."""
    home = Path(os.environ.get(HOME_VARIABLE) or Settings.model_fields["home"].default).expanduser().absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(HOME_VARIABLE, f"{home} cannot be created: {error.strerror}") from error
    _refuse_unknown_variables()
    content = _read_file(home / FILE_NAME)
    if "home" in content:
        raise BadInput("home", f"set {HOME_VARIABLE} instead: the file is found through the home folder")
    if "vault_key" in content:
        raise BadInput("vault_key", f"set {VAULT_KEY_VARIABLE} instead: a key does not lie beside what it locks")
    try:
        return Settings(**(content | {"home": home}))
    except ValidationError as error:
        raise _first_problem(error) from None


@dataclass(frozen=True)
class Setting:
    """One line of the reference page."""

    key: str
    variable: str
    default: str
    help: str


def reference() -> Iterator[tuple[str, list[Setting]]]:
    """Every group's title with its settings, in the order of the tree."""
    yield (
        "The home folder",
        [
            Setting("", HOME_VARIABLE, "~/.postroom", _help(Settings, "home")),
            Setting("", VAULT_KEY_VARIABLE, "", _help(Settings, "vault_key")),
            Setting("", ACCESS_TOKEN_VARIABLE, "", "read by `postroom account add` in place of `--access-token`"),
        ],
    )
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup):
            yield (field.annotation.__doc__ or name).rstrip("."), list(_settings_of(name, field.annotation))


def _settings_of(group: str, model: type[SettingsGroup]) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        default = "" if field.default is None else str(field.default)
        variable = _fixed_variable(field) or f"{ENV_PREFIX}{group}{ENV_NESTING}{name}".upper()
        yield Setting(f"{group}.{name}", variable, default, _help(model, name))


def _help(model: type[BaseModel], name: str) -> str:
    return model.model_fields[name].description or ""


def _refuse_unknown_variables() -> None:
    known = {setting.variable for _, settings in reference() for setting in settings}
    for name in sorted(os.environ):
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            raise BadInput(name, "no such setting; docs/settings.md lists them all")


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"is not valid TOML: {error}") from None
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from error


def _first_problem(error: ValidationError) -> BadInput:
    problem = error.errors(include_input=False, include_url=False)[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return BadInput(key, "no such setting; docs/settings.md lists them all")
    return BadInput(key, problem["msg"])
