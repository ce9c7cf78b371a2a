"""What a worker claims next: a pure decision over what waits and how many slots are free.

A batch of n is exactly the n jobs that n single claims would have taken, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from postroom.domain.tiers import Tier
from postroom.queue.guard import StarvationGuard
from postroom.queue.model import QueueName

FOREGROUND = (QueueName.LIVE, QueueName.WORK)

Heads = Mapping[tuple[QueueName, Tier], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Pick:
    job_id: str
    queue: QueueName
    tier: Tier
    override: bool


@dataclass(frozen=True, slots=True)
class Slots:
    """How many jobs may be claimed; `history` caps the share of the history queue; `first` goes first this time."""

    free: int
    history: int
    first: QueueName = QueueName.LIVE


def plan(slots: Slots, heads: Heads, guards: Mapping[QueueName, StarvationGuard]) -> list[Pick]:
    """Choose jobs in order of service. `heads` holds the first `slots.free` ids of each line, or all."""
    lines = {place: deque(ids) for place, ids in heads.items()}

    def next_of(queue: QueueName) -> Pick | None:
        waiting = [tier for tier in Tier if lines.get((queue, tier))]
        service = guards[queue].choose(waiting)
        if service is None:
            return None
        guards[queue].served(service.tier)
        return Pick(lines[queue, service.tier].popleft(), queue, service.tier, service.override)

    picks: list[Pick] = []
    turns = deque(FOREGROUND)
    if slots.first is not turns[0]:
        turns.rotate(-1)
    while turns and len(picks) < slots.free:
        queue = turns.popleft()
        pick = next_of(queue)
        if pick is not None:
            picks.append(pick)
            turns.append(queue)
    for _ in range(min(slots.history, slots.free - len(picks))):
        pick = next_of(QueueName.HISTORY)
        if pick is None:
            break
        picks.append(pick)
    return picks


def first_after(picks: Iterable[Pick]) -> QueueName:
    """Which foreground queue has the next turn, so that a worker with one slot alternates between them."""
    last = next((pick.queue for pick in reversed(list(picks)) if pick.queue in FOREGROUND), QueueName.WORK)
    return QueueName.WORK if last is QueueName.LIVE else QueueName.LIVE
