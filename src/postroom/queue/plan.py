"""What a worker claims next: a pure decision over what waits and how many slots are free, under the starvation guard.

Tiers are served in strict order with a bounded wait: after N services of a tier while a lower one waits, the next
service goes to the highest waiting tier below. With N = 10 and three busy tiers they are served 100 : 10 : 1, and no
job waits for more than N² + N = 110 services. A batch of n is exactly the n jobs that n single claims would have
taken.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import NamedTuple

from postroom.domain.terms import TIERS, Tier
from postroom.queue.job import QueueName


class StarvationGuard:
    """Decides one service after another. Tiers are known by their rank, 0 being the most urgent.

    Its whole memory is `runs`, a count for each tier but the lowest.
    """

    def __init__(self, limit: int, runs: Sequence[int] = (0,) * (len(TIERS) - 1)) -> None:
        self._limit = limit
        self.runs = list(runs)

    def choose(self, lines: Sequence[Sized]) -> int | None:
        """The rank to serve, given what waits in each tier; None if nothing does."""
        for rank in range(len(self.runs) - 1, -1, -1):
            if self.runs[rank] >= self._limit:
                lower = _first_waiting(lines, rank + 1)
                if lower is not None:
                    return lower
        return _first_waiting(lines, 0)

    def served(self, rank: int, times: int = 1) -> None:
        """Remember services. A count stops at the limit: all beyond it mean the same."""
        for higher in range(rank):
            self.runs[higher] = 0
        if rank < len(self.runs) and self.runs[rank] < self._limit:
            self.runs[rank] = min(self.runs[rank] + times, self._limit)


def _first_waiting(lines: Sequence[Sized], start: int) -> int | None:
    for rank in range(start, len(lines)):
        if lines[rank]:
            return rank
    return None


FOREGROUND = (QueueName.LIVE, QueueName.WORK)

Row = str | int
"""How a transaction knows a job that waits: by its id, or by the number of its row."""
Heads = Mapping[tuple[QueueName, Tier], Iterable[Row]]


class Pick(NamedTuple):
    row: Row
    queue: QueueName
    tier: Tier
    override: bool  # a lower tier was served although a higher one waited


class Slots(NamedTuple):
    """How many jobs may be claimed; `history` caps the share of the history queue; `first` goes first this time."""

    free: int
    history: int
    first: QueueName = QueueName.LIVE


_BRIEF_PER_SLOT = 4
_CALM_PER_SLOT = 16
"""So many brief jobs for each slot, none of which came to wait, before more are taken again."""


class Width:
    """How many jobs a worker has in flight: as many as it has slots, and up to four times as many while it finds
    nothing but brief jobs, which share transactions and calls the better the more there are.

    A job that may wait for long holds a slot, so those that wait, for a model or a web site, are never more than the
    slots; a brief job holds one from the moment on at which it says that it will wait. Where every transaction needs a
    connection of its own (`shares` is false), more jobs would only wait for connections.
    """

    def __init__(self, slots: int, *, shares: bool = True) -> None:
        self._slots = slots
        self._most = slots * _BRIEF_PER_SLOT if shares and slots > 1 else slots
        self._calm = slots * _CALM_PER_SLOT
        self.jobs = slots
        self.kept_from_history = max(slots // 4, 1) if slots > 1 else 0
        """Slots that never go to history, so that urgent mail finds a free one even while history is being worked."""

    def claimed(self, free: int, brief: Sequence[bool], holders: int) -> None:
        """So many jobs were asked for, and these were found, while so many others held a slot."""
        self._calm += len(brief)
        is_calm = self._calm >= self._slots * _CALM_PER_SLOT and holders <= self._slots // 2
        if is_calm and all(brief) and 0 < free <= len(brief):
            self.jobs = min(self.jobs * 2, self._most)

    def offers_slot(self, queue: QueueName, holders: Counter[QueueName]) -> bool:
        """Whether a job of this queue may hold a slot beside so many of each queue. If not, jobs that wait are met: no
        more are taken in advance."""
        is_free = sum(holders.values()) < self._slots and (
            queue is not QueueName.HISTORY or holders[queue] < self._slots - self.kept_from_history
        )
        if not is_free:
            self.jobs, self._calm = self._slots, 0
        return is_free


def plan(slots: Slots, heads: Heads, guards: Mapping[QueueName, StarvationGuard]) -> list[Pick]:
    """Choose jobs in order of service. `heads` holds the first `slots.free` of each line, or all."""
    picks: list[Pick] = []
    turns = deque(_Line(queue, heads, guards[queue]) for queue in FOREGROUND)
    if slots.first is not turns[0].queue:
        turns.rotate(-1)
    while turns and len(picks) < slots.free:
        line = turns.popleft()
        if not turns:
            picks += line.serve_rest(slots.free - len(picks))
            break
        pick = line.serve()
        if pick is not None:
            picks.append(pick)
            turns.append(line)
    history = _Line(QueueName.HISTORY, heads, guards[QueueName.HISTORY])
    return picks + history.serve_rest(min(slots.history, slots.free - len(picks)))


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

    def serve_rest(self, count: int) -> list[Pick]:
        """So many services in a row. Where a single tier waits, there is nothing to choose, and all are one step."""
        picks: list[Pick] = []
        while len(picks) < count:
            waiting = [rank for rank, tier in enumerate(self._tiers) if tier]
            if len(waiting) == 1:
                return picks + self._serve_tier(waiting[0], count - len(picks))
            pick = self.serve()
            if pick is None:
                break
            picks.append(pick)
        return picks

    def _serve_tier(self, rank: int, count: int) -> list[Pick]:
        line = self._tiers[rank]
        rows = [line.popleft() for _ in range(min(count, len(line)))]
        self._guard.served(rank, len(rows))
        queue, tier = self.queue, TIERS[rank]
        return [Pick(row, queue, tier, False) for row in rows]


def first_after(picks: Iterable[Pick]) -> QueueName:
    """Which foreground queue has the next turn, so that a worker with one slot alternates between them."""
    last = next((pick.queue for pick in reversed(list(picks)) if pick.queue in FOREGROUND), QueueName.WORK)
    return QueueName.WORK if last is QueueName.LIVE else QueueName.LIVE
