"""Tiers from the envelope to the worker: nobody starves, and the doctor is served first (PQ-6, PQ-7, PQ-11)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import select

from postroom.db import Database
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions
from postroom.domain.roles import Role
from postroom.domain.terms import Tier
from postroom.queue import JobContext
from postroom.queue.worker import Worker
from postroom.settings import QueueSettings, WorkerSettings
from postroom.sim.model.answers import Script
from tests.support.connectors import connector_rig, source_of
from tests.support.mail import envelope, inline
from tests.support.switchboards import Bench, open_bench
from tests.support.triage import call, classifier, simulated_model

ONE_AT_A_TIME = WorkerSettings(concurrency=1, poll_s=30)
NEWSLETTER = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "bulk"}
DISCUSSION = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "list", "List-Post": "<mailto:l@x.example>"}
CONFIRMATION = "Your appointment with Dr. Smith is confirmed"


async def load(bench: Bench, counts: dict[Tier, int], seed: int) -> list[tuple[str, Tier]]:
    """Mail of all tiers, mixed, through the tool; in the order in which it was accepted."""
    tiers = [tier for tier, count in counts.items() for _ in range(count)]
    Random(seed).shuffle(tiers)
    mails = [(f"mail-{number:04}", tier) for number, tier in enumerate(tiers)]
    async with bench.client(Role.CONNECTOR) as call:
        for start in range(0, len(mails), 100):
            batch = [
                envelope(key, raw=inline(f"Subject: {key}\r\n\r\nText".encode()), policy_tier=tier)
                for key, tier in mails[start : start + 100]
            ]
            results = (await call("ingest", {"envelopes": batch}))["results"]
            assert {result["status"] for result in results} == {"accepted"}
    return mails


def longest_waits(served: list[Tier], counts: dict[Tier, int]) -> dict[Tier, int]:
    """By tier, the most that others were served between two of its turns while it had mail waiting."""
    left, since, longest = Counter(counts), Counter[Tier](), dict.fromkeys(counts, 0)
    for tier in served:
        for each in left:
            since[each] += 1 if left[each] and each is not tier else 0
        longest[tier] = max(longest[tier], since[tier])
        since[tier], left[tier] = 0, left[tier] - 1
    return longest


@pytest.mark.req("PQ-6", "PQ-7")
@pytest.mark.parametrize(("limit", "counts"), [(3, (45, 12, 4)), (10, (230, 24, 3))])
async def test_with_all_tiers_loaded_each_is_served_within_the_bound(
    database: Database, tmp_path: Path, limit: int, counts: tuple[int, int, int]
) -> None:
    loaded = dict(zip(Tier, counts, strict=True))
    async with open_bench(database, tmp_path) as bench:
        mails = await load(bench, loaded, limit)
        rows = await database.read(lambda tx: list(tx.execute(select(messages))))
        key_of = {row.id: row.external_event_id for row in rows}
        served: list[str] = []

        async def record(context: JobContext) -> None:
            served.append(key_of[context.job.payload["message_id"]])

        settings = QueueSettings(max_consecutive_same_tier=limit)
        await Worker(
            bench.queue, {"classify": record}, ONE_AT_A_TIME, settings, random=Random(0), until_idle=True
        ).run()
    tier_of = dict(mails)
    order = [tier_of[key] for key in served]
    assert max(longest_waits(order, loaded).values()) <= limit**2 + limit
    assert order[: limit + 1] == [*[Tier.HIGH_PRIORITY] * limit, Tier.INTERACTIVE]
    for tier in Tier:
        assert [key for key in served if tier_of[key] is tier] == [key for key, each in mails if each is tier], "FIFO"


@pytest.mark.req("PQ-11", "BF-20")
@pytest.mark.parametrize("place", [0, 8, 30])
async def test_at_eight_the_doctors_confirmation_is_decided_first(
    database: Database, tmp_path: Path, place: int
) -> None:
    async with (
        connector_rig(source_of([]), database, tmp_path) as stage,
        simulated_model(tmp_path) as (sim, model),
    ):
        await stage.passes.live()
        burst: list[tuple[str, dict[str, str] | None]] = [(f"Newsletter {number}", NEWSLETTER) for number in range(15)]
        burst += [(f"Question {number}", DISCUSSION) for number in range(15)]
        Random(place).shuffle(burst)
        burst.insert(place, (CONFIRMATION, None))
        for subject, headers in burst:
            stage.deliver(subject, headers=headers, sender="Clinic <office@clinic.example>")
        tally = await stage.passes.live()
        assert (tally.stored, tally.ingested) == (31, 31)
        sim.responder.stage.add_script(Script(pattern=".", answer=call("none")))
        classify = classifier(stage.bench.queue, model)
        await Worker(stage.bench.queue, {"classify": classify}, ONE_AT_A_TIME, random=Random(0), until_idle=True).run()
        subjects = await decided(database)
    assert subjects[0] == CONFIRMATION
    assert subjects[1:] == [subject for subject, headers in burst if headers is DISCUSSION], "and in order after it"
    assert sim.responder.tally.requests == 16, "no newsletter costs anything"
    assert CONFIRMATION in sim.responder.prompts[0]


async def decided(database: Database) -> list[str]:
    """Subjects of mail that was taken in full, in the order of their decisions."""
    query = select(messages.c.subject).join(decisions, decisions.c.message_id == messages.c.id).order_by(decisions.c.id)
    query = query.where(messages.c.ingestion_tier == "full")
    found: list[Any] = await database.read(lambda tx: list(tx.execute(query)))
    return [row.subject for row in found]
