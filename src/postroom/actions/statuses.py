"""The life of an action: every legal change of its status, and nothing else. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from postroom.domain.actions import ActionStatus as S

LEGAL: Mapping[S, frozenset[S]] = MappingProxyType(
    {
        S.APPROVED_PENDING: frozenset({S.QUEUED, S.REJECTED, S.EXPIRED, S.CANCELED}),
        # Back to a person where, at the moment of execution, it may not be done unasked any more.
        S.QUEUED: frozenset({S.EXECUTING, S.FAILED, S.CANCELED, S.APPROVED_PENDING}),
        # To `executing` again only by the job that holds it, after a crash; to `queued` only by a person.
        S.EXECUTING: frozenset({S.EXECUTING, S.COMPLETED, S.FAILED, S.QUEUED, S.CANCELED}),
        S.FAILED: frozenset({S.QUEUED}),
        S.COMPLETED: frozenset(),
        S.REJECTED: frozenset(),
        S.EXPIRED: frozenset(),
        S.CANCELED: frozenset(),
    }
)

FINISHED = frozenset({S.COMPLETED, S.FAILED, S.REJECTED, S.EXPIRED, S.CANCELED})
"""Nothing happens any more unless a person asks for it."""
OPEN = frozenset(S) - FINISHED


def is_legal(from_: S, to: S) -> bool:
    return to in LEGAL[from_]
