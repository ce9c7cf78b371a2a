"""What a job is before, while and after it runs; and the job types of an installation: how each is retried, timed
and kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from random import Random
from typing import Any

from postroom.domain.backoff import Backoff
from postroom.domain.errors import BadInput
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
    """The id that the key now stands for; a duplicate is a success with the first job's id."""

    job_id: str
    duplicate: bool


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job in the hands of one worker, until its lease ends. `fence` proves that it is still this claim."""

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


LONGEST_POSTPONEMENT = timedelta(days=7)
_TYPE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class KeyUse(StrEnum):
    """What an idempotency key stands for once its job has finished."""

    ONCE = "once"  # the key stays spent, even after the job was pruned
    REPEATABLE = "repeatable"  # the finished job is armed again


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff. The defaults span about a quarter of an hour, so that an ordinary outage is outlived."""

    max_attempts: int = 5
    first_delay: timedelta = timedelta(seconds=10)
    factor: float = 4.0
    longest_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.25

    def delay(self, attempt: int, random: Random, asked: timedelta | None = None) -> timedelta:
        """How long to wait after this attempt, counted from 1. Attempts are limited, so `asked` may shorten it."""
        backoff = Backoff(
            self.first_delay.total_seconds(),
            self.longest_delay.total_seconds(),
            self.factor,
            jitter=(1 - self.jitter, 1 + self.jitter),
            longest_asked_s=LONGEST_POSTPONEMENT.total_seconds(),
            asked_may_shorten=True,
        )
        return timedelta(seconds=backoff.delay_s(attempt, asked, random=random))


@dataclass(frozen=True, slots=True)
class JobType:
    name: str
    key_use: KeyUse = KeyUse.ONCE
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    time_limit: timedelta = timedelta(minutes=5)
    keep_completed: int | None = None  # keep at most so many, however young
    keep_failed: int | None = None

    def __post_init__(self) -> None:
        if not _TYPE_NAME.fullmatch(self.name):
            raise BadInput("type", f"{self.name!r} is not a job type; write lowercase words joined by dots")


class JobCatalogue:
    """All job types that this installation knows."""

    def __init__(self, types: Iterable[JobType]) -> None:
        self._types: dict[str, JobType] = {}
        for job_type in types:
            if job_type.name in self._types:
                raise BadInput("type", f"{job_type.name} is declared twice")
            self._types[job_type.name] = job_type

    def __getitem__(self, name: str) -> JobType:
        try:
            return self._types[name]
        except KeyError:
            known = ", ".join(sorted(self._types)) or "none"
            raise BadInput("type", f"{name!r} is not a known job type (known: {known})") from None

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[JobType]:
        return iter(self._types.values())
