"""The whole life of backfill jobs as a state machine: an operator, two connectors, a clock and a model that is paid
for, all acting at random. What must always hold is checked after every step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from postroom.db import Database, connect
from postroom.domain.backfill import BackfillStatus
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.money import Micros, to_cents
from postroom.domain.roles import Caller
from postroom.settings import DatabaseSettings
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.job import TRANSITIONS, BackfillEvent, BackfillJob, IllegalTransition, is_legal
from postroom.switchboard.backfill.leases import ProgressReport, StaleFence
from tests.support.backfills import CENT, CONNECTOR, OPERATOR, RIVAL, BackfillRig
from tests.support.databases import DatabaseFactory, PostgresFactory, SqliteFactory

T = TypeVar("T")

LEASE_S = 180
HOUR = timedelta(hours=1)


def seldom(rare: T, *often: T) -> st.SearchStrategy[T]:
    """One in ten is the rare one, so that it does not end every story."""
    return st.integers(0, 9).flatmap(lambda n: st.just(rare) if n == 9 else st.sampled_from(often))


@dataclass
class Work:
    """A job in a connector's hands, as the connector believes."""

    job_id: str
    fence: int
    who: Caller
    seq: int = 0
    last_report: dict[str, Any] | None = None


@dataclass
class Truth:
    """What must be in the database, kept apart from it."""

    rows: int = 0
    skipped: int = 0
    cursor: dict[str, Any] | None = None
    fence: int = 0
    ended_by_connector: bool = False
    seen_seq: int = 0
    started_at: datetime | None = None
    paid: int = 0
    admitted: list[datetime] = field(default_factory=list)
    open_refs: dict[str, int] = field(default_factory=dict)


class BackfillLife(RuleBasedStateMachine):
    database: Database  # set by the test
    runner: asyncio.Runner
    start: BackfillStatus

    jobs: Bundle[str] = Bundle("jobs")
    works: Bundle[Work] = Bundle("works")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.rig = BackfillRig(self.database, self.clock, email=f"{new_id()}@example.com", lease_s=LEASE_S)
        self.truths: dict[str, Truth] = defaultdict(Truth)
        self.refs = 0

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(step)

    def job(self, job_id: str) -> BackfillJob:
        return self.run(self.rig.job(job_id))

    @initialize(target=jobs, cap=st.integers(3, 6))
    def begin(self, cap: int) -> str:
        """The story begins in the state `start`, reached by legal steps."""
        status = self.start
        self.run(self.rig.prepare())
        self.run(self.rig.service.turn_switch(OPERATOR, True))
        job_id = self._create(5, cap, True)
        if status is BackfillStatus.PENDING:
            return job_id
        work = self._poll(CONNECTOR)
        match status:
            case BackfillStatus.PAUSED:
                self.operate(job_id, BackfillEvent.PAUSE)
            case BackfillStatus.CANCELLED:
                self.operate(job_id, BackfillEvent.CANCEL)
            case BackfillStatus.COST_CAPPED:
                self.ingest(job_id, cap)
                self.report(work, 1, 0, numbered=True, status=None)
            case BackfillStatus.COMPLETED | BackfillStatus.ERROR:
                self.report(work, 1, 0, numbered=True, status=status)
        assert self.job(job_id).status is status
        return job_id

    @property
    def is_on(self) -> bool:
        return self.run(self.rig.service.switch()).in_force

    @precondition(lambda self: len(self.truths) < 2 and self.is_on)
    @rule(target=jobs, rate=st.integers(1, 5), cap=st.integers(3, 6), auto=st.booleans())
    def create(self, rate: int, cap: int, auto: bool) -> str:
        return self._create(rate, cap, auto)

    def _create(self, rate: int, cap: int, auto: bool) -> str:
        self.clock.advance(1)  # so that "the oldest" is never a draw
        limits = {"rate_limit_per_hour": rate, "daily_cost_cap_cents": cap, "auto_resume": auto}
        job = self.run(self.rig.create(**limits))
        self.truths[job.id] = Truth()
        return job.id

    @rule(job_id=jobs, event=seldom(BackfillEvent.CANCEL, BackfillEvent.PAUSE, BackfillEvent.RESUME))
    def operate(self, job_id: str, event: BackfillEvent) -> None:
        before = self.job(job_id)
        service = self.rig.service
        act = {
            BackfillEvent.PAUSE: service.pause,
            BackfillEvent.RESUME: service.resume,
            BackfillEvent.CANCEL: service.cancel,
        }[event]
        try:
            moved = self.run(act(OPERATOR, job_id))
        except IllegalTransition:
            no_room = event is BackfillEvent.RESUME and before.status is BackfillStatus.COST_CAPPED
            assert no_room or not is_legal(event, before.status)
            assert self.job(job_id) == before
        else:
            assert is_legal(event, before.status)
            assert moved.status is TRANSITIONS[event].target

    @rule(target=works, who=st.sampled_from([CONNECTOR, RIVAL]))
    def get_going(self, who: Caller) -> Any:
        """All obstacles that an operator can remove are removed, and a connector comes."""
        self.turn_switch(True)
        for job_id in self.truths:
            if self.job(job_id).status in (BackfillStatus.PAUSED, BackfillStatus.ERROR):
                self.operate(job_id, BackfillEvent.RESUME)
        return self._poll(who)

    @rule(target=works, who=st.sampled_from([CONNECTOR, RIVAL]))
    def poll(self, who: Caller) -> Any:
        return self._poll(who)

    def _poll(self, who: Caller) -> Any:
        is_on, eligible = self.is_on, self._eligible()
        taken = self.run(self.rig.take(who))
        if not is_on or not eligible:
            assert taken is None
            return multiple()
        assert taken is not None
        assert taken.job_id == eligible[0]
        truth = self.truths[taken.job_id]
        assert taken.fence > truth.fence
        assert taken.cursor == truth.cursor
        truth.fence, truth.seen_seq, truth.ended_by_connector = taken.fence, 0, False
        truth.started_at = truth.started_at or self.clock.now()
        return Work(taken.job_id, taken.fence, who)

    def _eligible(self) -> list[str]:
        """The jobs that a poll may hand out, oldest first."""
        now = self.clock.now()
        today = ledger.day_of(now, self.rig.settings.zone)

        def waits(job: BackfillJob) -> bool:
            is_lost = (
                job.status is BackfillStatus.ACTIVE and job.lease_expires_at is not None and job.lease_expires_at <= now
            )
            is_new_day = (
                job.status is BackfillStatus.COST_CAPPED and job.capped_day is not None and job.capped_day < today
            )
            return job.status is BackfillStatus.PENDING or is_lost or (is_new_day and job.auto_resume)

        return [job_id for job_id in self.truths if waits(self.job(job_id))]

    @rule(
        work=works,
        rows=st.integers(0, 50),
        skipped=st.integers(0, 5),
        numbered=st.booleans(),
        status=seldom("completed", None, "active") | seldom("error", None),
    )
    def report(self, work: Work, rows: int, skipped: int, numbered: bool, status: str | None) -> None:
        work.seq += 1
        values = {
            "rows_processed": rows,
            "rows_skipped": skipped,
            "cursor": {"work": work.fence, "at": work.seq},
            "status": status,
            "report_seq": work.seq if numbered else None,
        }
        work.last_report = values if numbered else None
        self._send(work, values)

    @rule(work=works)
    def report_again(self, work: Work) -> None:
        """The answer to the last report was lost, so it is sent once more."""
        if work.last_report is not None:
            self._send(work, work.last_report)

    def _send(self, work: Work, values: dict[str, Any]) -> None:
        truth, before = self.truths[work.job_id], self.job(work.job_id)
        try:
            reply = self.run(self.rig.service.progress(work.who, ProgressReport(work.job_id, work.fence, **values)))
        except StaleFence:
            assert work.fence != truth.fence
            assert self.job(work.job_id) == before
            return
        assert work.fence == truth.fence
        repeated = values["report_seq"] is not None and values["report_seq"] <= truth.seen_seq
        if repeated or truth.ended_by_connector:
            assert self.job(work.job_id) == before
            return
        truth.rows += values["rows_processed"]
        truth.skipped += values["rows_skipped"]
        truth.cursor = values["cursor"]
        truth.seen_seq = values["report_seq"] or truth.seen_seq
        self._check_reply(before, values["status"], reply.status, truth)

    def _check_reply(self, before: BackfillJob, asked: str | None, told: BackfillStatus, truth: Truth) -> None:
        if before.status is not BackfillStatus.ACTIVE:
            assert told is before.status  # what an operator or the system decided is never overwritten
        elif asked in ("completed", "error"):
            assert told == asked
            truth.ended_by_connector = True
        else:
            assert told in (BackfillStatus.ACTIVE, BackfillStatus.COST_CAPPED, BackfillStatus.PENDING)

    @rule(job_id=jobs, cost=seldom(None, 0, 1, 2, 3))
    def ingest(self, job_id: str, cost: int | None) -> None:
        """A message asks to come in; sometimes nobody knows what it would cost."""
        before, is_on = self.job(job_id), self.is_on
        self.refs += 1
        ref, micros = f"m{self.refs}", None if cost is None else Micros(cost * CENT)
        if not self.run(self.rig.admit(job_id, ref, micros)).is_admitted:
            return
        assert before.status is BackfillStatus.ACTIVE
        assert is_on
        assert micros is not None
        self.truths[job_id].admitted.append(self.clock.now())
        if micros:
            self.truths[job_id].open_refs[ref] = micros

    @rule(work=works, messages=st.lists(st.integers(0, 3), min_size=1, max_size=5), paid=st.integers(0, 2))
    def work_through(self, work: Work, messages: list[int], paid: int) -> None:
        """A batch: some messages come in, some of them are classified, and the connector reports."""
        for cost in messages:
            self.ingest(work.job_id, cost)
        for n in range(paid):
            self.classify(work.job_id, 1.0 - n / 2, settled=True)
        self.report(work, len(messages), 0, numbered=True, status=None)

    @rule(job_id=jobs, share=st.floats(0, 1), settled=st.booleans())
    def classify(self, job_id: str, share: float, settled: bool) -> None:
        """The oldest admitted message is paid for, or given up."""
        truth = self.truths[job_id]
        if not truth.open_refs:
            return
        ref, reserved = next(iter(truth.open_refs.items()))
        del truth.open_refs[ref]
        if settled:
            paid = Micros(int(reserved * share))
            truth.paid += paid
            self.run(self.rig.settle(job_id, ref, paid))
        else:
            self.run(self.rig.release(job_id, ref))

    @rule(seconds=st.sampled_from([1, 30, 90, LEASE_S, 1_800, 3_600, 86_400]))
    def pass_time(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(days=st.integers(0, 1))
    def upkeep(self, days: int) -> None:
        self.clock.advance(days * 86_400)
        self.run(self.rig.service.upkeep())

    @rule(on=seldom(False, True))
    def turn_switch(self, on: bool) -> None:
        self.run(self.rig.service.turn_switch(OPERATOR, on))
        if not on:
            assert all(self.job(job_id).status is not BackfillStatus.ACTIVE for job_id in self.truths)

    @invariant()
    def everything_adds_up(self) -> None:
        for job_id, truth in self.truths.items():
            view = self.run(self.rig.service.show(job_id))
            job = view.job
            assert (job.rows_processed, job.rows_skipped, job.cursor) == (truth.rows, truth.skipped, truth.cursor)
            assert (job.fence, job.started_at) == (truth.fence, truth.started_at)
            assert (job.spent_microdollars, job.cost_spent_cents) == (truth.paid, to_cents(Micros(truth.paid)))
            assert sum(day.reserved for day in view.days) == sum(truth.open_refs.values())
            assert sum(day.settled for day in view.days) == truth.paid
            assert all(day.total <= job.cap and day.reserved >= 0 for day in view.days)
            hours = [sum(a <= b < a + HOUR for b in truth.admitted) for a in truth.admitted]
            assert max(hours, default=0) <= job.rate_limit_per_hour

    @invariant()
    def every_change_of_status_is_legal_and_audited(self) -> None:
        for job_id in self.truths:
            entries = self.run(self.rig.entries(job_id))
            assert entries[0].action == "backfill.create"
            for earlier, later in pairwise(entries):
                before, after = later.before or {}, later.after or {}
                assert before["status"] == (earlier.after or {})["status"]
                event = BackfillEvent(later.action.removeprefix("backfill."))
                assert is_legal(event, BackfillStatus(before["status"]))
                assert after["status"] == TRANSITIONS[event].target
            assert (entries[-1].after or {})["status"] == self.job(job_id).status


PROVEN = ("BF-4", "BF-5", "BF-6", "BF-7", "BF-8", "BF-9", "BF-10", "BF-22", "WB-6")


@pytest.mark.req(*PROVEN)
@pytest.mark.parametrize("start", list(BackfillStatus))
def test_nothing_that_anybody_does_breaks_a_promise_from_any_state(
    sqlite_factory: SqliteFactory, start: BackfillStatus
) -> None:
    live(sqlite_factory, start, examples=8, steps=25)


@pytest.mark.req(*PROVEN)
def test_the_same_holds_on_postgresql(postgres_factory: PostgresFactory) -> None:
    live(postgres_factory, BackfillStatus.ACTIVE, examples=8, steps=25)


def live(factory: DatabaseFactory, start: BackfillStatus, *, examples: int, steps: int) -> None:
    with asyncio.Runner() as runner:
        database = runner.run(connect(factory.url(), DatabaseSettings(synchronous="normal")))
        life = type("Life", (BackfillLife,), {"database": database, "runner": runner, "start": start})
        how = settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(life, settings=how)
        finally:
            runner.run(database.close())
