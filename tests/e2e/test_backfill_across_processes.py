"""A backfill job through everything at once: five processes on loopback, killed while they work (BF-5 to BF-15).

Whatever happens, the job completes, every message is taken in once, the counters are the mailbox's own truth, and the
budget of a day is not passed at any moment.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import pytest
from sqlalchemy import func, select

from postroom.db.tables.access import audit_log
from postroom.db.tables.mail import backfill_spend, ingest_inbox, messages
from postroom.db.tables.queue import jobs as queued
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.money import Micros, from_cents, to_cents
from postroom.mail.parsing import parse_headers
from postroom.mail.tier_policy import SEED, Treatment
from postroom.sim.gmail.server import build
from tests.support.databases import DatabaseFactory
from tests.support.deployment import TODAY, YESTERDAY, Deployment, deployment

FIRST, LAST = date(2017, 1, 1), date(2025, 12, 31)
LEFT_OUT = {"DRAFT", "SENT", "SPAM", "TRASH", "CHAT"}
SLOTS = 2
ANSWER = {"confidence": 0.9, "reason": "Simulated.", "needs_approval": False}
DEAR_ANSWERS = {
    "POSTROOM_MODEL__INPUT_PRICE": "0.05",
    "POSTROOM_MODEL__OUTPUT_PRICE": "400",
    "POSTROOM_MODEL__MAX_OUTPUT_TOKENS": "60",
}
"""A few dozen calls use up a cap of cents."""
ONLY_CLASSIFY = {"POSTROOM_RECURRING__LIVE": "off", "POSTROOM_RECURRING__BACKFILL": "off"}
"""The worker leaves the mailbox to the connector."""
PATIENCE = 5
"""So many looks at a job that waits, before a connector is started anew to poll for it."""


@dataclass(frozen=True)
class Expected:
    """What a job over these days is to do with the mailbox, worked out from its source alone."""

    full: frozenset[str]
    metadata: frozenset[str]
    skipped: int


def expected_of(count: int, seed: int) -> Expected:
    source = build(count, seed)
    by_treatment: dict[Treatment, set[str]] = {each: set() for each in Treatment}
    for index in range(count):
        mail = source.summary(index)
        day = datetime.fromtimestamp(mail.internal_date / 1_000, UTC).date()
        if FIRST <= day <= LAST and mail.label_ids.isdisjoint(LEFT_OUT):
            decided = SEED.decide(parse_headers(source.raw(index)), mail.label_ids)
            by_treatment[decided.treatment].add(mail.id)
    full, metadata = frozenset(by_treatment[Treatment.FULL]), frozenset(by_treatment[Treatment.METADATA])
    return Expected(full, metadata, len(by_treatment[Treatment.SKIP]))


@dataclass
class Story:
    place: Deployment
    job_id: str
    cap: Micros
    live: set[str] = field(default_factory=set)
    looks: int = 0
    most_spent: int = 0

    async def look(self) -> None:
        """The budget holds at every moment."""
        spent = max((await self.place.spent_by_day(self.job_id)).values(), default=0)
        assert spent <= self.cap
        self.looks, self.most_spent = self.looks + 1, max(self.most_spent, spent)

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        async def watch() -> None:
            while True:
                await self.look()
                await asyncio.sleep(0.1)

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled() and (error := task.exception()):
                raise error

    async def done(self) -> int:
        job = await self.place.job(self.job_id)
        return int(job.rows_processed + job.rows_skipped)

    async def status(self) -> str:
        return str((await self.place.job(self.job_id)).status)

    async def reaches(self, number: int) -> None:
        async def is_there() -> bool:
            return await self.done() >= number or await self.status() in ("cost_capped", "completed", "error")

        await self.place.until(is_there)

    async def becomes(self, *statuses: str) -> str:
        async def is_so() -> bool:
            return await self.status() in statuses

        await self.place.until(is_so)
        return await self.status()

    async def write(self, number: int) -> None:
        """New mail comes in while history is brought."""
        for _ in range(number):
            self.live.add(await self.place.gmail.deliver(f"Lunch {len(self.live)}?"))

    async def all_live_is_in(self) -> None:
        mine = select(func.count()).select_from(messages).where(messages.c.backfill_job_id.is_(None))

        async def is_in() -> bool:
            return int((await self.place.rows(mine))[0][0]) >= len(self.live)

        await self.place.until(is_in)

    async def all_is_decided(self) -> None:
        waiting = select(func.count()).select_from(queued)
        waiting = waiting.where(queued.c.type == "classify", queued.c.state.in_(("queued", "running")))

        async def is_decided() -> bool:
            return int((await self.place.rows(waiting))[0][0]) == 0

        await self.place.until(is_decided)

    async def nothing_is_reserved(self) -> None:
        """A call that died with its worker is settled at its most once its answer can no longer come."""
        held = select(func.sum(backfill_spend.c.reserved_microdollars))

        async def is_settled() -> bool:
            return not (await self.place.rows(held))[0][0]

        await self.place.until(is_settled)

    async def connector_dies(self) -> None:
        await self.place.connector.kill()
        await self.place.let_leases_run_out()


async def begin(place: Deployment, cap_cents: int) -> Story:
    given = {"connector_type": "gmail", "endpoint_identity": place.gmail.email, "target_categories": []}
    limits = {"rate_limit_per_hour": 100_000, "daily_cost_cap_cents": cap_cents}
    made = await place.ask(
        "create_backfill_job", **given, **limits, date_from=FIRST.isoformat(), date_to=LAST.isoformat()
    )
    return Story(place, str(made["job_id"]), from_cents(cap_cents))


async def examine(story: Story, expected: Expected) -> None:
    """Every message once, counted as it was, paid as it was asked about."""
    place = story.place
    job = await place.job(story.job_id)
    rows = await place.rows(select(messages))
    brought = {row.external_event_id: row for row in rows if row.backfill_job_id == story.job_id}
    assert {key for key, row in brought.items() if row.ingestion_tier == "full"} == expected.full
    assert {key for key, row in brought.items() if row.ingestion_tier == "metadata"} == expected.metadata
    assert {row.external_event_id for row in rows if row.backfill_job_id is None} == story.live
    assert len(rows) == len(brought) + len(story.live) == len(await place.rows(select(ingest_inbox)))
    counted = (job.status, job.rows_processed, job.rows_skipped)
    assert counted == ("completed", len(brought), expected.skipped)
    decided = Counter(row.message_id for row in await place.rows(select(decisions)))
    assert decided == Counter(row.id for row in rows)
    asked = {call.message_id for call in await place.rows(select(model_calls))}
    assert asked <= {row.id for row in rows if row.ingestion_tier == "full"}
    calls = await place.rows(select(model_calls).where(model_calls.c.backfill_job_id == story.job_id))
    assert job.spent_microdollars == sum(call.cost_microdollars for call in calls)
    assert job.cost_spent_cents == to_cents(job.spent_microdollars)
    days = await place.spent_by_day(story.job_id)
    assert sum(days.values()) == job.spent_microdollars, "nothing stays reserved"
    await story.look()


async def waits(story: Story, workers: int = 1) -> dict[str, list[float]]:
    """How long each message waited for its turn, by queue; and that live mail never waited for history. What died with
    its worker began twice, so its beginning says nothing."""
    found = await story.place.rows(select(queued).where(queued.c.type == "classify"))
    history = [job for job in found if job.queue_name == "history"]
    for job in found:
        if job.queue_name == "live" and job.attempts == 1:
            before = [other for other in history if job.created_at < other.started_at < job.started_at]
            assert len(before) <= SLOTS * workers, "no more than what was being claimed at that moment"
    return {
        name: [(job.started_at - job.created_at).total_seconds() for job in found if job.queue_name == name]
        for name in ("live", "history")
    }


async def actions(place: Deployment, job_id: str) -> list[str]:
    query = select(audit_log.c.action).where(audit_log.c.subject_id == job_id).order_by(audit_log.c.id)
    return [row.action.removeprefix("backfill.") for row in await place.rows(query)]


@pytest.mark.req("BF-4", "BF-5", "BF-6", "BF-8", "BF-9", "BF-11", "BF-13", "BF-15", "BF-22", "PL-3")
async def test_paused_capped_and_killed_it_completes_with_every_message_once(
    tmp_path: Path, record_property: Any
) -> None:
    dice = Random(6)
    variables = {"POSTROOM_BACKFILL__DAY_ZONE": YESTERDAY, "POSTROOM_WORKER__CONCURRENCY": str(SLOTS), **ONLY_CLASSIFY}
    async with deployment(tmp_path, 150, seed=6, **variables, **DEAR_ANSWERS) as place:
        answer = {"tool": "none", "arguments": ANSWER, "input_tokens": 1_000, "output_tokens": 40}
        await place.model.control("scripts", pattern=".", answer=answer)
        await place.model.control("faults", kind="slow", seconds=0.05)
        await place.open(CONNECTOR_BACKFILL_PROGRESS_INTERVAL="6")
        connector, switchboard, worker = place.connector, place.switchboard, place.worker
        story = await begin(place, cap_cents=70)
        async with story.watched():
            await asyncio.gather(connector.start(), worker.start())
            await story.reaches(dice.randrange(6, 18))
            await place.ask("backfill.pause", job_id=story.job_id)
            at = await story.done()
            await story.write(2)
            await story.all_live_is_in()
            assert (await story.status(), await story.done() - at <= 12) == ("paused", True)
            await place.ask("backfill.resume", job_id=story.job_id)
            await story.connector_dies()

            await connector.start()
            await story.reaches(dice.randrange(28, 36))
            await story.connector_dies()

            await connector.start()
            await story.reaches(dice.randrange(44, 52))
            await switchboard.kill()
            await switchboard.start()
            await story.becomes("cost_capped")
            await story.write(2)
            await story.all_live_is_in()

            for process in (switchboard, worker, connector):
                await process.kill()
            place.set(POSTROOM_BACKFILL__DAY_ZONE=TODAY)
            await asyncio.gather(switchboard.start(), worker.start())
            await connector.start()
            await story.becomes("active", "completed")
            await story.write(2)
            assert await story.becomes("completed", "cost_capped", "error") == "completed"
            await story.write(1)
            await story.all_live_is_in()
            await story.all_is_decided()
        await examine(story, expected_of(150, 6))
        assert len(await place.spent_by_day(story.job_id)) == 2
        waited = await waits(story)
        record_property("live_wait_s", waited["live"])
        record_property("history_wait_s", waited["history"])
        assert median(waited["live"][-3:]) <= median(waited["history"])
        done = await actions(place, story.job_id)
        assert done[0] == "create"
        assert done[-1] == "complete"
        assert {"pause", "resume", "lease_loss", "cost_cap", "day_turn"} <= set(done)
        assert done.count("lease_loss") >= 1
        for process in (connector, worker, switchboard):
            assert (await process.end())[0] == 0


class Fate:
    """Kills whoever it pleases, brings them back, and sees to it that somebody polls for a job that waits."""

    def __init__(self, story: Story, dice: Random) -> None:
        self._story = story
        self._dice = dice
        self.kills: Counter[str] = Counter()
        self.turns = 0
        self._pending = 0

    async def strikes(self) -> None:
        place = self._story.place
        name = self._dice.choice(("connector", "switchboard", "worker", "second worker"))
        self.kills[name] += 1
        match name:
            case "connector":
                await self._story.connector_dies()
                await place.connector.start()
            case "switchboard":
                await place.switchboard.kill()
                await asyncio.sleep(self._dice.random())
                await place.switchboard.start()
            case _:
                worker = place.worker if name == "worker" else place.second_worker
                await worker.kill()
                await worker.start()

    async def goes_on(self) -> None:
        """What a minute between two polls would bring about, without the minute."""
        status = await self._story.status()
        self._pending = self._pending + 1 if status == "pending" else 0
        if status == "cost_capped" and not self.turns and await self._is_spent():
            await self._turn_day()
        elif self._pending > PATIENCE:
            self._pending = 0
            await self._story.connector_dies()
            await self._story.place.connector.start()

    async def _is_spent(self) -> bool:
        """Not by reservations alone, which come free again."""
        place = self._story.place
        spends = await place.rows(select(backfill_spend).where(backfill_spend.c.job_id == self._story.job_id))
        return all(row.reserved_microdollars == 0 for row in spends)

    async def _turn_day(self) -> None:
        self.turns += 1
        place = self._story.place
        place.set(POSTROOM_BACKFILL__DAY_ZONE=TODAY)
        await self._story.connector_dies()
        processes = (place.switchboard, place.worker, place.second_worker)
        for process in processes:
            await process.kill()
        await asyncio.gather(*(process.start() for process in processes))
        await place.connector.start()


@pytest.mark.chaos
@pytest.mark.timeout(1_800)
@pytest.mark.req("BF-15", "BF-5", "BF-8", "BF-9", "BF-13", "PL-3")
@pytest.mark.parametrize(("count", "cap_cents", "kills"), [(5_000, 250, 12)])
async def test_killed_at_random_a_large_job_ends_the_same(
    tmp_path: Path, database_factory: DatabaseFactory, count: int, cap_cents: int, kills: int, record_property: Any
) -> None:
    url = database_factory.url() if database_factory.dialect == "postgresql" else None
    dice = Random(count)
    expected = expected_of(count, 1)
    variables = {"POSTROOM_BACKFILL__DAY_ZONE": YESTERDAY, "POSTROOM_WORKER__LEASE_S": "3", **ONLY_CLASSIFY}
    variables |= {"POSTROOM_MODEL__TIMEOUT_S": "5", "POSTROOM_WORKER__CONCURRENCY": str(SLOTS)}
    async with deployment(tmp_path, count, seed=1, url=url, **variables) as place:
        answer = {"tool": "none", "arguments": ANSWER, "input_tokens": 1_000, "output_tokens": 600}
        await place.model.control("scripts", pattern=".", answer=answer)
        await place.open()
        story = await begin(place, cap_cents)
        fate = Fate(story, dice)
        async with story.watched():
            await asyncio.gather(place.worker.start(), place.second_worker.start())
            await place.connector.start()
            total = len(expected.full) + len(expected.metadata) + expected.skipped
            strikes = sorted(dice.randrange(total) for _ in range(kills))
            while await story.status() not in ("completed", "error"):
                if strikes and await story.done() >= strikes[0]:
                    strikes.pop(0)
                    await story.write(1)
                    await asyncio.sleep(dice.random())
                    await fate.strikes()
                await fate.goes_on()
                await asyncio.sleep(0.2)
            await story.all_live_is_in()
            await story.all_is_decided()
            await story.nothing_is_reserved()
        await examine(story, expected)
        waited = await waits(story, workers=2)
        record_property("kills", dict(fate.kills))
        record_property("live_wait_s", waited["live"])
        assert (fate.turns, len(await place.spent_by_day(story.job_id)) >= 2) == (1, True)
