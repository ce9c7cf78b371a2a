"""The groups of settings, one for each package. `docs/settings.md` is made from their descriptions."""

from __future__ import annotations

import json
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from postroom.domain.validation import shaped

if TYPE_CHECKING:
    from postroom.domain.actions import ActionType

OFF = "off"

HttpAddress = Annotated[str, shaped(r"(?s)https?://.*", "is not an address such as https://example.org")]
_Origin = Annotated[str, shaped(r"https?://[^/?#@\s]+/?", "is not an address such as https://post.example.org")]
_ChannelId = Annotated[str, shaped("[0-9]{1,20}", "is not the id of a channel: 1 to 20 digits")]
_PublicKey = Annotated[str, shaped("[0-9a-fA-F]{64}", "is not a public key: 64 hexadecimal digits")]


class SettingsGroup(BaseModel):
    """`Settings` holds every group and builds one validator for all; a group builds its own when used alone."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)


class DatabaseSettings(SettingsGroup):
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


class QueueSettings(SettingsGroup):
    """The job queue."""

    max_consecutive_same_tier: int = Field(
        10,
        ge=1,
        le=10_000,
        description="starvation guard: services of a tier before a waiting lower tier gets a turn",
    )
    keep_completed_days: int = Field(14, ge=0, description="completed and cancelled jobs older than this are pruned")
    keep_failed_days: int = Field(90, ge=0, description="failed jobs older than this are pruned")


class WorkerSettings(SettingsGroup):
    """A process that runs jobs."""

    concurrency: int = Field(
        16,
        ge=1,
        le=1_000,
        description="jobs in flight at once that may wait, such as for a model; brief ones up to four times as many",
    )
    lease_s: float = Field(60.0, gt=0, description="a job whose worker is silent for this long is handed to another")
    drain_s: float = Field(30.0, ge=0, description="how long a stopping worker lets its jobs finish")
    poll_s: float = Field(5.0, gt=0, description="the safety net beneath wake-ups: look for work at least this often")


class ArchiveSettings(SettingsGroup):
    """The archive of raw mail."""

    store: Literal["files", "database"] = Field(
        "files",
        description="where mail is kept: `files` below the home folder, or the PostgreSQL `database` of database.url, "
        "so that workers on several hosts share it",
    )
    shard_bytes: int = Field(
        2_000_000_000, ge=1_000_000, description="a year's shard larger than this is continued in another file"
    )


class OcrSettings(SettingsGroup):
    """Words in attached pictures and scanned PDF files, with the `ocr` extra."""

    enabled: bool = Field(
        True, description="read them in the background, after all other attachments; without the extra, none is read"
    )


class SyncSettings(SettingsGroup):
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
    bad_retry_hours: float = Field(24.0, gt=0, description="how often messages that could not be fetched are retried")
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


class ArchiverSettings(SettingsGroup):
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


class RestoreSettings(SettingsGroup):
    """Putting mail back from the archive into a mailbox."""

    max_messages: int = Field(50_000, ge=1, description="the most messages of one restore")
    max_bytes: int = Field(10_000_000_000, ge=1, description="the most bytes of one restore")
    settle_s: float = Field(
        15.0, ge=0, description="how long after an interrupted upload the mailbox is searched for the message"
    )


class RecurringSettings(SettingsGroup):
    """Jobs that a worker repeats."""

    sync: str = Field(
        "every 15m",
        description="bring all accounts up to date; `every 15m`, `daily 04:30`, `daily 04:30 Europe/Zagreb`, or `off`",
    )
    bad_messages: str = Field("every 6h", description="retry messages that could not be fetched, when they are due")
    archiver: str = Field("daily 04:30", description="remove mail at the source; only with `archiver.enabled`")
    live: str = Field(
        "every 20s", description="take in new mail; where a connector of its own does that, it goes first"
    )
    backfill: str = Field("every 1m", description="work on backfill jobs; only with `backfill.enabled`")
    labels: str = Field("every 1h", description="bring the lists of labels up to date")
    learning: str = Field("daily 03:15", description="fit local triage anew; only with `learning.enabled`")
    sentinel: str = Field("daily 06:00", description="look at the web sources for what is new")


class SwitchboardSettings(SettingsGroup):
    """The Switchboard: MCP for dashboards, connectors and agents."""

    host: str = Field(
        "127.0.0.1",
        description="the address to listen on; anything but loopback is reachable by others: put TLS before it",
    )
    port: int = Field(8470, ge=0, le=65_535, description="where `/mcp` is served; 0 picks a free port")
    url: HttpAddress | None = Field(None, description="where a worker on another host finds it, `/mcp` included")
    archive_wait_s: float = Field(
        30.0, ge=0, description="how long a starting Switchboard waits for a worker's job to let go of the archive"
    )
    request_bytes: int = Field(
        75_497_472,
        ge=1_000_000,
        le=1_000_000_000,
        description="a larger request of a connector is refused; the largest mail must fit",
    )
    agent_request_bytes: int = Field(
        262_144, ge=4_096, le=4_194_304, description="a larger request of an agent is refused"
    )
    max_connections: int = Field(
        256,
        ge=8,
        le=10_000,
        description="connections at once; half of them are kept for those who are logged in, and when there are too "
        "many, the oldest without a login is closed",
    )
    trusted_proxies: str = Field(
        "",
        description="addresses or networks of the reverse proxies whose `X-Forwarded-For` is believed, separated by "
        "commas; none by default",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: str) -> str:
        for part in parts_of(proxies):
            try:
                ip_network(part)
            except ValueError:
                raise ValueError(f"{part!r} is not an address or network; write for example 10.0.0.5") from None
        return proxies

    @property
    def proxies(self) -> tuple[IPv4Network | IPv6Network, ...]:
        return tuple(ip_network(part) for part in parts_of(self.trusted_proxies))

    @field_validator("host")
    @classmethod
    def _is_address(cls, host: str) -> str:
        try:
            return str(ip_address(host))
        except ValueError:
            raise ValueError(f"{host!r} is not an address; write for example 127.0.0.1") from None


class DashboardSettings(SettingsGroup):
    """The dashboard, served by the Switchboard beside its tools."""

    url: _Origin | None = Field(
        None,
        description="the address by which people reach it, if it is not where it listens; https with TLS before it",
    )
    session_days: int = Field(30, ge=1, le=365, description="a login ends after this, however busy it is")
    idle_days: int = Field(7, ge=1, le=365, description="an unused login ends after this")
    proof_minutes: int = Field(
        5, ge=1, le=60, description="for how long the passphrase, once given, allows sensitive changes"
    )
    dev: bool = Field(
        False, description="*Add a mailbox* also takes simulated mailboxes (`postroom sim gmail`); `up --dev` sets it"
    )
    upload_bytes: int = Field(
        20_000_000_000, ge=1_000_000, description="the most that can be uploaded at once to be imported"
    )


class BackfillSettings(SettingsGroup):
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
    share_of_ceiling_percent: int = Field(
        60, ge=0, le=100, description="the part of model.daily_ceiling_cents that all backfill jobs may use together"
    )
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


class RetentionSettings(SettingsGroup):
    """How long mail stays in the control database, from when it was taken in; the archive keeps its raw bytes."""

    metadata_days: int = Field(90, ge=1, le=73_000, description="mail of tier 2 (metadata only)")
    years: int = Field(0, ge=0, le=200, description="mail of tier 1 that no line below names; 0 is for ever")
    category_years: dict[str, int] = Field(
        {"finance": 7, "health": 0, "relationship": 3, "travel": 2},
        description="mail of tier 1 by its category; 0 is for ever",
    )
    domain_years: dict[str, int] = Field(
        {}, description="mail of tier 1 by its sender's domain, subdomains included; comes before the category"
    )

    @field_validator("category_years", "domain_years", mode="before")
    @classmethod
    def _read_json(cls, years: Any) -> Any:
        """A variable holds a text."""
        if not isinstance(years, str):
            return years
        try:
            return json.loads(years)
        except ValueError:
            raise ValueError('is not a JSON object such as {"finance": 7}') from None


class ModelSettings(SettingsGroup):
    """The language model. Without a provider none is asked, and mail is decided by rules alone."""

    provider: Literal["openai", "anthropic", "compatible"] | None = Field(
        None, description="whose API: `compatible` is any server that speaks OpenAI's; unset: no model"
    )
    name: str | None = Field(None, min_length=1, max_length=200, description="the model, as its provider calls it")
    base_url: HttpAddress | None = Field(
        None, description="where the API is; needed with `compatible`, else the provider's own"
    )
    api_key: SecretStr | None = Field(None, min_length=1, description="the key; unset: the vault's, if it has one")
    input_price: Decimal | None = Field(
        None, ge=0, le=100_000, description="dollars for a million tokens in, where the published price is not meant"
    )
    output_price: Decimal | None = Field(None, ge=0, le=100_000, description="the same for tokens out; both or neither")
    max_output_tokens: int = Field(1_000, ge=50, le=100_000, description="the most that one answer may have")
    daily_ceiling_cents: int = Field(
        1_000,
        ge=0,
        le=10_000_000,
        description="the most that all model calls of a day may cost together; the dashboard can set another",
    )
    timeout_s: float = Field(60.0, gt=0, le=600, description="how long to wait for an answer")
    thread_messages: int = Field(
        3, ge=0, le=20, description="earlier messages of a conversation that the model is shown"
    )
    keep_prompts_days: int = Field(0, ge=0, le=3_650, description="prompts are kept for so long; they hold mail")

    @model_validator(mode="after")
    def _complete(self) -> ModelSettings:
        if self.provider is not None and self.name is None:
            raise ValueError("model.name is needed with model.provider")
        if self.provider == "compatible" and self.base_url is None:
            raise ValueError("model.base_url is needed with the provider `compatible`")
        if (self.input_price is None) != (self.output_price is None):
            raise ValueError("model.input_price and model.output_price are set both or neither")
        return self

    @property
    def provider_name(self) -> str:
        """For people: whose API it is."""
        names = {"openai": "OpenAI", "anthropic": "Anthropic"}
        return names.get(str(self.provider), "a server that speaks OpenAI's API")

    @property
    def described(self) -> str:
        """For people: the model and where it is, in one line."""
        address = f" ({self.base_url})" if self.base_url else ""
        return f"{self.name} at {self.provider_name}{address}"


class LearningSettings(SettingsGroup):
    """Local triage that learns from the model and from you, and decides by itself what it has proven to know."""

    enabled: bool = Field(True, description="off: it neither decides nor learns; the dashboard can switch it off too")
    sure: float = Field(
        0.985, ge=0.9, le=1, description="how probable its answer must be before it counts as sure of it"
    )
    check_share: float = Field(
        0.05, ge=0.01, le=1, description="of its sure decisions, the share that the model is asked about all the same"
    )
    least_seen: int = Field(
        30,
        ge=30,
        le=100_000,
        description="a kind of mail (authenticated domain and action) seen less often is never decided by it",
    )


class GmailSettings(SettingsGroup):
    """What Postroom does in a mailbox."""

    snooze_label: str = Field(
        "Postroom/Snoozed", min_length=1, max_length=200, description="the label of mail that is snoozed"
    )


class SafetySettings(SettingsGroup):
    """When an action has to wait for a person."""

    min_confidence: float = Field(0.7, ge=0, le=1, description="a model less sure than this needs approval")
    hiding_confidence: float = Field(
        0.8, ge=0, le=1, description="the same for what hides mail: archive, snooze, mark read, take a label away"
    )
    destroying_confidence: float = Field(0.95, ge=0, le=1, description="the same for trash, delete and what is sent")
    dangerous_actions: str = Field(
        "delete, trash, forward, auto_reply, unsubscribe",
        description="actions that always need approval, except from rules marked `unattended`",
    )
    always_approve: str = Field("", description="actions that need approval without any exception")
    approval_days: int = Field(7, ge=1, le=365, description="an unanswered question expires after this")
    hides_per_hour: int = Field(
        30,
        ge=0,
        le=100_000,
        description="messages of an account that may be hidden without a person within any hour; more need approval. "
        "Rules are not counted",
    )
    backfill_hides_per_hour: int = Field(
        100, ge=0, le=100_000, description="the same for mail that a backfill brought, counted apart"
    )

    @field_validator("dangerous_actions", "always_approve")
    @classmethod
    def _known_actions(cls, names: str) -> str:
        listed(names)
        return names

    @property
    def dangerous(self) -> frozenset[ActionType]:
        return listed(self.dangerous_actions)

    @property
    def always(self) -> frozenset[ActionType]:
        return listed(self.always_approve)


class DiscordSettings(SettingsGroup):
    """Approvals asked for in Discord; off until there is a bot."""

    bot_token: SecretStr | None = Field(
        None, min_length=1, description="the bot's token; unset: the vault's; without one, nothing is asked there"
    )
    channel_id: _ChannelId | None = Field(None, description="the channel in which the bot asks")
    public_key: _PublicKey | None = Field(
        None, description="the application's public key, which proves Discord's calls"
    )
    allowed_users: str = Field("", description="ids of the users whose answer counts, separated by commas")
    base_url: HttpAddress = Field("https://discord.com/api/v10", description="where Discord's API is")

    @model_validator(mode="after")
    def _complete(self) -> DiscordSettings:
        if self.bot_token is not None and not (self.channel_id and self.public_key and self.users):
            raise ValueError("discord.bot_token needs discord.channel_id, public_key and allowed_users")
        return self

    @field_validator("allowed_users")
    @classmethod
    def _are_ids(cls, users: str) -> str:
        if bad := [user for user in parts_of(users) if not user.isdecimal()]:
            raise ValueError(f"{bad[0]!r} is not a user's id; Discord shows it as a number in developer mode")
        return users

    @property
    def users(self) -> frozenset[str]:
        return frozenset(parts_of(self.allowed_users))


def listed(names: str) -> frozenset[ActionType]:
    """Actions from a list with commas. Imported here: the models of actions are slow to build, and few settings are
    lists of them."""
    from postroom.domain.actions import ActionType

    try:
        return frozenset(ActionType(name) for name in parts_of(names))
    except ValueError as error:
        raise ValueError(f"{error}; there are {', '.join(ActionType)}") from None


def parts_of(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


class WebSettings(SettingsGroup):
    """Web sources. Where a source in `sources.toml` says something else, that holds for it."""

    max_urls_per_run: int = Field(1_000, ge=1, le=1_000_000, description="new urls of one backfill run, or one look")
    max_urls_per_source: int = Field(500, ge=1, le=1_000_000, description="the same for each source")
    concurrency: int = Field(2, ge=1, le=32, description="walks of a backfill run at once")
    max_pages: int = Field(1_000, ge=1, le=1_000_000, description="pages that one walk may turn; the rest is an error")
    sentinel_days: int = Field(3, ge=1, le=365, description="days before its last look that the sentinel reads again")
    sentinel_pages: int = Field(3, ge=1, le=1_000, description="pages of a list that the sentinel reads at least")
    recheck_pages: int = Field(200, ge=0, le=100_000, description="known pages of an endpoint that a look checks again")
    recheck_least_h: int = Field(24, ge=1, le=8_760, description="hours until a page that changes often is due again")
    recheck_most_h: int = Field(720, ge=1, le=8_760, description="hours until a page that never changes is due again")
    min_delay_ms: int = Field(5_000, ge=0, le=3_600_000, description="the least time between requests to a domain")
    max_delay_ms: int = Field(10_000, ge=0, le=3_600_000, description="the most, apart from waiting in line")
    max_concurrent: int = Field(1, ge=1, le=32, description="requests to a domain at once, by all processes together")
    fetches_per_minute: float = Field(2.0, gt=0, le=6_000, description="fetch jobs of backfill that begin in a minute")
    queue_depth: int = Field(1_000, ge=1, le=100_000, description="fetch jobs of backfill that may wait at once")
    queue_patience_s: float = Field(60.0, ge=0, description="how long a run waits for room before it fails, resumable")
    user_agent: str = Field("Postroom/0.1", min_length=1, max_length=200, description="how Postroom names itself")
    timeout_s: float = Field(30.0, gt=0, le=600, description="how long one request may take in all")
    max_page_bytes: int = Field(20_000_000, ge=1_000, le=1_000_000_000, description="a larger answer is refused")
    max_redirects: int = Field(5, ge=0, le=20, description="redirects that are followed, each checked anew")
    robots_hours: float = Field(24.0, gt=0, le=168, description="how long a site's robots.txt is remembered")
    allow_private_hosts: str = Field(
        "", description="hosts that may have a private or loopback address; names, separated by commas"
    )

    @model_validator(mode="after")
    def _delays_in_order(self) -> WebSettings:
        if self.min_delay_ms > self.max_delay_ms:
            raise ValueError("web.min_delay_ms is more than web.max_delay_ms")
        if self.recheck_least_h > self.recheck_most_h:
            raise ValueError("web.recheck_least_h is more than web.recheck_most_h")
        return self

    @property
    def private_hosts(self) -> frozenset[str]:
        return frozenset(name.lower() for name in parts_of(self.allow_private_hosts))


class TelemetrySettings(SettingsGroup):
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


_TimeOfDay = Annotated[str, shaped(r"([01]\d|2[0-3]):[0-5]\d", "is not a time of day such as 07:00")]


class DigestSettings(SettingsGroup):
    """The digest by e-mail to yourself: what came, what was done, what waits, what was spent."""

    every: Literal["off", "daily", "weekly"] = Field(
        "off", description="`daily`: about the day before; `weekly`: about the week before, on Monday"
    )
    at: _TimeOfDay = Field("07:00", description="when it is sent, in `digest.zone`")
    zone: str | None = Field(
        None, description="the time zone of its days, such as Europe/Zagreb; unset: that of `backfill.day_zone`"
    )

    @field_validator("zone")
    @classmethod
    def _known_zone(cls, name: str | None) -> str | None:
        try:
            ZoneInfo(name or "UTC")
        except (KeyError, ValueError, OSError):
            raise ValueError(f"{name!r} is not a time zone; write for example Europe/Zagreb") from None
        return name or None
