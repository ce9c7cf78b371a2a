"""The whole life of backfill jobs as a state machine: an operator, two connectors, a clock and a model that is paid
for, all acting at random. What must always hold is checked after every step.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
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
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.money import Denial, Micros, NewCall, Reserved, to_cents
from postroom.domain.roles import Caller
from postroom.domain.terms import BackfillStatus
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
    walked: bool = False
    admitted: list[datetime] = field(default_factory=list)
    mail: list[NewCall] = field(default_factory=list)
    """Taken in and not decided."""
    calls: dict[str, tuple[NewCall, int]] = field(default_factory=dict)
    """Under way: what each is about, and its most."""
    lost: dict[str, int] = field(default_factory=dict)
    """Calls without an answer, each at its most once it is past its deadline."""


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
                self.ingest(job_id)
                self.ask(job_id, cap)
                self.answer(job_id, 1.0)
                self.ingest(job_id)
                self.ask(job_id, 1)
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
            is_done = event is BackfillEvent.RESUME and before.walked_at is not None and not self.truths[job_id].mail
            assert moved.status is (BackfillStatus.COMPLETED if is_done else TRANSITIONS[event].target)

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
        """The jobs that a poll may hand out, oldest first, those that gave up a turn last."""
        now = self.clock.now()
        today = ledger.day_of(now, self.rig.settings.zone)

        def waits(job: BackfillJob) -> bool:
            is_lost = (
                job.status is BackfillStatus.ACTIVE and job.lease_expires_at is not None and job.lease_expires_at <= now
            )
            is_new_day = (
                job.status is BackfillStatus.COST_CAPPED and job.capped_day is not None and job.capped_day < today
            )
            is_pending = job.status is BackfillStatus.PENDING or is_lost or (is_new_day and job.auto_resume)
            return is_pending and job.walked_at is None

        def has_room(job: BackfillJob) -> bool:
            recent = [at for at in self.truths[job.id].admitted if at > now - timedelta(hours=1)]
            return len(recent) < job.rate_limit_per_hour

        def gave_way_at(job: BackfillJob) -> datetime:
            is_pending = job.status is BackfillStatus.PENDING
            return job.turn_ends_at if is_pending and job.turn_ends_at else datetime.min.replace(tzinfo=UTC)

        jobs = [self.job(job_id) for job_id in self.truths]
        return [job.id for job in sorted(jobs, key=gave_way_at) if waits(job) and has_room(job)]

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
        elif asked == "completed":
            assert told is (BackfillStatus.ACTIVE if truth.mail else BackfillStatus.COMPLETED)
            truth.ended_by_connector = truth.walked = True
        elif asked == "error":
            assert told == asked
            truth.ended_by_connector = True
        else:
            assert told in (BackfillStatus.ACTIVE, BackfillStatus.COST_CAPPED, BackfillStatus.PENDING)

    @rule(job_id=jobs)
    def ingest(self, job_id: str) -> None:
        """A message asks to come in."""
        before, is_on = self.job(job_id), self.is_on
        if not self.run(self.rig.admit(job_id)).is_admitted:
            return
        assert before.status is BackfillStatus.ACTIVE
        assert is_on
        self.truths[job_id].admitted.append(self.clock.now())
        self.truths[job_id].mail.append(self.run(self.rig.mail(job_id)))

    @rule(job_id=jobs, most=st.integers(1, 3))
    def ask(self, job_id: str, most: int) -> None:
        """The model is to be asked about the oldest message that is not decided."""
        truth, before, is_on = self.truths[job_id], self.job(job_id), self.is_on
        asked = [mail for mail, _ in truth.calls.values()]
        waiting = [mail for mail in truth.mail if mail not in asked]
        if not waiting:
            return
        answer = self.run(self.rig.reserve(waiting[0], Micros(most * CENT)))
        if isinstance(answer, Reserved):
            assert is_on
            assert before.status in (BackfillStatus.ACTIVE, BackfillStatus.PENDING, BackfillStatus.COMPLETED)
            truth.calls[answer.call_id] = (waiting[0], most * CENT)
        elif answer.denial is Denial.WAIT and self.job(job_id).status is BackfillStatus.COST_CAPPED:
            before_or_now = before.status is BackfillStatus.COST_CAPPED or not truth.calls
            assert before_or_now, "a job is capped only while nothing is under way"

    @rule(job_id=jobs, share=st.floats(0, 1))
    def answer(self, job_id: str, share: float) -> None:
        """The oldest call under way is answered, and its message decided."""
        truth = self.truths[job_id]
        if truth.calls:
            call_id, (mail, most) = next(iter(truth.calls.items()))
            del truth.calls[call_id]
            paid = Micros(int(most * share))
            truth.paid += paid
            self.run(self.rig.settle(call_id, paid))
            truth.mail.remove(mail)
            self.run(self.rig.decide(mail))

    @rule(job_id=jobs)
    def lose(self, job_id: str) -> None:
        """A worker dies with a call under way: past the deadline, the next reservation settles it at its most."""
        truth = self.truths[job_id]
        if truth.calls:
            call_id, (_, most) = next(iter(truth.calls.items()))
            del truth.calls[call_id]
            truth.lost[call_id] = most

    @rule(job_id=jobs, share=st.floats(0, 1))
    def answer_late(self, job_id: str, share: float) -> None:
        truth = self.truths[job_id]
        if truth.lost:
            call_id, most = truth.lost.popitem()
            truth.paid += int(most * share)
            self.run(self.rig.settle(call_id, Micros(int(most * share))))

    @rule(work=works, messages=st.lists(st.integers(1, 3), min_size=1, max_size=5), answers=st.integers(0, 2))
    def work_through(self, work: Work, messages: list[int], answers: int) -> None:
        """A batch: some messages come in, some of them are classified, and the connector reports."""
        for most in messages:
            self.ingest(work.job_id)
            self.ask(work.job_id, most)
        for n in range(answers):
            self.answer(work.job_id, 1.0 - n / 2)
        self.report(work, len(messages), 0, numbered=True, status=None)

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
            under_way = sum(most for _, most in truth.calls.values())
            held = under_way + sum(truth.lost.values())
            assert sum(day.total for day in view.days) == truth.paid + held
            assert under_way <= sum(day.reserved for day in view.days) + view.uncertain <= held
            assert job.spent_microdollars == sum(day.settled for day in view.days)
            assert job.cost_spent_cents == to_cents(job.spent_microdollars)
            assert all(day.total <= job.cap and day.reserved >= 0 for day in view.days)
            assert view.undecided == len(truth.mail)
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
    live(sqlite_factory, start, examples=5, steps=25)


@pytest.mark.req(*PROVEN)
def test_the_same_holds_on_postgresql(postgres_factory: PostgresFactory) -> None:
    live(postgres_factory, BackfillStatus.ACTIVE, examples=5, steps=25)


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
