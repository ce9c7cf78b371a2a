"""What becomes of a job after an attempt, so that a few messages that cannot be had stop nobody. Pure.

Ids that were answered for are done, whatever happens to the others. The rest is tried again, a few times, after
growing pauses; then it is split in two, and again, each part with one more attempt, down to single messages. One that
still fails is bad: it is named with its reason, and no longer in the way. About log2 N steps for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from postroom.domain.errors import PostroomError, Retryable

_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 120.0


@dataclass(frozen=True, slots=True)
class Job:
    """A batch of message ids. Time ranges are behind us: only ids are retried and split."""

    listing: int
    """Which listing of a slice it comes from."""
    ids: tuple[str, ...]
    tries: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """Every id was answered for."""


@dataclass(frozen=True, slots=True)
class Again:
    """What failed is worth another attempt after a pause."""

    ids: tuple[str, ...]
    tries: int
    pause_s: float


@dataclass(frozen=True, slots=True)
class Split:
    """Two halves of what failed, each on its own from now on."""

    halves: tuple[tuple[str, ...], tuple[str, ...]]
    tries: int


@dataclass(frozen=True, slots=True)
class Bad:
    gmail_id: str
    error: PostroomError


Verdict: TypeAlias = Done | Again | Split | Bad


def judge(job: Job, failed: Mapping[str, PostroomError], budget: int) -> Verdict:
    """`failed` are the ids of the job that this attempt did not settle, with why."""
    left = tuple(each for each in job.ids if each in failed)
    if not left:
        return Done()
    tries = job.tries + 1
    is_worth_a_retry = any(isinstance(failed[each], Retryable) for each in left)
    if tries < budget and is_worth_a_retry:
        return Again(left, tries, min(_FIRST_PAUSE_S * 2**job.tries, _LONGEST_PAUSE_S))
    if len(left) == 1:
        return Bad(left[0], failed[left[0]])
    middle = len(left) // 2
    return Split((left[:middle], left[middle:]), tries)
