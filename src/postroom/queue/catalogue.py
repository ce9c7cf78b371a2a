"""The job types of an installation: how each may be repeated, retried, timed and kept. Each type stands here once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from postroom.domain.errors import BadInput

_TYPE_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


class KeyUse(StrEnum):
    """What an idempotency key stands for once its job has finished."""

    ONCE = "once"  # the key is spent for ever, also after the job was pruned
    REPEATABLE = "repeatable"  # the finished job is armed again


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential back-off. The defaults span about a quarter of an hour, so that an ordinary outage is outlived."""

    max_attempts: int = 5
    first_delay: timedelta = timedelta(seconds=10)
    factor: float = 4.0
    longest_delay: timedelta = timedelta(hours=1)
    jitter: float = 0.25


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


class Catalogue:
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
