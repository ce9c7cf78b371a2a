"""One typed tree of settings: defaults, then `postroom.toml` in the home folder, then the environment.

A key that does not exist is an error that names it; a value that does not fit says which key and why.
`docs/settings.md` is made from this module.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from postroom.domain.errors import BadInput

OFF = "off"
ENV_PREFIX = "POSTROOM_"
ENV_NESTING = "__"
HOME_VARIABLE = "POSTROOM_HOME"
VAULT_KEY_VARIABLE = "POSTROOM_VAULT_KEY"
ACCESS_TOKEN_VARIABLE = "POSTROOM_ACCESS_TOKEN"  # noqa: S105 - the name of a variable, not a secret
MODEL_KEY_ENTRY = "model.api_key"  # the vault's name for it
FILE_NAME = "postroom.toml"


class Group(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class DatabaseSettings(Group):
    """The control database."""

    url: SecretStr | None = Field(
        None, description="`postgresql://user:password@host/name`; unset: SQLite in the home folder"
    )
    synchronous: Literal["normal", "full"] = Field(
        "full",
        description="SQLite: `full` survives power loss to the last commit, `normal` to the last checkpoint",
    )
    busy_timeout_s: float = Field(30.0, gt=0, description="SQLite: how long to wait for another process's write")
    pool_size: int = Field(10, ge=1, le=100, description="PostgreSQL: connections that one process may open")


class QueueSettings(Group):
    """The job queue."""

    max_consecutive_same_tier: int = Field(
        10,
        ge=1,
        le=10_000,
        description="starvation guard: services of a tier before a waiting lower tier gets a turn",
    )
    keep_completed_days: int = Field(14, ge=0, description="completed and cancelled jobs older than this are pruned")
    keep_failed_days: int = Field(90, ge=0, description="failed jobs older than this are pruned")


class WorkerSettings(Group):
    """A process that runs jobs."""

    concurrency: int = Field(16, ge=1, le=1_000, description="jobs in flight at once")
    lease_s: float = Field(60.0, gt=0, description="a job whose worker is silent for this long is handed to another")
    drain_s: float = Field(30.0, ge=0, description="how long a stopping worker lets its jobs finish")
    poll_s: float = Field(5.0, gt=0, description="the safety net beneath wake-ups: look for work at least this often")


class ArchiveSettings(Group):
    """The archive of raw mail."""

    shard_bytes: int = Field(
        2_000_000_000, ge=1_000_000, description="a year's shard larger than this is continued in another file"
    )


class SyncSettings(Group):
    """Bringing a whole account into the archive."""

    granularity: Literal["auto", "day", "week", "month"] = Field(
        "auto", description="length of a slice; `auto`: day above 200,000 messages, month below 20,000, else week"
    )
    page_size: int = Field(500, ge=1, le=500, description="ids asked for in one listing call")
    max_pages_per_slice: int = Field(20, ge=1, description="a slice with more pages than this is split in two")
    job_size: int = Field(300, ge=200, le=500, description="ids in one job of the in-process queue")
    settle_s: float = Field(
        900.0, ge=0, description="the newest slice ends so long ago: younger mail may still be filed"
    )
    workers_start: int = Field(8, ge=1, le=32, description="workers at the start of a run")
    workers_max: int = Field(32, ge=1, le=32, description="the most workers that a healthy service earns")
    rps_start: float = Field(4.0, gt=0, description="HTTP requests a second at the start (a batch is one)")
    rps_max: float = Field(
        16.0, gt=0, description="the most requests a second; where the quota is known, its units decide instead"
    )
    retry_budget: int = Field(5, ge=1, le=100, description="attempts of a failing job before it is split in two")
    stall_timeout_s: float = Field(600.0, gt=0, description="a job silent for so long is cancelled and queued again")
    patience_s: float = Field(3_600.0, ge=0, description="how long Gmail may be out of reach before a run gives up")
    poll_s: float = Field(60.0, gt=0, description="how often a running sync asks what changed")
    extend_s: float = Field(3_600.0, ge=0, description="how often a running sync lists the newest mail and moves on")
    bad_retry_hours: float = Field(24.0, gt=0, description="how often messages that could not be had are tried again")
    bad_rate_warn: float = Field(0.002, ge=0, le=1, description="share of bad messages that is worth a warning")
    bad_rate_critical: float = Field(0.01, ge=0, le=1, description="share of bad messages that is critical")
    bad_window: int = Field(10_000, ge=1, description="messages over which the share of bad ones is taken")
    bad_per_hour_critical: int = Field(200, ge=1, description="more bad messages in an hour than this are critical")
    metadata_budget_bytes: int = Field(1_048_576, ge=1_024, description="size that the account's metadata may reach")
    metadata_warn: float = Field(0.5, ge=0, le=1, description="share of that size that is worth a warning")
    metadata_critical: float = Field(0.8, ge=0, le=1, description="share of that size that is critical")
    throttle_window_s: float = Field(600.0, gt=0, description="how far back slowing down for Gmail is looked at")
    throttle_cuts_warn: int = Field(10, ge=1, description="slowing down so often within that time is worth a warning")
    self_email: bool = Field(False, description="also put alerts into the mailbox itself, at most one an hour each")


class ArchiverSettings(Group):
    """Removing mail at the source that the archive provably holds."""

    enabled: bool = Field(False, description="whether mail may be removed at all; `archive run --enable` for one run")
    action: Literal["label", "trash", "delete"] | None = Field(
        None, description="what removing means: take `archiver.label` away, move to the trash, or delete for ever"
    )
    label: str = Field("INBOX", min_length=1, description="the label that the action `label` takes away")
    keep_days: int = Field(30, ge=0, description="mail younger than this stays")
    keep_labels: str = Field(
        "STARRED, IMPORTANT", description="mail with one of these labels stays; names, separated by commas"
    )
    batch_size: int = Field(300, ge=1, le=300, description="messages proved, certified and removed at a time")


class RecurringSettings(Group):
    """Jobs that a worker repeats."""

    sync: str = Field(
        "every 15m",
        description="bring all accounts up to date; `every 15m`, `daily 04:30`, `daily 04:30 Europe/Zagreb`, or `off`",
    )
    bad_messages: str = Field("every 6h", description="try messages again that could not be had, when they are due")
    archiver: str = Field("daily 04:30", description="remove mail at the source; only with `archiver.enabled`")
    live: str = Field("every 1m", description="take in new mail; where a connector of its own does that, it goes first")
    backfill: str = Field("every 1m", description="work on backfill jobs; only with `backfill.enabled`")


class SwitchboardSettings(Group):
    """The Switchboard: MCP for dashboards, connectors and agents."""

    host: str = Field(
        "127.0.0.1",
        description="the address to listen on; anything but loopback is reachable by others: put TLS before it",
    )
    port: int = Field(8470, ge=0, le=65_535, description="where `/mcp` is served; 0 picks a free port")
    url: str | None = Field(
        None, pattern=r"^https?://", description="where a worker on another host finds it, `/mcp` included"
    )
    archive_wait_s: float = Field(
        30.0, ge=0, description="how long a starting Switchboard waits for a worker's job to let go of the archive"
    )
    request_bytes: int = Field(
        75_497_472, ge=1_000_000, le=1_000_000_000, description="a larger request is refused; the largest mail must fit"
    )

    @field_validator("host")
    @classmethod
    def _is_address(cls, host: str) -> str:
        try:
            return str(ip_address(host))
        except ValueError:
            raise ValueError(f"{host!r} is not an address; write for example 127.0.0.1") from None


class BackfillSettings(Group):
    """Backfill: history recovered under a budget."""

    enabled: bool = Field(
        False,
        description="the kill switch of every backfill lane; in force is this AND the switch that the dashboard turns",
        json_schema_extra={"variable": "BACKFILL_ENABLED"},
    )
    lease_s: float = Field(
        180.0, ge=10, le=3_600, description="a job whose connector is silent for this long is handed to another"
    )
    rate_limit_per_hour: int = Field(100, ge=1, le=1_000_000, description="messages an hour, where a job names none")
    daily_cost_cap_cents: int = Field(500, ge=1, le=1_000_000, description="spend a day, where a job names none")
    background_rate_limit_per_hour: int = Field(20, ge=1, le=1_000_000, description="the same in background mode")
    background_daily_cost_cap_cents: int = Field(50, ge=1, le=1_000_000, description="the same in background mode")
    day_zone: str = Field("UTC", description="the time zone at whose midnight daily caps begin anew")
    auto_resume: bool = Field(True, description="a job stopped by its cap goes on by itself when there is room again")

    @field_validator("day_zone")
    @classmethod
    def _known_zone(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{name!r} is not a time zone; write for example Europe/Zagreb") from None
        return name

    @property
    def zone(self) -> ZoneInfo:
        return ZoneInfo(self.day_zone)


class RetentionSettings(Group):
    """How long mail stays in the control database; the archive keeps its raw bytes either way."""

    metadata_days: int = Field(90, ge=1, le=73_000, description="mail of tier 2 (metadata only), since it was received")
    grace_days: int = Field(7, ge=1, le=365, description="old mail that was taken in just now stays this long")
    years: int = Field(0, ge=0, le=200, description="mail of tier 1 that no line below names; 0 is for ever")
    category_years: dict[str, int] = Field(
        {"finance": 7, "health": 0, "relationship": 3, "travel": 2},
        description="mail of tier 1 by its category; 0 is for ever",
    )
    domain_years: dict[str, int] = Field(
        {}, description="mail of tier 1 by its sender's domain, subdomains included; comes before the category"
    )


class ModelSettings(Group):
    """The language model. Without a provider none is asked, and mail is decided by rules alone."""

    provider: Literal["openai", "anthropic", "compatible"] | None = Field(
        None, description="whose API: `compatible` is any server that speaks OpenAI's; unset: no model"
    )
    name: str | None = Field(None, min_length=1, max_length=200, description="the model, as its provider calls it")
    base_url: str | None = Field(
        None, pattern=r"^https?://", description="where the API is; needed with `compatible`, else the provider's own"
    )
    api_key: SecretStr | None = Field(None, min_length=1, description="the key; unset: the vault's, if it has one")
    input_price: Decimal | None = Field(
        None, ge=0, le=100_000, description="dollars for a million tokens in, where the published price is not meant"
    )
    output_price: Decimal | None = Field(None, ge=0, le=100_000, description="the same for tokens out; both or neither")
    max_output_tokens: int = Field(1_000, ge=50, le=100_000, description="the most that one answer may have")
    timeout_s: float = Field(60.0, gt=0, le=600, description="how long to wait for an answer")

    @model_validator(mode="after")
    def _complete(self) -> ModelSettings:
        if self.provider is not None and self.name is None:
            raise ValueError("model.name is needed with model.provider")
        if self.provider == "compatible" and self.base_url is None:
            raise ValueError("model.base_url is needed with the provider `compatible`")
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("model.input_price and model.output_price are set both or neither")
        return self


class TelemetrySettings(Group):
    """Logs and metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="the least severe event logged")
    log_format: Literal["json", "console"] = Field("json", description="one JSON object a line, or text for people")
    metrics_port: int | None = Field(
        None,
        ge=0,
        le=65_535,
        description="`postroom worker` serves Prometheus metrics on this loopback port; unset: off",
    )
    metrics_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="bearer token that a scraper must present; needed with `metrics_port`",
    )


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
    backfill: BackfillSettings = BackfillSettings()
    retention: RetentionSettings = RetentionSettings()
    model: ModelSettings = ModelSettings()
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
        for group in (self.database, self.queue, self.worker, self.model, self.telemetry):
            for name in type(group).model_fields:
                value = getattr(group, name)
                if isinstance(value, SecretStr):
                    yield value.get_secret_value()
        if self.vault_key is not None:
            yield self.vault_key.get_secret_value()
        if password := _password_of(self.database_url):
            yield password


class _NamedVariables(PydanticBaseSettingsSource):
    """The settings whose variable is fixed by a specification, and so does not follow our own rule for names."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, Group)):
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
        if isinstance(field.annotation, type) and issubclass(field.annotation, Group):
            yield (field.annotation.__doc__ or name).rstrip("."), list(_settings_of(name, field.annotation))


def _settings_of(group: str, model: type[Group]) -> Iterator[Setting]:
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
