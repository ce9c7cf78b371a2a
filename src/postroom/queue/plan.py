"""What a worker claims next: a pure decision over what waits and how many slots are free.

A batch of n is exactly the n jobs that n single claims would have taken, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from postroom.domain.tiers import TIERS, Tier
from postroom.queue.guard import StarvationGuard
from postroom.queue.model import QueueName

FOREGROUND = (QueueName.LIVE, QueueName.WORK)

Heads = Mapping[tuple[QueueName, Tier], Iterable[str]]


class Pick(NamedTuple):
    job_id: str
    queue: QueueName
    tier: Tier
    override: bool  # a lower tier was served although a higher one waited


class Slots(NamedTuple):
    """How many jobs may be claimed; `history` caps the share of the history queue; `first` goes first this time."""

    free: int
    history: int
    first: QueueName = QueueName.LIVE


def plan(slots: Slots, heads: Heads, guards: Mapping[QueueName, StarvationGuard]) -> list[Pick]:
    """Choose jobs in order of service. `heads` holds the first `slots.free` ids of each line, or all."""
    picks: list[Pick] = []
    turns = deque(_Line(queue, heads, guards[queue]) for queue in FOREGROUND)
    if slots.first is not turns[0].queue:
        turns.rotate(-1)
    while turns and len(picks) < slots.free:
        line = turns.popleft()
        pick = line.serve()
        if pick is not None:
            picks.append(pick)
            turns.append(line)
    history = _Line(QueueName.HISTORY, heads, guards[QueueName.HISTORY])
    for _ in range(min(slots.history, slots.free - len(picks))):
        pick = history.serve()
        if pick is None:
            break
        picks.append(pick)
    return picks


class _Line:
    """What waits in one queue, tier by tier."""

    def __init__(self, queue: QueueName, heads: Heads, guard: StarvationGuard) -> None:
        self.queue = queue
        self._guard = guard
        self._tiers = [deque(heads.get((queue, tier), ())) for tier in TIERS]

    def serve(self) -> Pick | None:
        rank = self._guard.choose(self._tiers)
        if rank is None:
            return None
        override = any(self._tiers[:rank])
        self._guard.served(rank)
        return Pick(self._tiers[rank].popleft(), self.queue, TIERS[rank], override)


def first_after(picks: Iterable[Pick]) -> QueueName:
    """Which foreground queue has the next turn, so that a worker with one slot alternates between them."""
    last = next((pick.queue for pick in reversed(list(picks)) if pick.queue in FOREGROUND), QueueName.WORK)
    return QueueName.WORK if last is QueueName.LIVE else QueueName.LIVE
