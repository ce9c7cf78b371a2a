"""What a job is before, while and after it runs; and from what its handler did to what becomes of it, a pure
decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from random import Random
from typing import Any, NamedTuple, assert_never

from postroom.domain.errors import BadInput, Fatal, NotAllowed, PostroomError, Retryable
from postroom.domain.jobs import LONGEST_POSTPONEMENT, JobState, RetryPolicy
from postroom.domain.terms import Tier
from postroom.telemetry.logs import clean

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


class ClaimedJob(NamedTuple):
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


_LONGEST_ERROR = 4_000
_MOST_CAUSES = 5


class Postponed(PostroomError):
    """It is not this job's turn yet."""

    def __init__(self, wait: timedelta, message: str | None = None) -> None:
        """For a handler that has done nothing yet: the job comes back after `wait`, and the attempt does not count."""
        super().__init__(message)
        self.wait = wait


@dataclass(frozen=True, slots=True)
class Succeeded:
    result: Json = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler raised; any error that is not one of ours is a bug or a surprise, and worth another attempt."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TimedOut:
    limit: timedelta


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The worker is going away; the attempt does not count."""


Outcome = Succeeded | Raised | TimedOut | Interrupted


@dataclass(frozen=True, slots=True)
class Settlement:
    """The next state of a job, as it will be written."""

    state: JobState
    attempts: int
    not_before: datetime | None = None
    error: str | None = None
    result_json: str | None = None

    @property
    def is_completion(self) -> bool:
        """Done, with nothing to say but a result: how most attempts end."""
        return self.state is JobState.COMPLETED and self.error is None

    @property
    def outcome(self) -> str:
        """In a word, for counting. A job that comes back without an error only waits: nothing went wrong."""
        if self.state is not JobState.QUEUED:
            return self.state
        return "put_back" if self.error is None else "retried"


@cache
def plain_completion(attempt: int) -> Settlement:
    return Settlement(JobState.COMPLETED, attempt)


def settle(job: ClaimedJob, outcome: Outcome, policy: RetryPolicy, now: datetime, random: Random) -> Settlement:
    match outcome:
        case Succeeded(None):
            return plain_completion(job.attempt)
        case Succeeded(result):
            return _completed(job, result)
        case Interrupted():
            return Settlement(JobState.QUEUED, job.attempt - 1)
        case TimedOut(limit):
            message = f"ran longer than its time limit of {limit.total_seconds():g} s"
            return _again_or_failed(job, message, policy.delay(job.attempt, random), now)
        case Raised(Postponed() as later):
            not_before = now + min(max(later.wait, timedelta()), LONGEST_POSTPONEMENT)
            return Settlement(JobState.QUEUED, job.attempt - 1, not_before=not_before)
        case Raised(error):
            message = describe(error)
            if isinstance(error, Fatal | BadInput | NotAllowed):
                return Settlement(JobState.FAILED, job.attempt, error=message)
            asked = error.retry_after if isinstance(error, Retryable) else None
            return _again_or_failed(job, message, policy.delay(job.attempt, random, asked), now)
        case _:
            assert_never(outcome)


def describe(error: BaseException) -> str:
    """The error and its causes in one line, innermost last. A cause that says the same is left out."""
    parts: list[str] = []
    link: BaseException | None = error
    for _ in range(_MOST_CAUSES):  # an error may be raised from itself
        if link is None:
            break
        part = f"{type(link).__name__}: {_text_of(link)}".removesuffix(": ")
        if part not in parts:
            parts.append(part)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return storable(clean(" <- ".join(parts)))


def _text_of(error: BaseException) -> str:
    """The error's text; an error whose text cannot be made must not end the worker."""
    try:
        return str(error)
    except Exception as trouble:
        return f"(its text cannot be read: {type(trouble).__name__})"


def storable(text: str) -> str:
    """Any text as one that both databases accept, of bounded length."""
    whole = text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
    return whole if len(whole) <= _LONGEST_ERROR else whole[: _LONGEST_ERROR - 1] + "…"


def encode_result(result: Json) -> str | None:
    """A handler's result as it is stored; one that is not JSON is a fault of the handler."""
    try:
        return None if result is None else json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Fatal(f"the handler's result is not JSON: {error}") from None


def _completed(job: ClaimedJob, result: Json) -> Settlement:
    try:
        return Settlement(JobState.COMPLETED, job.attempt, result_json=encode_result(result))
    except Fatal as error:
        return Settlement(JobState.FAILED, job.attempt, error=describe(error))


def _again_or_failed(job: ClaimedJob, message: str, delay: timedelta, now: datetime) -> Settlement:
    if job.is_last_attempt:
        return Settlement(
            JobState.FAILED, job.attempt, error=f"gave up after {job.attempt} attempts; the last: {message}"
        )
    return Settlement(JobState.QUEUED, job.attempt, not_before=now + delay, error=message)
