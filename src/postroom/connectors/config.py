"""The settings of a connector, read from environment variables. Unknown variables and invalid values are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from postroom.connectors.priority import GMAIL_SERVERS, ContactProof
from postroom.domain.errors import BadInput
from postroom.mail.addresses import normal_email

PREFIX = "CONNECTOR_"
TOKEN_VARIABLE = "CONNECTOR_TOKEN"  # noqa: S105 - the name of a variable, not a secret
SWITCHBOARD_VARIABLE = "CONNECTOR_SWITCHBOARD_URL"
DEFAULT_SWITCHBOARD = "http://127.0.0.1:8470/mcp"
SHORTEST_BACKFILL_POLL_S = 60.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    backfill_poll_s: float = SHORTEST_BACKFILL_POLL_S
    progress_interval: int = 50
    """Messages between two reports of a backfill."""
    live_poll_s: float = 20.0
    heartbeat_s: float = 30.0
    contact_max_age: timedelta = timedelta(minutes=60)
    contact_proof: ContactProof = ContactProof.NOT_FAILED
    receiving_servers: tuple[str, ...] = GMAIL_SERVERS
    aliases: tuple[str, ...] = field(default=())
    """Other addresses under which the user gets this mail."""
    sent_index_days: int = 730
    """How far back the sent folder is read for the index of sent mail."""

    def __post_init__(self) -> None:
        if not self.backfill_poll_s >= SHORTEST_BACKFILL_POLL_S:
            raise BadInput(
                f"{PREFIX}BACKFILL_POLL_INTERVAL_S",
                f"{self.backfill_poll_s:g} is less than {SHORTEST_BACKFILL_POLL_S:g} seconds, the shortest allowed",
            )
        _within(f"{PREFIX}BACKFILL_PROGRESS_INTERVAL", self.progress_interval, 1, 1_000)
        _within(f"{PREFIX}LIVE_POLL_INTERVAL_S", self.live_poll_s, 1, 3_600)
        _within(f"{PREFIX}HEARTBEAT_INTERVAL_S", self.heartbeat_s, 1, 240)
        _within(f"{PREFIX}CONTACT_MAX_AGE_S", self.contact_max_age.total_seconds(), 60, 30 * 86_400)
        _within(f"{PREFIX}SENT_INDEX_DAYS", self.sent_index_days, 0, 36_500)


def _within(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise BadInput(name, f"{value:g} is not between {least:g} and {most:g}")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _addresses(text: str) -> tuple[str, ...]:
    return tuple(normal_email(word) for word in _words(text))


def _seconds(text: str) -> timedelta:
    return timedelta(seconds=float(text))


VARIABLES: Mapping[str, tuple[str, Callable[[str], Any], str]] = {
    "CONNECTOR_BACKFILL_POLL_INTERVAL_S": ("backfill_poll_s", float, "seconds between polls for backfill; 60 or more"),
    "CONNECTOR_BACKFILL_PROGRESS_INTERVAL": ("progress_interval", int, "messages between two progress reports"),
    "CONNECTOR_LIVE_POLL_INTERVAL_S": ("live_poll_s", float, "seconds between looks for new mail"),
    "CONNECTOR_HEARTBEAT_INTERVAL_S": ("heartbeat_s", float, "seconds between heartbeats"),
    "CONNECTOR_CONTACT_MAX_AGE_S": ("contact_max_age", _seconds, "contacts older than this are not used"),
    "CONNECTOR_CONTACT_PROOF": ("contact_proof", ContactProof, "`nothing`, `not_failed` or `passed`"),
    "CONNECTOR_RECEIVING_SERVERS": ("receiving_servers", _words, "names whose Authentication-Results are believed"),
    "CONNECTOR_ALIASES": ("aliases", _addresses, "the user's other addresses, with commas between them"),
    "CONNECTOR_SENT_INDEX_DAYS": ("sent_index_days", int, "how far back the sent folder is indexed"),
}
"""By variable: the field, how it is read, and what it means."""
_OTHERS = frozenset({TOKEN_VARIABLE, SWITCHBOARD_VARIABLE})


def config_from(environment: Mapping[str, str]) -> ConnectorConfig:
    """The settings of this process. An unknown variable is refused, because it may be a misspelt one."""
    given: dict[str, Any] = {}
    for name in sorted(environment):
        if not name.startswith(PREFIX) or name in _OTHERS:
            continue
        if name not in VARIABLES:
            raise BadInput(name, f"no such setting; known are {', '.join([*VARIABLES, *sorted(_OTHERS)])}")
        field_name, read, _ = VARIABLES[name]
        given[field_name] = _read(name, environment[name], read)
    return ConnectorConfig(**given)


def _read(name: str, text: str, read: Callable[[str], T]) -> T:
    try:
        return read(text)
    except BadInput as error:
        raise BadInput(name, error.problem) from None
    except (ValueError, OverflowError):
        raise BadInput(name, f"{text[:80]!r} is not a value for it") from None
