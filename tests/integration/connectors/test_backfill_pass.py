"""The backfill pass against the stand-in and a real Switchboard: every eligible message once, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select

from postroom.archive.shards.file_archive import FileArchive
from postroom.connectors.switchboard_client import SwitchboardAway
from postroom.contract.backfill import ProgressArguments
from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts, sync_states
from postroom.db.tables.mail import contacts, messages
from postroom.domain.errors import Retryable
from postroom.domain.jobs import CATALOGUE
from postroom.domain.model_costs import CostMeter
from postroom.domain.money import Micros
from postroom.mail.categories import shipped
from postroom.mailboxes.errors import LoginNeeded
from postroom.queue import JobQueue
from postroom.settings import BackfillSettings, RetentionSettings, Settings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.job import find_job
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.switchboard.estimate import Estimator
from postroom.switchboard.retention import RetentionRule
from postroom.switchboard.spending import ModelBudget
from tests.support.connectors import NOW, ConnectorRig, Losses, connector_rig, listed, ms, source_of
from tests.support.mail import OWNER

DAY = timedelta(days=1)
FIRST, LAST = date(2026, 3, 1), date(2026, 3, 31)


class _NoMailboxes:
    def open(self, endpoint_identity: str) -> Any:
        raise AssertionError("the source was asked")


def at(day: date, seconds: float = 0) -> int:
    return ms(datetime(day.year, day.month, day.day, tzinfo=UTC)) + int(seconds * 1_000)


@asynccontextmanager
async def month_of(count: int, database: Database, path: Path, **options: Any) -> AsyncIterator[ConnectorRig]:
    """So many letters spread over March, many of them in the same second."""
    dice = random.Random(count)
    mails = [listed(number, at(FIRST, dice.randrange(0, 31 * 86_400, 20_000))) for number in range(count)]
    async with connector_rig(source_of(mails), database, path, **options) as stage:
        yield stage


def eligible(stage: ConnectorRig, first: date = FIRST, last: date = LAST) -> dict[str, int]:
    start, end = at(first), at(last + DAY)
    left_out = {"SENT", "DRAFT", "SPAM", "TRASH"}
    return {
        str(mail["id"]): int(str(mail["internal_date"]))
        for mail in stage.sim.control.truth(hashes=False)
        if start <= int(str(mail["internal_date"])) < end and not left_out & set(mail["label_ids"])  # type: ignore[call-overload]
    }


@pytest.mark.req("BF-12", "BF-13", "BF-14")
async def test_a_month_comes_in_newest_first_and_both_days_count(database: Database, tmp_path: Path) -> None:
    edges = [
        listed(1, at(FIRST) - 1),
        listed(2, at(FIRST)),
        listed(3, at(LAST + DAY) - 1),
        listed(4, at(LAST + DAY)),
        listed(5, at(date(2026, 3, 10)), labels=("SENT",)),
        listed(6, at(date(2026, 3, 10)), labels=("DRAFT",)),
        listed(7, at(date(2026, 3, 10)), labels=("SPAM",)),
        listed(8, at(date(2026, 3, 10)), labels=("TRASH",)),
        *(listed(10 + number, at(date(2026, 3, 10), number // 3)) for number in range(130)),
    ]
    async with connector_rig(source_of(edges), database, tmp_path) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        outcome = await stage.passes.backfill()
        expected = eligible(stage)
        rows = await stage.rows()
        assert (outcome.status, outcome.processed, outcome.skipped) == ("completed", 132, 0)
        assert set(rows) == set(expected)
        order = [row.external_event_id for row in sorted(rows.values(), key=lambda row: row.id)]
        dates = [expected[each] for each in order]
        assert dates == sorted(dates, reverse=True)
        assert {row.backfill_job_id for row in rows.values()} == {job_id}
        job = await stage.job(job_id)
        assert (job.status, job.rows_processed, job.rows_skipped) == ("completed", 132, 0)
        queue = await stage.queue()
        assert {each.queue_name for each in queue} == {"history"}


@pytest.mark.req("BF-12")
async def test_what_is_left_out_comes_when_asked_for(database: Database, tmp_path: Path) -> None:
    labels = ("SENT", "SPAM", "TRASH", "INBOX")
    mails = [listed(number, at(FIRST, number), labels=(label,)) for number, label in enumerate(labels)]
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        await stage.create_job(FIRST, LAST, includes=["sent", "trash"])
        assert (await stage.passes.backfill()).processed == 3


@pytest.mark.req("BF-20", "BF-16")
async def test_bodies_are_fetched_only_for_what_is_taken_in_whole(database: Database, tmp_path: Path) -> None:
    bulk = {"List-Unsubscribe": "<https://x.example/off>", "Precedence": "bulk"}
    mails = [
        *(listed(number, at(FIRST, number), subject="Your receipt", sender="shop@x.example") for number in range(3)),
        *(listed(10 + number, at(FIRST, 100 + number), headers=bulk) for number in range(4)),
        *(listed(20 + n, at(FIRST, 200 + n), labels=("CATEGORY_PROMOTIONS",), headers=bulk) for n in range(5)),
    ]
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        await stage.create_job(FIRST, LAST)
        outcome = await stage.passes.backfill()
        assert (outcome.processed, outcome.skipped) == (7, 5)
        tiers = [row.ingestion_tier for row in (await stage.rows()).values()]
        assert (tiers.count("full"), tiers.count("metadata")) == (3, 4)
        assert stage.sim.control.state().calls["messages.get"] == 12 + 3, "headers of all, bodies of three"


@pytest.mark.req("BF-16")
async def test_categories_select_by_headers_before_any_body_is_fetched(database: Database, tmp_path: Path) -> None:
    box = GeneratedMailbox(messages=700, seed=5, email=OWNER)
    async with connector_rig(box, database, tmp_path) as stage:
        truth = {str(mail["id"]): mail for mail in stage.sim.control.truth(hashes=False)}
        await stage.create_job(date(2000, 1, 1), date(2027, 1, 1), target_categories=["finance"])
        outcome = await stage.passes.backfill()
        rows = await stage.rows()
        left_out = {"SENT", "DRAFT", "SPAM", "TRASH"}
        wanted = {
            key
            for key, mail in truth.items()
            if mail["category"] == "finance" and not left_out & set(mail["label_ids"])  # type: ignore[call-overload]
        }
        assert outcome.status == "completed"
        assert len(wanted & set(rows)) >= 0.9 * len(wanted)
        assert len(wanted & set(rows)) >= 0.85 * len(rows)
        assert stage.sim.control.state().calls["messages.get"] < 700, "the source's own search narrows first"


@pytest.mark.req("BF-16")
async def test_each_category_comes_from_its_own_first_day_on(database: Database, tmp_path: Path) -> None:
    receipt = {"subject": "Your receipt", "sender": "billing@shop.example"}
    flight = {"subject": "Your flight itinerary", "sender": "booking@airline.example"}
    days = [date(2026, 3, 5), date(2026, 3, 14), date(2026, 3, 15)]
    mails = [
        listed(2 * n + k, at(day), **parts) for n, day in enumerate(days) for k, parts in enumerate((receipt, flight))
    ]
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        given = {"target_categories": ["finance", "travel"], "category_from": {"travel": "2026-03-15"}}
        await stage.create_job(FIRST, LAST, **given)
        assert (await stage.passes.backfill()).status == "completed"
        subjects = sorted(row.subject for row in (await stage.rows()).values())
        assert subjects == ["Your flight itinerary", *["Your receipt"] * 3]


@pytest.mark.req("BF-19")
@pytest.mark.parametrize("walked_to", [LAST + DAY, FIRST])
async def test_an_estimate_counted_in_the_archive_equals_what_the_job_then_takes(
    database: Database, tmp_path: Path, walked_to: date
) -> None:
    """Also where the watermark has not passed the days yet, and the account's changes are followed since the walk."""
    mails = [
        listed(1, at(FIRST, 1), sender="jo.doe@gmail.com"),
        listed(2, at(FIRST, 2), headers={"List-Id": "<news.example>", "Precedence": "bulk"}),
        listed(3, at(FIRST, 3), sender="jodoe@gmail.com, stranger@x.example"),
        listed(4, at(FIRST, 4), sender="stranger@x.example"),
        listed(5, at(FIRST, 5), labels={"DRAFT"}),
        listed(6, at(FIRST, 6), labels={"SENT"}),
        *(listed(10 + n, at(FIRST, 10 + n), subject="Your receipt", sender="billing@shop.example") for n in range(5)),
    ]
    friend = {"address": "jo.doe@gmail.com", "source": "manual"}
    async with connector_rig(source_of(mails), database, tmp_path) as stage:
        await database.write(lambda tx: tx.execute(contacts.insert().values(**friend, added_at=NOW)))
        await stage.create_job(FIRST, LAST, includes=["drafts", "sent"])
        await stage.passes.backfill()  # brings all of it into the archive
        await database.write(lambda tx: tx.execute(delete(messages)))
        await database.write(lambda tx: walked(tx, walked_to))
        await stage.passes.live()
        stage.passes.contacts.replace(stage.clock.now(), ["jo.doe@gmail.com"])
        names = ["relationship", "finance"]
        wanted = NewBackfill("gmail", stage.sim.email, FIRST, LAST, names)
        kept = RetentionRule.from_settings(RetentionSettings())
        place = FileArchive(tmp_path / "archive")
        budget = ModelBudget(JobQueue(database, CATALOGUE, stage.clock), Settings())
        judge = Estimator(budget, place, _NoMailboxes(), shipped(), CostMeter(None, 1), kept)
        counts = (await judge.of(wanted)).counts
        await stage.create_job(FIRST, LAST, target_categories=names)
        outcome = await stage.passes.backfill()
        assert counts.is_exact
        assert (counts.messages, counts.left_out) == (outcome.processed, outcome.skipped)
        assert counts.messages == len(await stage.rows())


@pytest.mark.req("BF-13")
async def test_what_the_archive_has_is_not_fetched_again(database: Database, tmp_path: Path) -> None:
    async with month_of(40, database, tmp_path) as stage:
        await stage.create_job(FIRST, LAST)
        await stage.passes.backfill()
        fetched = stage.sim.control.state().calls["messages.get"]
        job_id = await stage.create_job(FIRST, LAST)
        outcome = await stage.passes.backfill()
        assert (outcome.job_id, outcome.processed) == (job_id, 40), "known mail is done, and counted for this job too"
        assert stage.sim.control.state().calls["messages.get"] == fetched + 40, "headers, no bodies"
        assert len(await stage.rows()) == 40
        assert len(await stage.queue()) == 40


@pytest.mark.req("BF-16")
@pytest.mark.parametrize(("walked_to", "asked"), [(LAST + DAY, 0), (LAST, 40)])
async def test_where_the_archive_holds_the_days_the_source_is_not_asked(
    database: Database, tmp_path: Path, walked_to: date, asked: int
) -> None:
    async with month_of(40, database, tmp_path) as stage:
        await stage.create_job(FIRST, LAST)
        await stage.passes.backfill()
        await database.write(lambda tx: tx.execute(delete(messages)))
        await database.write(lambda tx: walked(tx, walked_to))
        before = dict(stage.sim.control.state().calls)
        job_id = await stage.create_job(FIRST, LAST)
        outcome = await stage.passes.backfill()
        assert (outcome.job_id, outcome.status, outcome.processed) == (job_id, "completed", 40)
        calls = stage.sim.control.state().calls
        assert calls["messages.get"] - before["messages.get"] == asked
        assert (calls["messages.list"] > before["messages.list"]) is bool(asked)
        assert set(await stage.rows()) == set(eligible(stage))


def walked(tx: Tx, day: date) -> None:
    """As sync leaves it when its watermark has reached this day."""
    [account_id] = tx.execute(select(accounts.c.id)).scalars()
    mark, times = at(day) // 1_000, {"walk_started_at": NOW, "updated_at": NOW}
    places = {"until": mark, "frontier": mark, "watermark": mark}
    row = {"account_id": account_id, "walk": 1, "compared_walk": 0, "granularity": "month", "counters": "{}"}
    tx.execute(sync_states.insert().values(**row, **times, **places))


@pytest.mark.req("BF-14", "BF-6")
@pytest.mark.parametrize("action", ["pause", "cancel"])
async def test_an_operators_word_between_two_reports_stops_the_pass(
    database: Database, tmp_path: Path, action: str
) -> None:
    losses = Losses(0, 0)
    async with month_of(90, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        await after_ingests(stage, losses, 3, lambda: stage.calls(f"backfill.{action}", job_id=job_id))
        outcome = await stage.passes.backfill()
        job = await stage.job(job_id)
        assert outcome.status == job.status == {"pause": "paused", "cancel": "cancelled"}[action]
        rows = await stage.rows()
        assert 0 < job.rows_processed == len(rows) <= 20, "what was in is counted, and no more comes in"
        if action == "pause":
            losses.before_call = None
            await stage.calls("backfill.resume", job_id=job_id)
            assert (await stage.passes.backfill()).status == "completed"
            assert (await stage.job(job_id)).rows_processed == len(await stage.rows()) == 90


async def after_ingests(stage: ConnectorRig, losses: Losses, number: int, act: Any) -> None:
    seen = 0

    async def watch(tool: str, arguments: Any) -> None:
        nonlocal seen
        if tool == "ingest":
            seen += 1
            if seen == number:
                await act()

    losses.before_call = watch


@pytest.mark.req("WB-6", "BF-14")
async def test_the_kill_switch_stops_the_pass_and_the_job_goes_on_later(database: Database, tmp_path: Path) -> None:
    losses = Losses(0, 0)
    async with month_of(60, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        await after_ingests(stage, losses, 2, lambda: stage.calls("backfill.switch", enabled=False))
        outcome = await stage.passes.backfill()
        assert outcome.status == "pending"
        assert 0 < (await stage.job(job_id)).rows_processed == len(await stage.rows()) <= 10
        assert (await stage.passes.backfill()).job_id is None
        losses.before_call = None
        await stage.calls("backfill.switch", enabled=True)
        assert (await stage.passes.backfill()).status == "completed"
        job = await stage.job(job_id)
        assert job.rows_processed == len(await stage.rows()) == 60


@pytest.mark.req("BF-5", "BF-15")
async def test_a_lost_lease_stops_the_old_connector_and_loses_nothing(database: Database, tmp_path: Path) -> None:
    losses = Losses(0, 0)
    async with month_of(60, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        slow = stage.passes

        async def overtaken() -> None:
            losses.before_call = None
            stage.clock.advance(200)
            assert (await stage.restart("connector two").backfill()).status == "completed"

        await after_ingests(stage, losses, 3, overtaken)
        assert (await slow.backfill()).status in ("lost", "completed")
        job = await stage.job(job_id)
        assert (job.status, job.rows_processed) == ("completed", 60)
        assert len(await stage.rows()) == len(await stage.queue()) == 60


@pytest.mark.req("BF-8", "BF-9")
async def test_a_reached_cap_stops_the_pass_and_the_next_day_goes_on(database: Database, tmp_path: Path) -> None:
    async with month_of(30, database, tmp_path) as stage:
        job_id = await stage.create_job(FIRST, LAST, daily_cost_cap_cents=1)

        def cap(tx: Tx) -> None:
            job = find_job(tx, job_id, lock=True)
            ledger.stop_at_cap(tx, BackfillSettings(enabled=True), job, Micros(1), stage.clock.now())

        await stage.bench.database.write(cap)
        assert (await stage.passes.backfill()).job_id is None
        stage.clock.advance(86_400)
        assert (await stage.passes.backfill()).status == "completed"
        assert len(await stage.rows()) == (await stage.job(job_id)).rows_processed == 30


@pytest.mark.req("BF-4", "BF-10")
async def test_a_job_whose_hour_is_full_lets_the_next_one_of_the_mailbox_work(
    database: Database, tmp_path: Path
) -> None:
    async with month_of(26, database, tmp_path) as stage:
        began = stage.clock.now()
        first = await stage.create_job(FIRST, LAST, rate_limit_per_hour=20)
        second = await stage.create_job(FIRST, LAST, includes=["sent"], rate_limit_per_hour=4)
        outcome = await stage.passes.backfill()
        assert (outcome.job_id, outcome.status, outcome.processed) == (first, "pending", 20)
        assert outcome.retry_after == 3_600
        outcome = await stage.passes.backfill()
        assert (outcome.job_id, outcome.status) == (second, "pending"), "20 are known, 4 of the others fill its hour"
        assert (await stage.passes.backfill()).job_id is None, "both wait for their hour"
        while (await stage.job(second)).status != "completed":
            stage.clock.advance(600)
            await stage.passes.backfill()
        assert (await stage.job(first)).status == "completed"
        assert stage.clock.now() - began >= timedelta(hours=1)
        assert len(await stage.rows()) == (await stage.job(first)).rows_processed == 26


@pytest.mark.req("BF-10")
async def test_a_job_that_just_fills_its_hour_does_not_wait_for_the_next_to_be_completed(
    database: Database, tmp_path: Path
) -> None:
    async with month_of(20, database, tmp_path, progress_interval=10) as stage:
        await stage.create_job(FIRST, LAST, rate_limit_per_hour=20)
        outcome = await stage.passes.backfill()
        assert (outcome.status, outcome.processed) == ("completed", 20)


@pytest.mark.req("BF-15", "BF-13", "BF-6")
@pytest.mark.parametrize("seed", range(3))
async def test_lost_and_repeated_calls_lose_and_double_nothing(database: Database, tmp_path: Path, seed: int) -> None:
    losses = Losses(seed, 0.08)
    async with month_of(80, database, tmp_path, losses=losses, progress_interval=7) as stage:
        stage.sim.control.add_fault(FaultRule(fault=GmailFault(kind="error"), method="*", probability=0.03, seed=seed))
        job_id = await stage.create_job(FIRST, LAST)
        await until_ended(stage, job_id)
        job = await stage.job(job_id)
        assert losses.lost
        assert (job.status, job.rows_processed, job.rows_skipped) == ("completed", 80, 0)
        assert set(await stage.rows()) == set(eligible(stage))
        assert len(await stage.queue()) == 80


@pytest.mark.req("BF-6", "BF-15")
@pytest.mark.parametrize("lost", range(1, 5))
async def test_a_report_whose_answer_is_lost_counts_once_however_often_it_is_repeated(
    database: Database, tmp_path: Path, lost: int
) -> None:
    """Also on the way out, when what is done is told once more."""
    losses = Losses(0, 0)
    async with month_of(30, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        losses.answers_to_lose["backfill.progress"] = lost
        await until_ended(stage, job_id)
        job = await stage.job(job_id)
        assert (job.status, job.rows_processed, job.rows_skipped) == ("completed", 30, 0)


async def until_ended(stage: ConnectorRig, job_id: str) -> None:
    while (await stage.job(job_id)).status in ("pending", "active"):
        try:
            await stage.passes.backfill()
        except Retryable:
            stage.clock.advance(200)
        stage.restart()
        if (await stage.job(job_id)).status == "active":
            stage.clock.advance(200)


@pytest.mark.req("BF-15")
async def test_live_mail_that_arrives_meanwhile_changes_nothing(database: Database, tmp_path: Path) -> None:
    losses = Losses(0, 0)
    async with month_of(50, database, tmp_path, losses=losses, progress_interval=5) as stage:
        await stage.passes.live()
        today = NOW.date()
        job_id = await stage.create_job(FIRST, today)
        arrived: list[str] = []

        async def deliver(tool: str, arguments: Any) -> None:
            if tool == "backfill.progress" and len(arrived) < 6:
                arrived.append(stage.deliver("Live"))

        losses.before_call = deliver
        assert (await stage.passes.backfill()).status == "completed"
        before = await stage.rows()
        await stage.passes.live()
        rows = await stage.rows()
        assert len(arrived) == 6
        assert set(rows) == {*eligible(stage), *arrived}
        assert all(rows[each].backfill_job_id is None for each in arrived if each not in before)
        assert (await stage.job(job_id)).rows_processed >= 50


async def test_a_message_that_cannot_be_read_is_passed_over_in_the_end(database: Database, tmp_path: Path) -> None:
    async with month_of(20, database, tmp_path) as stage:
        bad = sorted(eligible(stage))[7]
        stage.sim.control.add_fault(
            FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=frozenset({bad}))
        )
        job_id = await stage.create_job(FIRST, LAST)
        await until_ended(stage, job_id)
        job = await stage.job(job_id)
        assert (job.status, job.rows_processed, job.rows_skipped) == ("completed", 19, 1)


@pytest.mark.req("BF-14")
async def test_a_pass_that_is_cut_off_reports_what_is_done(database: Database, tmp_path: Path) -> None:
    losses = Losses(0, 0)
    async with month_of(60, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)

        async def away() -> None:
            raise SwitchboardAway()

        await after_ingests(stage, losses, 3, away)
        with pytest.raises(SwitchboardAway):
            await stage.passes.backfill()
        job = await stage.job(job_id)
        assert job.status == "active"
        assert 0 < job.rows_processed == len(await stage.rows()) <= 20
        assert job.cursor["place"]["received_ms"] in set(eligible(stage).values())


@pytest.mark.req("BF-14")
async def test_told_to_stop_while_a_batch_is_on_its_way_it_counts_that_batch(
    database: Database, tmp_path: Path
) -> None:
    losses = Losses(0, 0)
    async with month_of(60, database, tmp_path, losses=losses, progress_interval=10) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        task = asyncio.create_task(stage.passes.backfill())

        async def stop() -> None:
            task.cancel()
            await asyncio.sleep(0)

        await after_ingests(stage, losses, 3, stop)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await stage.job(job_id)).rows_processed == len(await stage.rows()) > 20, "two batches and the third"


async def test_a_cursor_of_another_version_ends_the_job_with_the_reason(database: Database, tmp_path: Path) -> None:
    async with month_of(3, database, tmp_path) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        job = await stage.passes.switchboard.backfill_poll()
        assert job is not None
        report = ProgressArguments(
            job_id=job_id, fence=job.fence, report_seq=1, rows_processed=0, rows_skipped=0, cursor={"page": "xyz"}
        )
        await stage.passes.switchboard.backfill_progress(report)
        stage.clock.advance(200)
        assert (await stage.passes.backfill()).status == "error"
        assert "another version" in (await stage.job(job_id)).error


async def test_a_login_that_ran_out_leaves_the_job_to_the_next_who_is_logged_in(
    database: Database, tmp_path: Path
) -> None:
    async with month_of(5, database, tmp_path) as stage:
        job_id = await stage.create_job(FIRST, LAST)
        stage.sim.control.revoke()
        with pytest.raises(LoginNeeded):
            await stage.passes.backfill()
        job = await stage.job(job_id)
        assert (job.status, job.error) == ("active", None), "until its lease runs out; no person has to resume it"


@pytest.mark.req("BF-17")
async def test_a_search_takes_in_at_most_fifty_and_only_once(database: Database, tmp_path: Path) -> None:
    mails = [listed(number, at(FIRST, number), subject=f"Dr. Smith {number}") for number in range(70)]
    async with connector_rig(source_of([*mails, listed(99, at(FIRST))]), database, tmp_path) as stage:
        outcome = await stage.passes.on_demand("subject:smith", 50)
        assert (outcome.ingested, len(outcome.gmail_ids)) == (50, 50)
        again = await stage.passes.on_demand("subject:smith", 10)
        assert (again.ingested, again.duplicates) == (0, 10)
        assert len(await stage.rows()) == 50
