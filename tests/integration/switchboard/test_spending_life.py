"""The ledger of model calls as a state machine: two workers, two backfill jobs and live mail under one ceiling, with
lost and late answers, reports, changed limits, and days that turn. What must hold is checked after every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from sqlalchemy import select

from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import backfill_spend
from postroom.db.tables.triage import model_reservations, model_spend
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.money import Denial, Denied, Micros, NewCall, Reserved
from postroom.domain.terms import BackfillStatus
from postroom.settings import DatabaseSettings
from postroom.switchboard.backfill.job import IllegalTransition
from postroom.switchboard.backfill.leases import JobAssignment
from tests.support.backfills import ANSWER_LIMIT, CENT, OPERATOR, BackfillRig
from tests.support.databases import DatabaseFactory

T = TypeVar("T")
DAY_S = 86_400
LEAST_CAP, CEILING = 4, 12
"""In cents. A call costs at most three, so it fits each empty day."""
LIVE = 2
lines = st.integers(0, LIVE)
"""The first job, the second, or live mail."""


@dataclass
class Line:
    job: JobAssignment | None
    waiting: list[NewCall] = field(default_factory=list)
    """Told to wait, in the order of acceptance."""
    most_cap: int = 0
    reports: int = 0


@dataclass
class Call:
    most: int
    day: date
    line: Line
    paid: int | None = None
    """None: under way, or its answer never came."""


class LedgerLife(RuleBasedStateMachine):
    databases: tuple[Database, Database]  # set by the test: those of two processes
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        clock, email = ManualClock(), f"{new_id()}@example.com"
        self.clock = clock
        self.rigs = [BackfillRig(each, clock, email=email, ceiling_cents=CEILING) for each in self.databases]
        self.calls: dict[str, Call] = {}
        self.lost: set[str] = set()
        self.most_ceiling: dict[date, int] = {}
        self.ceiling = CEILING

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(step)

    @initialize(caps=st.lists(st.integers(LEAST_CAP, 9), min_size=2, max_size=2))
    def begin(self, caps: list[int]) -> None:
        here = self.rigs[0]
        self.run(self._forget())
        self.run(here.prepare())
        self.run(here.service.turn_switch(OPERATOR, True))
        self.set_ceiling(CEILING)
        limits = [{"rate_limit_per_hour": 10_000, "daily_cost_cap_cents": cap} for cap in caps]
        self.lines = [Line(self.run(here.started(**each)), most_cap=each["daily_cost_cap_cents"]) for each in limits]
        self.lines.append(Line(None))

    async def _forget(self) -> None:
        """The day of another example is no part of this one."""
        tables = (model_spend, model_reservations, backfill_spend)
        await self.rigs[0].database.write(lambda tx: [tx.execute(table.delete()) for table in tables])

    @rule(which=lines, most=st.integers(1, 3), worker=st.integers(0, 1))
    def ask(self, which: int, most: int, worker: int) -> None:
        """A new message, or the first of those that wait: none may overtake it."""
        line = self.lines[which]
        mail = line.waiting[0] if line.waiting else self._mail(line)
        self._told(line, mail, most, self.run(self.rigs[worker].reserve(mail, Micros(most * CENT))))

    @rule(which=lines, most=st.integers(1, 3))
    def ask_about_a_later_one(self, which: int, most: int) -> None:
        line = self.lines[which]
        mail = self._mail(line)
        self._told(line, mail, most, self.run(self.rigs[1].reserve(mail, Micros(most * CENT))))

    @rule(first=lines, second=lines, mosts=st.lists(st.integers(1, 3), min_size=4, max_size=4))
    def ask_at_once(self, first: int, second: int, mosts: list[int]) -> None:
        """Both workers, each for two messages, at the same moment."""
        chosen = [self.lines[first], self.lines[second]] * 2
        mails = [self._mail(line) for line in chosen]
        answers = self.run(self._race(mails, mosts))
        for line, mail, most, answer in zip(chosen, mails, mosts, answers, strict=True):
            self._told(line, mail, most, answer, is_race=True)

    async def _race(self, mails: list[NewCall], mosts: list[int]) -> list[Reserved | Denied]:
        asked = zip(self.rigs * 2, mails, mosts, strict=True)
        return await asyncio.gather(*(rig.reserve(mail, Micros(most * CENT)) for rig, mail, most in asked))

    def _mail(self, line: Line) -> NewCall:
        return self.run(self.rigs[0].mail(None if line.job is None else line.job.job_id))

    def _told(self, line: Line, mail: NewCall, most: int, answer: Reserved | Denied, *, is_race: bool = False) -> None:
        if isinstance(answer, Reserved):
            self.most_ceiling[answer.day] = max(self.most_ceiling.get(answer.day, 0), self.ceiling)
            earlier = [each for each in line.waiting if each is not mail]
            assert is_race or line.job is None or not earlier or mail is line.waiting[0], "it overtook"
            self.calls[answer.call_id] = Call(most * CENT, answer.day, line)
            self._leave(line, mail)
        elif answer.denial is Denial.WAIT:
            assert answer.until >= self.clock.now()
            if mail not in line.waiting:
                line.waiting.append(mail)
        else:
            self._leave(line, mail)
            assert line.job is None, "mail of a job that fits an empty day is never given up"

    def _leave(self, line: Line, mail: NewCall) -> None:
        if mail in line.waiting:
            line.waiting.remove(mail)

    @rule(number=st.integers(0, 20), share=st.floats(0, 1), worker=st.integers(0, 1))
    def answer(self, number: int, share: float, worker: int) -> None:
        """In time, late, or once more: only the first answer counts."""
        if self.calls:
            call_id = list(self.calls)[number % len(self.calls)]
            call, paid = self.calls[call_id], int(self.calls[call_id].most * share)
            call.paid = paid if call.paid is None else call.paid
            self.lost.discard(call_id)
            self.run(self.rigs[worker].settle(call_id, Micros(paid)))

    @rule(number=st.integers(0, 20))
    def lose(self, number: int) -> None:
        """The connection broke: nobody knows what the call cost, so it counts at its most."""
        under_way = [call_id for call_id, call in self.calls.items() if call.paid is None]
        if under_way:
            call_id = under_way[number % len(under_way)]
            self.lost.add(call_id)
            self.run(self.rigs[0].settle(call_id, None))

    @rule(which=st.integers(0, 1), cents=st.integers(1, 6))
    def report(self, which: int, cents: int) -> None:
        """A connector that pays for its own reading."""
        line = self.lines[which]
        assert line.job is not None
        line.reports += 1
        reply = self.run(self.rigs[0].report(line.job, cost_spent_cents=cents, report_seq=line.reports))
        view = self.run(self.rigs[0].service.show(line.job.job_id))
        is_reached = view.today.spent >= view.job.cap
        assert not is_reached or reply.status in (BackfillStatus.COST_CAPPED, BackfillStatus.PAUSED)

    @rule(cents=st.integers(CEILING, 3 * CEILING))
    def set_ceiling(self, cents: int) -> None:
        self.ceiling = cents
        change = Actor.of(OPERATOR)
        self.run(self.rigs[0].database.write(lambda tx: self.rigs[0].budget.set_ceiling(tx, cents, change)))

    @rule(which=st.integers(0, 1), cents=st.integers(LEAST_CAP, 12))
    def change_cap(self, which: int, cents: int) -> None:
        line = self.lines[which]
        assert line.job is not None
        line.most_cap = max(line.most_cap, cents)
        self.run(self.rigs[1].service.change(OPERATOR, line.job.job_id, cap_cents=cents))

    @rule(which=st.integers(0, 1), pause=st.booleans())
    def steer(self, which: int, pause: bool) -> None:
        job = self.lines[which].job
        assert job is not None
        act = self.rigs[0].service.pause if pause else self.rigs[0].service.resume
        try:
            self.run(act(OPERATOR, job.job_id))
        except IllegalTransition:
            return

    @rule(on=st.sampled_from([True, True, False]))
    def switch(self, on: bool) -> None:
        self.run(self.rigs[0].service.turn_switch(OPERATOR, on))

    @rule(seconds=st.sampled_from([1, ANSWER_LIMIT.total_seconds(), DAY_S // 2, DAY_S]))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def upkeep(self) -> None:
        self.run(self.rigs[1].service.upkeep())

    @invariant()
    def the_books_are_those_of_the_calls(self) -> None:
        if not hasattr(self, "lines"):
            return
        reservations, days, spends = self.run(self.rigs[1].database.read(_rows))
        for call in reservations:
            truth = self.calls[call.call_id]
            assert (call.most_microdollars, call.day) == (truth.most, truth.day), "always its own day"
            held = truth.most if truth.paid is None else truth.paid
            assert (call.settled_microdollars or call.most_microdollars) == held or call.settled_microdollars == held
            assert call.call_id not in self.lost or call.state == "uncertain"
        assert len(reservations) == len(self.calls)
        for row in days:
            of_day = [call for call in reservations if call.day == row.day]
            of_jobs = [call for call in of_day if call.backfill_job_id is not None]
            reserved, settled = row.reserved_microdollars, row.settled_microdollars
            in_backfill = row.backfill_reserved_microdollars, row.backfill_settled_microdollars
            assert (reserved, settled) == _sums(of_day)
            assert in_backfill == _sums(of_jobs)
            assert reserved + settled <= self.most_ceiling.get(row.day, 0) * CENT
            assert sum(in_backfill) <= self.most_ceiling.get(row.day, 0) * CENT * 60 // 100
        for row in spends:
            [line] = [line for line in self.lines if line.job is not None and line.job.job_id == row.job_id]
            mine = [call for call in reservations if (call.backfill_job_id, call.day) == (row.job_id, row.day)]
            assert (row.reserved_microdollars, row.settled_microdollars) == _sums(mine)
            assert row.reserved_microdollars + row.settled_microdollars <= line.most_cap * CENT

    def teardown(self) -> None:
        """Whatever happened: once calls are answered and nothing keeps the jobs, all that waits gets its money."""
        if hasattr(self, "lines"):
            self.switch(True)
            for call_id in [call_id for call_id, call in self.calls.items() if call.paid is None]:
                self.run(self.rigs[0].settle(call_id, Micros(0)))
                self.calls[call_id].paid = 0
            self.lost.clear()
            for _ in range(sum(len(line.waiting) for line in self.lines) + 2):
                self.clock.advance(DAY_S)
                self.upkeep()
                self._serve()
            assert [line.waiting for line in self.lines] == [[], [], []]
            self.the_books_are_those_of_the_calls()

    def _serve(self) -> None:
        for which, line in enumerate(self.lines):
            if line.job is not None and self.run(self.rigs[0].job(line.job.job_id)).status is BackfillStatus.PAUSED:
                self.steer(which, pause=False)
            while line.waiting:
                before = line.waiting[0]
                line.waiting.sort(key=lambda mail: str(mail.queue_job_id))
                self.ask(which, 1, 0)
                self.answer(len(self.calls) - 1, 1.0, 1)
                if line.waiting and line.waiting[0] is before:
                    break


def _rows(tx: Tx) -> Any:
    return [tx.execute(select(table)).all() for table in (model_reservations, model_spend, backfill_spend)]


def _sums(calls: list[Any]) -> tuple[int, int]:
    return sum(_amounts(calls, "reserved")), sum(_amounts(calls, "settled", "uncertain"))


def _amounts(calls: list[Any], *states: str) -> Iterator[int]:
    for call in calls:
        if call.state in states:
            yield call.most_microdollars if call.state == "reserved" else call.settled_microdollars


@pytest.mark.req("BF-6", "BF-8", "BF-9")
def test_nothing_that_happens_to_calls_jobs_or_limits_passes_a_limit_or_loses_a_micro_dollar(
    database_factory: DatabaseFactory,
) -> None:
    with asyncio.Runner() as runner:
        url, how = database_factory.url(), DatabaseSettings(synchronous="normal")
        databases = runner.run(connect(url, how)), runner.run(connect(url, how))
        life = type("Life", (LedgerLife,), {"databases": databases, "runner": runner})
        try:
            run_state_machine_as_test(
                life,
                settings=settings(
                    max_examples=6,
                    stateful_step_count=20,
                    deadline=None,
                    derandomize=True,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            for database in databases:
                runner.run(database.close())
