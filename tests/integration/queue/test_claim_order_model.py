"""The claim order against a small model that knows nothing of databases, batches or indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from sqlalchemy import delete, update

from postroom.db import Database, Dialect, Tx, connect
from postroom.db.tables.queue import jobs, queue_guards
from postroom.domain.clock import ManualClock
from postroom.domain.terms import TIERS, Tier
from postroom.queue import ClaimedJob, JobQueue, JobState, NewJob, QueueName
from postroom.queue.job import Settlement
from postroom.queue.marks import Marks
from tests.support.databases import DatabaseFactory
from tests.support.queues import LEASE, make_queue, take_turn

T = TypeVar("T")
LIMIT = 3


@dataclass
class ModelJob:
    queue: QueueName
    tier: Tier
    priority: int
    accepted: int
    not_before: datetime
    max_attempts: int = 5
    state: JobState = JobState.QUEUED
    attempts: int = 0
    lease_ends: datetime | None = None


@dataclass
class Model:
    """Serves one job after another, by the letter of the rule, over a plain list."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    runs: dict[tuple[QueueName, Tier], int] = field(default_factory=dict)

    def claim(self, free: int, now: datetime) -> list[str]:
        self.expire(now)
        served: list[str] = []
        turn = [QueueName.LIVE, QueueName.WORK]
        while len(served) < free and turn:
            queue = turn.pop(0)
            if job_id := self.serve(queue, now):
                served.append(job_id)
                turn.append(queue)
        while len(served) < free and (job_id := self.serve(QueueName.HISTORY, now)):
            served.append(job_id)
        return served

    def serve(self, queue: QueueName, now: datetime) -> str | None:
        ripe = {
            job_id: job
            for job_id, job in self.jobs.items()
            if job.queue is queue and job.state is JobState.QUEUED and job.not_before <= now
        }
        if not ripe:
            return None
        tier = self.next_tier(queue, {job.tier for job in ripe.values()})
        for higher in TIERS[: TIERS.index(tier)]:
            self.runs[queue, higher] = 0
        self.runs[queue, tier] = self.runs.get((queue, tier), 0) + 1
        line = {job_id: job for job_id, job in ripe.items() if job.tier is tier}
        chosen = min(line, key=lambda job_id: (-line[job_id].priority, line[job_id].accepted))
        job = self.jobs[chosen]
        job.state, job.attempts, job.lease_ends = JobState.RUNNING, job.attempts + 1, now + LEASE
        return chosen

    def next_tier(self, queue: QueueName, waiting: set[Tier]) -> Tier:
        for tier in reversed(TIERS):
            lower = [other for other in TIERS[TIERS.index(tier) + 1 :] if other in waiting]
            if self.runs.get((queue, tier), 0) >= LIMIT and lower:
                return lower[0]
        return next(tier for tier in TIERS if tier in waiting)

    def expire(self, now: datetime) -> None:
        for job in self.jobs.values():
            if job.state is JobState.RUNNING and job.lease_ends is not None and job.lease_ends < now:
                job.state = JobState.QUEUED if job.attempts < job.max_attempts else JobState.FAILED


class ClaimOrder(RuleBasedStateMachine):
    url: str

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.clock = ManualClock()
        self.model = Model()
        self.held: dict[str, ClaimedJob] = {}
        self.accepted = self.workers = 0

    @initialize()
    def start(self) -> None:
        self.open()
        self.do(self.database.write(_empty))

    def open(self) -> None:
        self.database: Database = self.do(connect(self.url))
        self.queue: JobQueue = make_queue(self.database, self.clock)
        self.marks = Marks(step=1) if self.database.dialect is Dialect.POSTGRESQL else None

    def do(self, action: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(action)

    @rule(
        queue=st.sampled_from(QueueName),
        tiers=st.lists(st.sampled_from(Tier), min_size=1, max_size=8),
        priority=st.integers(-2, 2),
        delay=st.sampled_from([0, 0, 0, 30]),
    )
    def enqueue(self, queue: QueueName, tiers: list[Tier], priority: int, delay: int) -> None:
        priority = priority if queue is QueueName.WORK else 0
        not_before = self.clock.now() + timedelta(seconds=delay)
        new = [NewJob("noop", queue=queue, tier=tier, priority=priority, not_before=not_before) for tier in tiers]
        for job, answer in zip(new, self.do(self.queue.enqueue(*new)), strict=True):
            self.accepted += 1
            self.model.jobs[answer.job_id] = ModelJob(job.queue, job.tier, priority, self.accepted, not_before)

    @rule(free=st.integers(1, 12))
    def claim(self, free: int) -> None:
        self.workers += 1  # each claim is another worker's, so that leases can be seen to pass on
        worker = f"w{self.workers}"
        turn = self.do(take_turn(self.queue, free, guard_limit=LIMIT, worker=worker, marks=self.marks))
        assert [job.id for _, job in turn.claimed] == self.model.claim(free, self.clock.now())
        self.held.update({job.id: job for _, job in turn.claimed})

    @precondition(lambda self: self.held)
    @rule(choice=st.randoms(use_true_random=False), state=st.sampled_from(["completed", "failed", "retry", "release"]))
    def settle(self, choice: Any, state: str) -> None:
        job = self.held.pop(choice.choice(sorted(self.held)))
        later = self.clock.now() + timedelta(seconds=20)
        settlement = {
            "completed": Settlement(JobState.COMPLETED, job.attempt),
            "failed": Settlement(JobState.FAILED, job.attempt, error="no"),
            "retry": Settlement(JobState.QUEUED, job.attempt, not_before=later),
            "release": Settlement(JobState.QUEUED, job.attempt - 1),
        }[state]
        turn = self.do(take_turn(self.queue, settlements=[(job, settlement)]))
        known = self.model.jobs[job.id]
        still_ours = known.state is JobState.RUNNING and known.attempts == job.attempt
        assert turn.refused == (set() if still_ours else {job.id})
        if still_ours:
            known.state, known.attempts = settlement.state, settlement.attempts
            known.not_before = settlement.not_before or self.clock.now()

    @rule(seconds=st.sampled_from([1.0, 25.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def restart(self) -> None:
        self.do(self.database.close())
        self.open()

    def teardown(self) -> None:
        self.do(self.database.close())
        self.loop.close()


def _empty(tx: Tx) -> None:
    tx.execute(delete(jobs))
    tx.execute(update(queue_guards).values(run_high_priority=0, run_interactive=0))


@pytest.mark.req("PQ-6", "PQ-7", "JB-2", "JB-3")
def test_claims_follow_the_model_through_failures_and_restarts(database_factory: DatabaseFactory) -> None:
    machine = type("Machine", (ClaimOrder,), {"url": database_factory.url()})
    examples = 30 if database_factory.dialect is Dialect.SQLITE else 10  # PostgreSQL takes several times as long
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))
