"""Where the ready jobs of each line begin, on PostgreSQL, so that a claim does not read past what others worked off.

A claim reads the index of ready jobs from the front. What was claimed stays there until it is vacuumed, and nothing is
while a transaction is held open somewhere. So each line has a mark in the database: no ready job of it has a number
below. Marks are read and changed under the lock of the guards, which each claim holds until it commits. Jobs that
become ready again at an old place take the mark back: a claim that recovers or promotes them does so itself, others
leave a row in `queue_returned`, in the same transaction, which the next claim reads first.

What remains are jobs whose transaction drew its number long ago and commits late. Such a transaction has its own
number, an xid, before it draws one: once all transactions are over that had one when a number was the last, that number
and all below it are visible or never will be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from postroom.db import Tx
from postroom.queue.job import QueueName
from postroom.queue.plan import Pick
from postroom.queue.sql import LINES, mark_name

_STEP = 2_000
"""A mark moves by so much at least: to write it costs more than to read past a few."""
_LOOKS_PER_ROUND = 60


class Marks:
    """What one worker knows of the marks of one database."""

    def __init__(self, step: int = _STEP) -> None:
        self.step = step
        self._looks = 0
        self._settled = 0  # every number below is visible or never will be
        self._expected: tuple[int, int] | None = None  # a number, and the first xid that may not have drawn one below
        self._moved = Counter[int]()  # where this worker last moved the mark of a line

    def start_over(self) -> bool:
        """Whether this look for expired leases, which a busy worker makes once a second, is one that takes all marks
        back: a job that was changed by hand, or by an older Postroom, is found too."""
        self._looks += 1
        if self._looks % _LOOKS_PER_ROUND:
            return False
        self._moved.clear()
        return True

    def see(self, tx: Tx, last_number: int, oldest_xid: int, next_xid: int) -> None:
        """The last number drawn, the oldest transaction that was under way after that, and the next one to begin.

        They count from the commit on: before it, a server that fails may forget them, and use numbers again. A replica
        that takes its place may have missed some.
        """
        if last_number < self._settled:
            self._settled, self._expected = 0, None
        if self._expected is not None and self._expected[1] <= oldest_xid:
            self._settled, self._expected = self._expected[0], None
        if self._expected is None:
            tx.after_commit("queue:marks", partial(self._expect, last_number, next_xid))

    async def _expect(self, last_number: int, next_xid: int) -> None:
        self._expected = last_number, next_xid

    def moves(self, heads: Sequence[Sequence[Any]], picks: Iterable[Pick], limit: int) -> list[tuple[str, int]]:
        """Which marks move, and where to, when these are picked of the sorted `heads`, of which each line has the
        first `limit`, or all."""
        due = {line for line in range(len(LINES)) if self._moved[line] + self.step <= self._settled}
        if not due:
            return []
        taken = Counter((pick.queue, pick.tier) for pick in picks)
        moves = []
        for line, rows in groupby(heads, key=itemgetter(0)):
            if line not in due or not taken[LINES[line]]:
                continue
            first = self._first_left([seq for _, _, seq, _ in rows], taken[LINES[line]], LINES[line][0], limit)
            if first is not None and self._moved[line] + self.step <= first:
                self._moved[line] = first
                moves.append((mark_name(*LINES[line]), first))
        return moves

    def _first_left(self, seqs: list[int], taken: int, queue: QueueName, limit: int) -> int | None:
        """The number below which none is left; None if that is not known."""
        if len(seqs) < limit:
            return min([*seqs[taken:], self._settled])
        if queue is QueueName.WORK:  # it has priorities, and jobs of a lower one may have been accepted earlier
            return None
        return min(seqs[taken] if taken < len(seqs) else seqs[-1] + 1, self._settled)
