"""The Overview: what it counts, and what it says needs a person."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import update

from postroom.accounts.account_jobs import job_of
from postroom.db.tables.accounts import accounts
from postroom.db.tables.queue import jobs
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import SYNC
from postroom.domain.money import Micros, NewCall, Reserved
from postroom.domain.terms import Tier
from postroom.queue import NewJob
from postroom.settings import BackfillSettings
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, open_site, text_of


async def test_a_fresh_installation_is_told_what_to_do_first(site: Site) -> None:
    said = text_of((await site.get("/")).text)
    assert "Getting started" in said
    assert "postroom account add gmail" in said
    assert "Nothing needs you" in said


async def test_it_counts_live_mail_of_today_by_tier(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.advance(12 * 3_600)
    async with open_site(tmp_path / "home", clock=clock) as site:
        await scene.add_live_mail(site, {Tier.HIGH_PRIORITY: 1, Tier.DEFAULT: 3}, timedelta(hours=11))
        await scene.add_live_mail(site, {Tier.DEFAULT: 50}, timedelta(hours=13))  # yesterday
        await scene.add_live_mail(site, {Tier.DEFAULT: 50}, backfill_job_id="01990000-0000-7000-8000-000000000009")
        await scene.add_live_mail(site, {Tier.DEFAULT: 50}, direction="outbound")
        mail = (await site.api("GET", "/overview")).json()["mail"]
        assert {each["tier"]: (each["messages"], each["share"]) for each in mail["tiers"]} == {
            "high_priority": (1, "25%"),
            "interactive": (0, "0%"),
            "default": (3, "75%"),
        }
        page = (await site.get("/")).text
        assert 'alt="Mail today by tier: High priority 1 (25%), Interactive 0 (0%), Default 3 (75%)"' in page


async def test_it_says_how_long_mail_waits_in_each_tier(site: Site) -> None:
    await scene.add_served_mail(site, Tier.HIGH_PRIORITY, timedelta(seconds=2))
    await scene.add_served_mail(site, Tier.DEFAULT, timedelta(seconds=90), count=1)
    waiting = {line["tier"]: line for line in (await site.api("GET", "/overview")).json()["waiting"]}
    assert waiting["high_priority"]["median_s"] == pytest.approx(2)
    assert waiting["default"]["slowest_s"] == pytest.approx(90)
    assert waiting["interactive"]["median_s"] is None
    assert "1 min 30 s" in text_of((await site.get("/")).text)


async def test_everything_that_needs_a_person_is_named_with_where_to_see_to_it(tmp_path: Path) -> None:
    async with open_site(tmp_path / "home") as site:
        me = await scene.add_mailbox(site)
        await site.write(
            lambda tx: tx.execute(update(accounts).values(status="failing", last_error="The login was revoked."))
        )
        await scene.add_alert(site, me, "<b>12</b> messages could not be had")
        await scene.add_heartbeat(site, ago=timedelta(hours=1))
        await scene.add_failed_jobs(site, 2)
        await scene.add_backfill_job(site)
        needs = {need["href"]: need["text"] for need in (await site.api("GET", "/overview")).json()["needs"]}
        assert needs["/queue?state=failed"] == "2 jobs failed"
        assert needs["/settings"] == "me@example.org: The login was revoked."
        assert "has not reported for 1 h" in needs["/connectors"]
        assert "have never been exported" in needs["/filters"]
        off = "Backfill is off (the settings do not allow it), and 1 job cannot continue. To turn it on: set"
        assert needs["/backfill"].startswith(off)
        page = (await site.get("/")).text
        assert "&lt;b&gt;12&lt;/b&gt; messages" in page
        assert "<b>12</b>" not in page


async def test_waiting_jobs_that_nobody_takes_are_told_as_a_missing_worker(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        await site.app.queue.enqueue(NewJob("classify"))
        assert (await site.api("GET", "/overview")).json()["needs"] == []
        clock.advance(600)
        (need,) = (await site.api("GET", "/overview")).json()["needs"]
        assert "Start a worker" in need["text"]


async def test_spending_stands_against_the_caps(tmp_path: Path) -> None:
    async with open_site(tmp_path / "home", backfill=BackfillSettings(enabled=True)) as site:
        await scene.add_model_call(site, 1_234_567)
        await scene.add_model_call(site, 1, created_at=site.app.clock.now() - timedelta(days=2))
        await scene.add_backfill_job(site, spent=2_000_000, reserved=500_000, daily_cost_cap_cents=400)
        spending = (await site.api("GET", "/overview")).json()["spending"]
        assert (spending["model_calls"], spending["model_microdollars"]) == (1, 1_234_567)
        (job,) = spending["jobs"]
        assert (job["settled"], job["reserved"], job["cap"]) == (2_000_000, 500_000, 4_000_000)
        said = text_of((await site.get("/")).text)
        assert "Finance me@example.org Active $2.00 of $4.00 + $0.50 reserved" in said
        assert "62%" in said


async def test_processes_that_keep_each_other_from_syncing_are_named_with_what_to_start(tmp_path: Path) -> None:
    async with open_site(tmp_path / "home") as site:
        me = await scene.add_mailbox(site)
        [job] = await site.app.queue.enqueue(job_of(SYNC.name, me))
        for owner, is_told in (
            ("`postroom serve` (process 7 on pc)", True),
            ("`postroom sync run` (process 8)", False),
        ):
            result = json.dumps({"skipped": "It is owned elsewhere.", "archive_owner": owner})
            done = update(jobs).where(jobs.c.id == job.job_id).values(state="completed", result_json=result)
            await site.write(lambda tx, done=done: tx.execute(done))  # type: ignore[misc]
            said = text_of((await site.get("/")).text)
            assert ("no process syncs this mailbox, because" in said) == is_told
            assert ("postroom up" in said) == is_told


@pytest.mark.req("BF-9")
async def test_a_call_that_cost_more_than_it_could_is_an_alert_for_a_day(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        call = NewCall(Micros(10_000), clock.now() + timedelta(seconds=90))
        reserved = await site.write(lambda tx: site.app.budget.reserve(tx, call))
        assert isinstance(reserved, Reserved)
        await site.write(lambda tx: site.app.budget.settle(tx, reserved.call_id, Micros(20_000)))
        [need] = (await site.api("GET", "/overview")).json()["needs"]
        assert (need["level"], need["href"]) == ("bad", "/audit?action=model.overrun")
        assert need["text"].startswith("A model call cost $0.02, more than the $0.01 it could cost")
        clock.advance(86_400)
        assert (await site.api("GET", "/overview")).json()["needs"] == []
