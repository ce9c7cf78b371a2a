"""What the Switchboard counts. Attributes are names of tiers and outcomes; never ids, senders or text."""

from __future__ import annotations

from enum import StrEnum

from postroom.domain.envelope import Envelope
from postroom.telemetry.metrics import meter


class Outcome(StrEnum):
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    REJECTED = "rejected"


_envelopes = meter.create_counter("postroom.switchboard.ingest.envelopes", description="envelopes, by their outcome")


def count_envelopes(envelope: Envelope | None, outcome: Outcome) -> None:
    if envelope is None:
        _envelopes.add(1, {"outcome": outcome.value})
        return
    control = envelope.control
    lane = "live" if control.backfill_job_id is None else "backfill"
    tiers = {"policy_tier": control.policy_tier.value, "ingestion_tier": control.ingestion_tier.value}
    _envelopes.add(1, {"outcome": outcome.value, "lane": lane, **tiers})
