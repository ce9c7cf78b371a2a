"""One typed tree of settings, and what each is called in the file and in the environment.

`layers.py` reads it. `docs/settings.md` is made from this tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, SecretStr

from postroom.settings import groups
from postroom.settings.connector import ConnectorSettings
from postroom.settings.groups import DigestSettings

ENV_PREFIX = "POSTROOM_"
ENV_NESTING = "__"
CONNECTOR_PREFIX = "CONNECTOR_"
HOME_VARIABLE = "POSTROOM_HOME"
VAULT_KEY_VARIABLE = "POSTROOM_VAULT_KEY"
ACCESS_TOKEN_VARIABLE = "POSTROOM_ACCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MODEL_KEY_ENTRY = "model.api_key"  # the vault's name for it
DISCORD_TOKEN_ENTRY = "discord.bot_token"  # noqa: S105 - the same, for the bot's token
FILE_NAME = "postroom.toml"
DASHBOARD_FILE = "dashboard.toml"  # what was set in the dashboard
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
    ocr: groups.OcrSettings = Field(default_factory=groups.OcrSettings)
    sync: groups.SyncSettings = Field(default_factory=groups.SyncSettings)
    archiver: groups.ArchiverSettings = Field(default_factory=groups.ArchiverSettings)
    restore: groups.RestoreSettings = Field(default_factory=groups.RestoreSettings)
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
    connector: ConnectorSettings = Field(default_factory=ConnectorSettings)
    digest: DigestSettings = Field(default_factory=DigestSettings)
    telemetry: groups.TelemetrySettings = Field(default_factory=groups.TelemetrySettings)

    @property
    def database_url(self) -> str:
        if self.database.url is not None:
            return self.database.url.get_secret_value()
        return f"sqlite:///{self.home / DATABASE_NAME}"

    @property
    def now(self) -> Settings:
        """These, which never change; those of a running process do (`current.py`)."""
        return self

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


SettingPath = tuple[str, ...]
"""Where a setting is in the tree: its name, after that of its group if it has one."""


@dataclass(frozen=True)
class Setting:
    """One setting. Its key in the file is empty if only a variable sets it."""

    path: SettingPath
    variable: str
    default: str
    help: str
    is_optional: bool = False
    """It may be unset."""

    @property
    def key(self) -> str:
        return ".".join(self.path) if len(self.path) > 1 else ""


_TITLES = {
    "database": "Database",
    "queue": "Job queue",
    "worker": "Workers",
    "archive": "Archive",
    "ocr": "Words in pictures",
    "sync": "Sync",
    "archiver": "Removal at the source",
    "restore": "Restore to a mailbox",
    "recurring": "Recurring jobs",
    "switchboard": "Switchboard (MCP)",
    "dashboard": "Dashboard",
    "backfill": "Backfill",
    "retention": "Retention",
    "model": "Model",
    "learning": "Local learning",
    "gmail": "Labels in Gmail",
    "safety": "Approvals and safety",
    "discord": "Discord",
    "web": "Web sources",
    "connector": "Connectors",
    "digest": "Digest",
    "telemetry": "Logs and metrics",
}
"""Of the groups, as the settings page and docs/settings.md head them."""


def reference() -> Iterator[tuple[str, list[Setting]]]:
    """Every group's title with its settings, in the order of the tree."""
    by_name = dict(setting_groups())
    yield "Home folder", [_setting(Settings, name) for name in Settings.model_fields if name not in by_name]
    for name, group in by_name.items():
        yield _TITLES[name], [_setting(group, field, name) for field in group.model_fields]


def setting_groups() -> Iterator[tuple[str, type[groups.SettingsGroup]]]:
    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, groups.SettingsGroup):
            yield name, field.annotation


def _setting(model: type[BaseModel], name: str, *group: str) -> Setting:
    field, path = model.model_fields[name], (*group, name)
    extra = field.json_schema_extra
    fixed = extra.get("variable") if isinstance(extra, dict) else None
    default = "" if field.default is None else str(field.default)
    return Setting(
        path,
        str(fixed or f"{ENV_PREFIX}{ENV_NESTING.join(path)}".upper()),
        default,
        field.description or "",
        field.default is None,
    )
