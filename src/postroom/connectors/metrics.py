"""The metrics of a connector (spec/2 §6), and the names of passes and outcomes that they use as attributes. No
message, address or text is ever an attribute.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from postroom.contract.mail import MailLane
from postroom.telemetry.metrics import meter

if TYPE_CHECKING:
    from postroom.connectors.guidance import CacheState
    from postroom.connectors.priority import TierAssignment


_assigned = meter.create_counter(
    "butlers.connector.gmail.priority_tier_assigned", unit="{message}", description="ingested mail, by tier and rule"
)
_contacts = meter.create_counter(
    "postroom.connector.contact_cache", unit="{use}", description="uses of the contact cache, by its state"
)
_contacts_age = meter.create_gauge("postroom.connector.contact_cache_age", unit="s", description="age of the contacts")
_messages = meter.create_counter(
    "postroom.connector.messages", unit="{message}", description="messages seen, by pass and what became of them"
)
_passes = meter.create_counter("postroom.connector.passes", unit="{pass}", description="passes, by kind and outcome")
_lag = meter.create_histogram(
    "postroom.connector.live_lag", unit="s", description="from Gmail's receipt to the Switchboard's, live mail"
)
UNKNOWN = "unknown"
"""The mailbox is no account of the Switchboard that took its mail in."""


class PassName(StrEnum):
    LIVE = "live"
    GAP = "gap"
    BACKFILL = "backfill"
    ON_DEMAND = "on_demand"
    SENT = "sent"

    @property
    def lane(self) -> MailLane:
        """As the list of troubled messages calls it."""
        match self:
            case PassName.BACKFILL:
                return "backfill"
            case PassName.ON_DEMAND:
                return "on demand"
            case _:
                return "live"


class Fate(StrEnum):
    """What became of a message."""

    FULL = "full"
    METADATA = "metadata"
    DUPLICATE = "duplicate"
    SKIPPED_BY_POLICY = "skipped_by_policy"
    NOT_SELECTED = "not_selected"
    OUTBOUND = "outbound"
    GONE = "gone"
    UNREADABLE = "unreadable"


def record_assignment(account_id: str | None, assignment: TierAssignment) -> None:
    """`endpoint_identity` is the opaque id of the account, never its address; `unknown` for no account of ours."""
    _assigned.add(
        1,
        {
            "provider": "gmail",
            "endpoint_identity": account_id or UNKNOWN,
            "policy_tier": str(assignment.tier),
            "assignment_rule": str(assignment.rule),
        },
    )


def record_contact_cache(state: CacheState, age_s: float | None) -> None:
    _contacts.add(1, {"state": str(state), "degraded": str(state != "fresh").lower()})
    if age_s is not None:
        _contacts_age.set(age_s)


def record_message(name: PassName, fate: Fate, count: int = 1) -> None:
    if count:
        _messages.add(count, {"pass": str(name), "fate": str(fate)})


def record_pass(name: PassName, outcome: str) -> None:
    """`outcome` is one of a few words of the program: `done`, `stopped`, `retry`, `failed`."""
    _passes.add(1, {"pass": str(name), "outcome": outcome})


def record_live_lag(seconds: float) -> None:
    _lag.record(max(0.0, seconds))
