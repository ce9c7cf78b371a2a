"""Backfill over MCP: a dashboard steers, a connector works, and ingest asks switch, rate and budget on the way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.db import Database
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.ids import new_id
from postroom.domain.roles import ProofNeeded, Role
from tests.support.archives import plain_letter
from tests.support.mail import ME, envelope, inline
from tests.support.switchboards import Bench, DirectCalls, open_bench

WANTED = {
    "connector_type": "gmail",
    "endpoint_identity": ME,
    "target_categories": ["finance"],
    "date_from": "2025-01-01",
    "date_to": "2025-12-31",
}
POLL = {"connector_type": "gmail", "endpoint_identity": ME}


@pytest.fixture
async def timed(database: Database, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Bench]:
    async with open_bench(database, tmp_path, clock) as opened:
        await opened.account()
        yield opened


async def begin(bench: Bench, **limits: Any) -> dict[str, Any]:
    """A job that a connector has taken up."""
    async with bench.client(Role.DASHBOARD) as steer:
        made = await steer("create_backfill_job", WANTED, **limits)
        assert made["status"] == "pending"
    async with bench.client() as call:
        job = await call("backfill.poll", POLL)
    assert job["job_id"] == made["job_id"]
    return job


async def bring(call: DirectCalls, job: dict[str, Any], *ids: str, full: bool = True) -> list[dict[str, Any]]:
    sent = [
        envelope(
            one, raw=inline(plain_letter(one)) if full else None, backfill_job_id=job["job_id"], policy_tier="default"
        )
        for one in ids
    ]
    results: list[dict[str, Any]] = (await call("ingest", {"envelopes": sent}))["results"]
    return results


async def brought(bench: Bench) -> list[str]:
    query = select(messages.c.external_event_id).order_by(messages.c.id)
    return await bench.database.read(lambda tx: [row[0] for row in tx.execute(query)])


@pytest.mark.req("BF-2")
async def test_a_job_is_steered_and_worked_on_over_mcp(timed: Bench) -> None:
    job = await begin(timed, rate_limit_per_hour=10, daily_cost_cap_cents=50)
    assert job["params"]["date_from"] == "2025-01-01"
    assert (job["params"]["target_categories"], job["cursor"]) == (["finance"], None)
    async with timed.client() as call:
        results = await bring(call, job, "a", "b")
        assert [result["status"] for result in results] == ["accepted", "accepted"]
        report = {"job_id": job["job_id"], "fence": job["fence"], "rows_processed": 2, "rows_skipped": 1}
        told = await call("backfill.progress", report, cursor={"page": 2}, report_seq=1)
        assert (told["status"], told["backfill_enabled"]) == ("active", True)
        assert (await call("backfill_poll", POLL))["job_id"] is None
    async with timed.client(Role.DASHBOARD) as steer:
        assert await steer("backfill.pause", job_id=job["job_id"]) == {"status": "paused"}
        [listed] = (await steer("backfill.list", status="paused"))["jobs"]
        assert (listed["rows_processed"], listed["rows_skipped"], listed["cursor"]) == (2, 1, {"page": 2})
        shown = await steer("backfill.show", job_id=job["job_id"])
        assert (shown["today"]["reserved"], shown["undecided"]) == (0, 2), "only a model call holds money"
        assert await steer("backfill_resume", job_id=job["job_id"]) == {"status": "pending"}
        assert await steer("backfill.cancel", job_id=job["job_id"]) == {"status": "cancelled"}
        with pytest.raises(BadInput, match="cannot be paused"):
            await steer("backfill.pause", job_id=job["job_id"])
        with pytest.raises(NotFound):
            await steer("backfill.pause", job_id=new_id())
        actions = [entry["action"] for entry in (await steer("audit.list"))["entries"]]
    assert actions == ["backfill.cancel", "backfill.resume", "backfill.pause", "backfill.start", "backfill.create"]


@pytest.mark.req("BF-11")
async def test_backfilled_mail_keeps_its_tier_in_the_queue_of_history(timed: Bench) -> None:
    job = await begin(timed)
    async with timed.client() as call:
        await bring(call, job, "old")
        await call("ingest", envelope("new", raw=inline(plain_letter()), policy_tier="high_priority"))
    query = select(jobs.c.queue_name, jobs.c.policy_tier).where(jobs.c.type == "classify").order_by(jobs.c.seq)
    lines = await timed.database.read(lambda tx: [tuple(row) for row in tx.execute(query)])
    assert lines == [("history", "default"), ("live", "high_priority")]


@pytest.mark.req("BF-8")
async def test_mail_of_a_capped_job_is_refused_and_nothing_of_it_is_stored(timed: Bench) -> None:
    job = await begin(timed, daily_cost_cap_cents=1, rate_limit_per_hour=1_000)
    async with timed.client() as call:
        assert [result["status"] for result in await bring(call, job, "m0")] == ["accepted"]
        report = {"job_id": job["job_id"], "fence": job["fence"], "rows_processed": 1, "rows_skipped": 0}
        told = await call("backfill.progress", report, cost_spent_cents=1, report_seq=1)
        assert told["status"] == "cost_capped"
        again, refused = await bring(call, job, "m0", "m1")
        assert (again["status"], again["duplicate"]) == ("accepted", True)
        assert (refused["request_id"], refused["reason"], refused["job_status"]) == (None, "stopped", "cost_capped")
    assert await brought(timed) == ["m0"]


@pytest.mark.req("BF-10")
async def test_the_limit_of_an_hour_holds_within_a_batch_and_across_it(timed: Bench, clock: ManualClock) -> None:
    job = await begin(timed, rate_limit_per_hour=3)
    async with timed.client() as call:
        results = await bring(call, job, "a", "b", "c", "d", full=False)
        assert [result["status"] for result in results] == ["accepted"] * 3 + ["refused"]
        assert results[3]["reason"] == "wait"
        assert results[3]["retry_after"] > 0
        clock.advance(timedelta(hours=1).total_seconds())
        assert [result["status"] for result in await bring(call, job, "d", full=False)] == ["accepted"]
    assert await brought(timed) == ["a", "b", "c", "d"]


async def test_the_kill_switch_is_felt_at_the_next_call(timed: Bench) -> None:
    job = await begin(timed)
    async with timed.client() as call, timed.client(Role.DASHBOARD) as steer:
        assert (await steer("backfill.switch", enabled=False))["backfill_enabled"] is False
        assert (await call("archive.lookup", endpoint_identity=ME, gmail_ids=[]))["backfill_enabled"] is False
        [refused] = await bring(call, job, "a")
        assert (refused["status"], refused["reason"]) == ("refused", "stopped")
        live = await call("ingest", envelope("live"))
        assert (live["status"], live["backfill_enabled"]) == ("accepted", False)
        assert (await steer("backfill.switch_state"))["changed_by"] == "test"
    assert await brought(timed) == ["live"]


async def test_a_job_that_is_not_there_or_of_another_mailbox_is_named(timed: Bench) -> None:
    job = await begin(timed)
    async with timed.client() as call:
        unknown = envelope("a", backfill_job_id=new_id())
        foreign = envelope("b", identity="you@example.org", backfill_job_id=job["job_id"])
        results = (await call("ingest", {"envelopes": [unknown, foreign, envelope("c")]}))["results"]
    assert [result["status"] for result in results] == ["rejected", "rejected", "accepted"]
    assert {result["error"]["field"] for result in results[:2]} == {"control.backfill_job_id"}
    assert await brought(timed) == ["c"]


@pytest.mark.req("BF-5")
async def test_a_stale_fence_is_told_to_stop(timed: Bench, clock: ManualClock) -> None:
    job = await begin(timed)
    clock.advance(10_000)
    async with timed.client() as call:
        assert (await call("backfill.poll", POLL))["fence"] == job["fence"] + 1
        report = {"job_id": job["job_id"], "fence": job["fence"], "rows_processed": 1, "rows_skipped": 0}
        with pytest.raises(NotAllowed, match="no longer yours"):
            await call("backfill.progress", report)


@pytest.mark.req("BF-23")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("connector_type", "imap"),
        ("endpoint_identity", "you@example.org"),
        ("target_categories", ["gossip"]),
        ("date_from", "2026-01-01"),
        ("rate_limit_per_hour", 0),
        ("daily_cost_cap_cents", -1),
    ],
)
async def test_a_job_that_makes_no_sense_is_refused_by_the_field(timed: Bench, field: str, value: Any) -> None:
    async with timed.client(Role.DASHBOARD) as steer:
        with pytest.raises(BadInput) as refused:
            await steer("create_backfill_job", {**WANTED, field: value})
        assert refused.value.field == field
        assert (await steer("backfill.list"))["jobs"] == []


@pytest.mark.req("BF-2", "BF-8")
async def test_a_cap_above_the_usual_one_needs_the_passphrase_for_a_change_too(timed: Bench) -> None:
    async with timed.client(Role.DASHBOARD) as call:
        job = await call("create_backfill_job", WANTED)
        changed = await call("backfill_change", {"job_id": job["job_id"], "rate_limit_per_hour": 7})
        assert (changed["status"], changed["rate_limit_per_hour"]) == ("pending", 7)
        with pytest.raises(ProofNeeded):
            await call("backfill.change", {"job_id": job["job_id"], "daily_cost_cap_cents": 501})
    async with timed.client(Role.DASHBOARD, is_proved=True) as call:
        changed = await call("backfill.change", {"job_id": job["job_id"], "daily_cost_cap_cents": 501})
        assert changed["daily_cost_cap_cents"] == 501
