"""The settings of connectors, which read them from variables of their own."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from postroom.domain.errors import BadInput
from postroom.domain.ids import normal_email
from postroom.settings.groups import HttpAddress, SettingsGroup, parts_of


class ConnectorSettings(SettingsGroup):
    """Connectors, in processes of their own or in a worker."""

    switchboard_url: HttpAddress = Field(
        "http://127.0.0.1:8470/mcp",
        description="where the Switchboard is, `/mcp` included",
        json_schema_extra={"variable": "CONNECTOR_SWITCHBOARD_URL"},
    )
    token: SecretStr | None = Field(
        None,
        description="the token for the Switchboard; unset: the one in the vault",
        json_schema_extra={"variable": "CONNECTOR_TOKEN"},
    )
    live_poll_s: float = Field(
        20.0,
        ge=1,
        le=3_600,
        description="seconds between looks for new mail",
        json_schema_extra={"variable": "CONNECTOR_LIVE_POLL_INTERVAL_S"},
    )
    backfill_poll_s: float = Field(
        60.0,
        ge=60,
        description="seconds between polls for backfill; 60 or more",
        json_schema_extra={"variable": "CONNECTOR_BACKFILL_POLL_INTERVAL_S"},
    )
    use_kinds: bool = Field(
        True,
        description="whether mail that looks bulk or like spam is kept from being `interactive`, and old lists from "
        "`high_priority`",
        json_schema_extra={"variable": "CONNECTOR_USE_KINDS"},
    )
    progress_interval: int = Field(
        50,
        ge=1,
        le=1_000,
        description="messages between two progress reports of a backfill",
        json_schema_extra={"variable": "CONNECTOR_BACKFILL_PROGRESS_INTERVAL"},
    )
    heartbeat_s: float = Field(
        30.0,
        ge=1,
        le=240,
        description="seconds between heartbeats",
        json_schema_extra={"variable": "CONNECTOR_HEARTBEAT_INTERVAL_S"},
    )
    contact_max_age_s: float = Field(
        3_600.0,
        ge=60,
        le=30 * 86_400,
        description="contacts older than this are not used",
        json_schema_extra={"variable": "CONNECTOR_CONTACT_MAX_AGE_S"},
    )
    contact_proof: Literal["aligned", "not_failed"] = Field(
        "aligned",
        description="when mail of a contact is served first: `aligned`, the receiving server authenticated the domain "
        "in From; `not_failed`, it found no forgery",
        json_schema_extra={"variable": "CONNECTOR_CONTACT_PROOF"},
    )
    receiving_servers: str = Field(
        "mx.google.com",
        description="the names whose `Authentication-Results` are believed, separated by commas",
        json_schema_extra={"variable": "CONNECTOR_RECEIVING_SERVERS"},
    )
    aliases: str = Field(
        "",
        description="your other addresses, separated by commas",
        json_schema_extra={"variable": "CONNECTOR_ALIASES"},
    )
    sent_index_days: int = Field(
        730,
        ge=0,
        le=36_500,
        description="how far back the sent folder is read for the index of sent mail",
        json_schema_extra={"variable": "CONNECTOR_SENT_INDEX_DAYS"},
    )

    @field_validator("aliases")
    @classmethod
    def _are_addresses(cls, aliases: str) -> str:
        try:
            return ", ".join(normal_email(part) for part in parts_of(aliases))
        except BadInput as error:
            raise ValueError(error.problem) from None

    @property
    def own_addresses(self) -> tuple[str, ...]:
        return tuple(parts_of(self.aliases))

    @property
    def believed_servers(self) -> tuple[str, ...]:
        return tuple(parts_of(self.receiving_servers))
