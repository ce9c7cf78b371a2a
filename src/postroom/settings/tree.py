"""One typed tree of settings: defaults, then `postroom.toml` in the home folder, then the environment.

A key that does not exist is an error that names it; a value that does not fit says which key and why.
`docs/settings.md` is made from this tree.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from postroom.domain.errors import BadInput
from postroom.domain.validation import problem_text
from postroom.settings import groups
from postroom.settings.digest import DigestSettings

ENV_PREFIX = "POSTROOM_"
ENV_NESTING = "__"
CONNECTOR_PREFIX = "CONNECTOR_"
HOME_VARIABLE = "POSTROOM_HOME"
VAULT_KEY_VARIABLE = "POSTROOM_VAULT_KEY"
ACCESS_TOKEN_VARIABLE = "POSTROOM_ACCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MODEL_KEY_ENTRY = "model.api_key"  # the vault's name for it
FILE_NAME = "postroom.toml"
DATABASE_NAME = "postroom.db"  # in the home folder, unless another database is set


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    home: Path = Field(Path("~/.postroom"), description="the folder that holds everything of this installation")
    vault_key: SecretStr | None = Field(
        None, description="the key to the secrets at rest, 32 bytes in base64; unset: `vault.key` in the home folder"
    )
    access_token: SecretStr | None = Field(
        None, description="read by `postroom account add` in place of `--access-token`"
    )
    database: groups.DatabaseSettings = Field(default_factory=groups.DatabaseSettings)
    queue: groups.QueueSettings = Field(default_factory=groups.QueueSettings)
    worker: groups.WorkerSettings = Field(default_factory=groups.WorkerSettings)
    archive: groups.ArchiveSettings = Field(default_factory=groups.ArchiveSettings)
    sync: groups.SyncSettings = Field(default_factory=groups.SyncSettings)
    archiver: groups.ArchiverSettings = Field(default_factory=groups.ArchiverSettings)
    recurring: groups.RecurringSettings = Field(default_factory=groups.RecurringSettings)
    switchboard: groups.SwitchboardSettings = Field(default_factory=groups.SwitchboardSettings)
    dashboard: groups.DashboardSettings = Field(default_factory=groups.DashboardSettings)
    backfill: groups.BackfillSettings = Field(default_factory=groups.BackfillSettings)
    retention: groups.RetentionSettings = Field(default_factory=groups.RetentionSettings)
    model: groups.ModelSettings = Field(default_factory=groups.ModelSettings)
    learning: groups.LearningSettings = Field(default_factory=groups.LearningSettings)
    gmail: groups.GmailSettings = Field(default_factory=groups.GmailSettings)
    safety: groups.SafetySettings = Field(default_factory=groups.SafetySettings)
    discord: groups.DiscordSettings = Field(default_factory=groups.DiscordSettings)
    web: groups.WebSettings = Field(default_factory=groups.WebSettings)
    connector: groups.ConnectorSettings = Field(default_factory=groups.ConnectorSettings)
    digest: DigestSettings = Field(default_factory=DigestSettings)
    telemetry: groups.TelemetrySettings = Field(default_factory=groups.TelemetrySettings)

    @property
    def database_url(self) -> str:
        if self.database.url is not None:
            return self.database.url.get_secret_value()
        return f"sqlite:///{self.home / DATABASE_NAME}"

    def secrets(self) -> Iterator[str]:
        """Every secret value of the tree, so that logs can be kept clear of them."""
        own_groups = (value for _, value in self if isinstance(value, groups.SettingsGroup))
        for _, value in (pair for each in (*own_groups, self) for pair in each):
            if isinstance(value, SecretStr):
                yield value.get_secret_value()
        if password := _password_of(self.database_url):
            yield password


def _password_of(url: str) -> str | None:
    """The password within a database address, however odd the rest of it is."""
    match = re.match(r"[^:/?#]+://[^/?#]*?:([^/?#]*)@", url)
    return unquote(match[1]) if match else None


def load(*, is_connector: bool = False) -> Settings:
    """The settings of this process; makes the home folder (readable by its owner only) if it is missing.

    A variable `POSTROOM_...` that is no setting is refused; for a connector, `CONNECTOR_...` too. Elsewhere such a
    variable may belong to another program.
    """
    home = Path(os.environ.get(HOME_VARIABLE) or Settings.model_fields["home"].default).expanduser().absolute()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(HOME_VARIABLE, f"{home} cannot be created: {error.strerror}") from error
    given = _from_environment(os.environ, (ENV_PREFIX, CONNECTOR_PREFIX) if is_connector else (ENV_PREFIX,))
    content = _read_file(home / FILE_NAME)
    for name, reason in _NOT_IN_THE_FILE.items():
        if name in content:
            raise BadInput(name, f"set {ENV_PREFIX}{name.upper()} instead: {reason}")
    try:
        return Settings(**(_merged(content, given) | {"home": home}))
    except ValidationError as error:
        raise _first_problem(error, given) from None


_Path = tuple[str, ...]
"""Where a setting is in the tree: its name, after that of its group if it has one."""
_NOT_IN_THE_FILE = {
    "home": "the file is found through the home folder",
    "vault_key": "a key does not lie beside what it locks",
    "access_token": "it is for one command",
}


@dataclass(frozen=True)
class Setting:
    """One setting. Its key in the file is empty if only a variable sets it."""

    path: _Path
    variable: str
    default: str
    help: str

    @property
    def key(self) -> str:
        return ".".join(self.path) if len(self.path) > 1 else ""


def reference() -> Iterator[tuple[str, list[Setting]]]:
    """Every group's title with its settings, in the order of the tree."""
    by_name = dict(_groups())
    yield "The home folder", [_setting(Settings, name) for name in Settings.model_fields if name not in by_name]
    for name, group in by_name.items():
        yield (group.__doc__ or name).rstrip("."), [_setting(group, field, name) for field in group.model_fields]


def _groups() -> Iterator[tuple[str, type[groups.SettingsGroup]]]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, groups.SettingsGroup):
            yield name, field.annotation


def _setting(model: type[BaseModel], name: str, *group: str) -> Setting:
    field, path = model.model_fields[name], (*group, name)
    extra = field.json_schema_extra
    fixed = extra.get("variable") if isinstance(extra, dict) else None
    default = "" if field.default is None else str(field.default)
    return Setting(
        path, str(fixed or f"{ENV_PREFIX}{ENV_NESTING.join(path)}".upper()), default, field.description or ""
    )


@dataclass(frozen=True)
class _Given:
    variable: str
    text: str


def _from_environment(environment: Mapping[str, str], our_prefixes: tuple[str, ...]) -> dict[_Path, _Given]:
    """What variables set. One with a prefix of ours that sets nothing is an error. A variable whose name does not
    follow our own rule, because a specification fixes it, sets nothing while it is empty.
    """
    known = {setting.variable: setting for _, group in reference() for setting in group}
    given = {}
    for name in sorted(environment):
        text, setting = environment[name], known.get(name.upper())
        if setting is not None and (text or setting.variable.startswith(ENV_PREFIX)):
            given[setting.path] = _Given(name, text)
        elif setting is None and name.upper().startswith(our_prefixes):
            raise BadInput(name, "no such setting; docs/settings.md lists them all")
    return given


def _merged(content: Mapping[str, Any], given: Mapping[_Path, _Given]) -> dict[str, Any]:
    """The file's content with what variables set. Every group is there, so that one validator reads them all."""
    merged: dict[str, Any] = {name: {} for name, _ in _groups()}
    merged |= {name: dict(value) if isinstance(value, dict) else value for name, value in content.items()}
    for (*group, name), value in given.items():
        place = merged[group[0]] if group else merged
        if isinstance(place, dict):  # else the file is wrong, and validation says so
            place[name] = value.text
    return merged


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(str(path), f"is not valid TOML: {error}") from None
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror}") from error


def _first_problem(error: ValidationError, given: Mapping[_Path, _Given]) -> BadInput:
    problem = error.errors(include_input=False, include_url=False)[0]
    parts = tuple(str(part) for part in problem["loc"])
    key = ".".join(parts)
    if problem["type"] == "extra_forbidden":
        return BadInput(key, "no such setting; docs/settings.md lists them all")
    found = given.get(parts[:2])
    text = problem_text(problem)
    return BadInput(key, text) if found is None else BadInput(found.variable, f"{text} ({key})")
