"""The hot path: settle what is done, claim what is next, in one short transaction.

Stale leases are recovered and scheduled jobs are promoted here too, so that no other process has to be alive for a
killed worker's jobs to run again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from postroom.db import Tx
from postroom.db.database import Statement, bind_time, read_time
from postroom.domain.clock import utc_text
from postroom.domain.jobs import JobState
from postroom.domain.terms import Tier
from postroom.queue.job import FINISHED, ClaimedJob, QueueName, Settlement
from postroom.queue.marks import Marks
from postroom.queue.plan import Heads, Pick, Row, Slots, StarvationGuard, plan
from postroom.queue.sql import LINES, Statements, bind_ids, heads, statements

_ABSURD_LEASES = 10


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A job whose worker went silent; it is queued again, or failed if that was its last attempt."""

    job_id: str
    type: str
    state: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class ClaimTurn:
    """The result of one turn at the database."""

    claimed: list[tuple[Pick, ClaimedJob]] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)  # settlements of jobs that are no longer ours
    recovered: list[RecoveredJob] = field(default_factory=list)
    next_ripe: datetime | None = None


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, for how long, and under which guard."""

    worker_id: str
    lease: timedelta
    guard_limit: int
    marks: Marks | None = None
    """None: there are none, or they are respected, but not moved."""

    def take_turn(
        self,
        tx: Tx,
        now: datetime,
        settlements: Sequence[tuple[ClaimedJob, Settlement]],
        slots: Slots | None,
        *,
        recover: bool = True,
        held: Collection[str] = (),
    ) -> ClaimTurn:
        """Write the settlements, then fill the free slots (`None`: claim nothing). `held`: what is still under way."""
        settling = _settling(tx, settlements, now)
        if slots is None:
            return ClaimTurn(refused=_refused(settlements, tx.batch(*settling, commit=True)))
        sql = statements(tx.dialect)
        read_heads, most = heads(tx.dialect, slots.free)
        # The guards come first: what they are locked for is read after that.
        stale, ripe = self._stale(tx, now, held), {"now": bind_time(tx.dialect, now)}
        answers = tx.batch(
            *settling,
            (sql.guards, {}),
            *([(sql.take_marks_back, {})] if recover and self.marks is not None and self.marks.start_over() else ()),
            *([(text, stale) for text in sql.recover] if recover else ()),
            (sql.promote, ripe),
            (sql.next_ripe, {}),
            read_heads,
        )
        guards, *found, _, [(next_ripe, *xids)], first = answers[len(settling) :]
        recovered = [RecoveredJob(job_id, kind, JobState(state), why) for job_id, kind, state, why in chain(*found)]
        runs = {QueueName(queue): StarvationGuard(self.guard_limit, runs[:2]) for queue, *runs in guards}
        if self.marks is not None:
            self.marks.see(tx, guards[0][-1], *xids)
        claimed = self._claim(tx, sql, now, slots, runs, sorted(first), most)
        refused = _refused(settlements, answers[: len(settling)])
        return ClaimTurn(claimed, refused, recovered, read_time(next_ripe))

    def heartbeat(self, tx: Tx, now: datetime, jobs: Iterable[ClaimedJob]) -> set[str]:
        """Extend the leases of these jobs; returns the ids of those that are still ours."""
        sql, fences = statements(tx.dialect), json.dumps({job.id: job.fence for job in jobs})
        ours = {job_id for (job_id,) in tx.rows(sql.held, {"fences": fences})}
        tx.rows(sql.heartbeat, {"fences": fences, **self._lease_from(tx, now)})
        return ours

    def _lease_from(self, tx: Tx, now: datetime) -> dict[str, Any]:
        return {"now": bind_time(tx.dialect, now), "lease_expires_at": bind_time(tx.dialect, now + self.lease)}

    def _stale(self, tx: Tx, now: datetime, held: Collection[str]) -> dict[str, Any]:
        """Which jobs to take back: those that no worker runs. Jobs in `held` are running, even if a clock jumped; one
        that we let go because the database did not answer, or of whose claim we never heard, is not.

        A heartbeat far in the future was made by a clock that has been set back since: it would hold its job forever.
        """
        absurd = bind_time(tx.dialect, now + _ABSURD_LEASES * self.lease)
        return {"now": bind_time(tx.dialect, now), "absurd": absurd, "ids": bind_ids(tx.dialect, held)}

    def _claim(
        self,
        tx: Tx,
        sql: Statements,
        now: datetime,
        slots: Slots,
        guards: Mapping[QueueName, StarvationGuard],
        first: Sequence[Any],
        most: int,
    ) -> list[tuple[Pick, ClaimedJob]]:
        """`first`: the first jobs of each line, at most so many of one."""
        before = {queue: list(guard.runs) for queue, guard in guards.items()}
        picks = plan(slots, _lines(first), guards)
        if not picks:
            return []
        moved = [(queue, guard.runs) for queue, guard in guards.items() if guard.runs != before[queue]]
        moves: list[Statement] = [
            (sql.set_guard, {"queue_name": queue.value, "run_high_priority": high, "run_interactive": interactive})
            for queue, (high, interactive) in moved
        ]
        if self.marks is not None:
            for line, value in self.marks.moves(first, picks, most):
                moves.append((sql.move_mark, {"line": line, "value": value, "step": self.marks.step}))
        ids = bind_ids(tx.dialect, [pick.row for pick in picks])
        claim = {"ids": ids, "worker_id": self.worker_id, **self._lease_from(tx, now)}
        answers = tx.batch(*moves, *((text, claim) for text in sql.claim), commit=True)
        rows = {row[0]: row for row in answers[len(moves)]}
        waited = _Waits(now)
        return [(pick, _claimed_job(pick, rows[pick.row], waited)) for pick in picks if pick.row in rows]


def _lines(first: Sequence[Any]) -> Heads:
    lines: dict[tuple[QueueName, Tier], list[Row]] = {line: [] for line in LINES}
    for line, _, _, row in first:
        lines[LINES[line]].append(row)
    return lines


class _Waits(dict[tuple[Any, Any], float]):
    """How long jobs have waited, by what their rows say: those enqueued together say the same."""

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self._now = now

    def __missing__(self, said: tuple[Any, Any]) -> float:
        self[said] = max((self._now - _since(*said)).total_seconds(), 0.0)
        return self[said]


def _claimed_job(pick: Pick, row: Sequence[Any], waited: _Waits) -> ClaimedJob:
    _, job_id, job_type, payload, attempt, max_attempts, fence, queued_at, not_before = row
    waited_s = waited[queued_at, not_before]
    return ClaimedJob(job_id, job_type, pick.queue, pick.tier, payload, attempt, max_attempts, fence, waited_s)


def _since(queued_at: datetime | str, not_before: datetime | str | None) -> datetime:
    """When a job could first have been claimed."""
    moments = [moment for moment in (read_time(queued_at), read_time(not_before)) if moment is not None]
    return max(moments)


def settle_within(tx: Tx, settlements: Sequence[tuple[ClaimedJob, Settlement]], now: datetime) -> set[str]:
    """Write what became of these jobs; returns the ids that were refused, because their claim is no longer in force."""
    return _refused(settlements, tx.batch(*_settling(tx, settlements, now)))


def _settling(tx: Tx, settlements: Sequence[tuple[ClaimedJob, Settlement]], now: datetime) -> list[Statement]:
    sql = statements(tx.dialect)
    moment = bind_time(tx.dialect, now)
    completed: dict[tuple[int, str | None], list[str]] = {}
    others: list[tuple[ClaimedJob, Settlement]] = []
    for job, settlement in settlements:
        # Many results at once, each different, are better written as the rows of one statement.
        if settlement.is_completion and (settlement.result_json is None or len(settlements) == 1):
            completed.setdefault((job.fence, settlement.result_json), []).append(job.id)
        else:
            others.append((job, settlement))
    writes: list[Statement] = [
        (sql.complete, {"ids": bind_ids(tx.dialect, ids), "fence": fence, "result": result, "now": moment})
        for (fence, result), ids in completed.items()
    ]
    if others:
        rows = json.dumps([_settled_row(job, settlement, now) for job, settlement in others])
        ids = bind_ids(tx.dialect, [job.id for job, _ in others])
        writes.append((sql.settle, {"rows": rows, "ids": ids, "now": moment}))
    return writes


def _refused(settlements: Iterable[tuple[ClaimedJob, Settlement]], answers: Iterable[Sequence[Any]]) -> set[str]:
    """Those of which no statement has returned the id."""
    return {job.id for job, _ in settlements} - {job_id for rows in answers for (job_id,) in rows}


def _settled_row(job: ClaimedJob, settlement: Settlement, now: datetime) -> dict[str, Any]:
    return {
        "id": job.id,
        "fence": job.fence,
        "state": settlement.state,
        "ready": settlement.state is JobState.QUEUED and settlement.not_before is None,
        "attempts": settlement.attempts,
        "not_before": settlement.not_before and utc_text(settlement.not_before),
        "error": settlement.error,
        "result": settlement.result_json,
        "finished_at": utc_text(now) if settlement.state in FINISHED else None,
    }
