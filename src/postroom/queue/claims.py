"""The hot path: settle what is done, claim what is next, in one short transaction.

Stale leases are recovered and scheduled jobs are promoted here too, so that no other process has to be alive for a
killed worker's jobs to run again.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from postroom.db import Tx
from postroom.db.database import bind_time, read_time
from postroom.domain.clock import utc_text
from postroom.domain.jobs import JobState
from postroom.domain.tiers import Tier
from postroom.queue.job import FINISHED, ClaimedJob, QueueName
from postroom.queue.outcome import Settlement
from postroom.queue.plan import Pick, Slots, StarvationGuard, plan
from postroom.queue.sql import Statements, statements

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
        sql = statements(tx.dialect)
        refused = settle_within(tx, settlements, now) if settlements else set()
        if slots is None:
            return ClaimTurn(refused=refused)
        guards = self._lock_guards(tx, sql)
        recovered = self._recover(tx, sql, now, held) if recover else []
        next_ripe = _promote(tx, sql, now)
        claimed = self._claim(tx, sql, now, slots, guards) if slots.free else []
        return ClaimTurn(claimed, refused, recovered, next_ripe)

    def heartbeat(self, tx: Tx, now: datetime, jobs: Iterable[ClaimedJob]) -> set[str]:
        """Extend the leases of these jobs; returns the ids of those that are still ours."""
        sql, fences = statements(tx.dialect), json.dumps({job.id: job.fence for job in jobs})
        ours = {job_id for (job_id,) in tx.rows(sql.held, {"fences": fences})}
        tx.rows(sql.heartbeat, {"fences": fences, **self._lease_from(tx, now)})
        return ours

    def _lease_from(self, tx: Tx, now: datetime) -> dict[str, Any]:
        return {"now": bind_time(tx.dialect, now), "lease_expires_at": bind_time(tx.dialect, now + self.lease)}

    def _lock_guards(self, tx: Tx, sql: Statements) -> dict[QueueName, StarvationGuard]:
        rows = tx.rows(sql.guards)
        return {QueueName(queue): StarvationGuard(self.guard_limit, runs) for queue, *runs in rows}

    def _recover(self, tx: Tx, sql: Statements, now: datetime, held: Collection[str]) -> list[RecoveredJob]:
        """Take back jobs that no worker runs. Jobs in `held` are running, even if a clock jumped; one that we
        let go because the database did not answer, or of whose claim we never heard, is not.

        A heartbeat far in the future was made by a clock that has been set back since: it would hold its job forever.
        """
        absurd = bind_time(tx.dialect, now + _ABSURD_LEASES * self.lease)
        given = {"now": bind_time(tx.dialect, now), "absurd": absurd, "ids": json.dumps([*held])}
        rows = tx.rows(sql.recover, given)
        return [RecoveredJob(job_id, job_type, JobState(state), reason) for job_id, job_type, state, reason in rows]

    def _claim(
        self, tx: Tx, sql: Statements, now: datetime, slots: Slots, guards: Mapping[QueueName, StarvationGuard]
    ) -> list[tuple[Pick, ClaimedJob]]:
        heads = _heads(tx, sql, slots.free)
        if not heads:
            return []
        before = {queue: list(guard.runs) for queue, guard in guards.items()}
        picks = plan(slots, heads, guards)
        for queue, guard in guards.items():
            if guard.runs != before[queue]:
                high, interactive = guard.runs
                run = {"run_high_priority": high, "run_interactive": interactive}
                tx.rows(sql.set_guard, {"queue_name": queue.value, **run})
        ids = json.dumps([pick.job_id for pick in picks])
        claim = {"ids": ids, "worker_id": self.worker_id, **self._lease_from(tx, now)}
        rows = {row[0]: row for row in tx.rows(sql.claim, claim)}
        return [(pick, _claimed_job(pick, rows[pick.job_id], now)) for pick in picks if pick.job_id in rows]


def _heads(tx: Tx, sql: Statements, limit: int) -> dict[tuple[QueueName, Tier], list[str]]:
    lines: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for queue, tier, job_id, priority, seq in tx.rows(sql.heads, {"limit": limit}):
        lines.setdefault((queue, tier), []).append((-priority, seq, job_id))
    return {
        (QueueName(queue), Tier(tier)): [job_id for _, _, job_id in sorted(line)]
        for (queue, tier), line in lines.items()
    }


def _claimed_job(pick: Pick, row: Sequence[Any], now: datetime) -> ClaimedJob:
    job_id, job_type, payload, attempt, max_attempts, fence, queued_at, not_before = row
    since = _since(queued_at, not_before)
    return ClaimedJob(
        id=job_id,
        type=job_type,
        queue=pick.queue,
        tier=pick.tier,
        payload_json=payload,
        attempt=attempt,
        max_attempts=max_attempts,
        fence=fence,
        waited_s=max((now - since).total_seconds(), 0.0),
    )


def _since(queued_at: datetime | str, not_before: datetime | str | None) -> datetime:
    """When a job could first have been claimed."""
    moments = [moment for moment in (read_time(queued_at), read_time(not_before)) if moment is not None]
    return max(moments)


def settle_within(tx: Tx, settlements: Sequence[tuple[ClaimedJob, Settlement]], now: datetime) -> set[str]:
    """Write what became of these jobs; returns the ids that were refused, because their claim is no longer in force."""
    sql = statements(tx.dialect)
    moment = bind_time(tx.dialect, now)
    written: list[Sequence[Any]] = []
    if fences := {job.id: job.fence for job, settlement in settlements if settlement.is_plain_completion}:
        written += tx.rows(sql.complete, {"fences": json.dumps(fences), "now": moment})
    if rows := [_settled_row(job, s, now) for job, s in settlements if not s.is_plain_completion]:
        written += tx.rows(sql.settle, {"rows": json.dumps(rows), "now": moment})
    return {job.id for job, _ in settlements} - {job_id for (job_id,) in written}


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


def _promote(tx: Tx, sql: Statements, now: datetime) -> datetime | None:
    """Make jobs whose time has come claimable; returns when the next one will be."""
    next_ripe = _next_ripe(tx, sql)
    if next_ripe is not None and next_ripe <= now:
        tx.rows(sql.promote, {"now": bind_time(tx.dialect, now)})
        next_ripe = _next_ripe(tx, sql)
    return next_ripe


def _next_ripe(tx: Tx, sql: Statements) -> datetime | None:
    [(moment,)] = tx.rows(sql.next_ripe)
    return read_time(moment)
