"""What a job is before, while and after it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from postroom.domain.jobs import JobState
from postroom.domain.tiers import Tier

Json = Any
Payload = Mapping[str, Json]


FINISHED = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELED})


class QueueName(StrEnum):
    """Live mail and work share a worker's slots in turns; history gets the slots that they leave idle.

    `live` and `history` hold ingested mail, which is served by tier and arrival alone; only `work` knows priorities.
    """

    LIVE = "live"
    WORK = "work"
    HISTORY = "history"


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue. `key` makes it idempotent; how it may be reused is a property of the type."""

    type: str
    payload: Payload = field(default_factory=dict)
    queue: QueueName = QueueName.WORK
    tier: Tier = Tier.DEFAULT
    priority: int = 0
    key: str | None = None
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Enqueued:
    """The id of the key's job; a duplicate is a success with the first job's id."""

    job_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job claimed by one worker, until its lease ends. `fence` proves that it is still this claim."""

    id: str
    type: str
    queue: QueueName
    tier: Tier
    payload_json: str
    attempt: int
    max_attempts: int
    fence: int
    waited_s: float

    @property
    def payload(self) -> dict[str, Json]:
        """A fresh copy. Decoded here and not on claiming, so that one damaged row fails alone."""
        decoded: dict[str, Json] = json.loads(self.payload_json)
        return decoded

    @property
    def is_last_attempt(self) -> bool:
        return self.attempt >= self.max_attempts
