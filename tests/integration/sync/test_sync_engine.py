"""Whole runs against the stand-in, in one process."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing as closing_after
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.history import HistoryLeaseLost, ReaderElsewhere, claim_reader, cursor_of
from postroom.archive.messages import IncomingMail, Provenance
from postroom.db import Database, Tx
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.sources import ListedMail, ListSource
from postroom.sync import slice_ledger
from postroom.sync.engine import SyncEngine
from postroom.sync.slices import DAY_S, oldest_mail
from postroom.sync.state import SyncState, finish_slices
from tests.support.mail import OWNER, letter
from tests.support.sync import SyncRig, cancelled, captured_log, in_virtual_time, letters, settings_with, sync_rig
from tests.support.sync_trace import check

SMALL = settings_with(granularity="week", job_size=20, page_size=50)


async def stored(engine: SyncEngine, messages: int) -> None:
    while engine.progress().stored < messages:
        await asyncio.sleep(0.1)


@pytest.mark.req("SY-1", "SY-8", "SY-14")
async def test_a_sync_brings_the_whole_mailbox_and_moves_the_watermark_to_its_end(
    database: Database, tmp_path: Path
) -> None:
    async with sync_rig(letters(300), database, tmp_path) as world:
        with captured_log() as events:
            engine = world.whole(settings_with(granularity="week"))
            await engine.run(once=True)
        state = await world.state()
        assert world.archived() == world.truth()
        assert not state.is_walking
        assert state.watermark == state.frontier == state.until
        progress = engine.progress()
        assert (progress.stored, progress.bad, progress.messages_total) == (300, 0, 300)
        assert state.counters["processed"] == 300
    trace = check([events])
    assert trace.watermark == state.watermark
    assert trace.moves


@pytest.mark.req("SY-9")
def test_a_sync_that_was_broken_off_goes_on_where_it_stood(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        first = world.engine(SMALL)
        with captured_log() as before:
            running = asyncio.create_task(first.run(once=True))
            await stored(first, 450)
            await cancelled(running)
        stood, asked_for = await world.state(), world.control.state().calls["messages.get"]
        assert 0 < stood.watermark < stood.until
        with captured_log() as after:
            await world.sync(SMALL)
        assert world.archived() == world.truth()
        assert min(event["start"] for event in after if event["event"] == "slice.listed") >= stood.frontier
        in_flight = 8 * world.client.batch_size
        assert world.control.state().calls["messages.get"] <= 600 + in_flight
        assert asked_for >= 450
        assert check([before, after]).watermark == (await world.state()).watermark

    in_virtual_time(letters(600), tmp_path, story)


@pytest.mark.req("SY-16")
def test_mail_that_is_in_the_archive_already_is_not_fetched(tmp_path: Path) -> None:
    source = letters(80)

    async def story(world: SyncRig) -> None:
        taken_out = [
            IncomingMail(source.raw(index), Provenance.TAKEOUT, gmail_id=source.summary(index).id)
            for index in range(0, 80, 2)
        ]
        await world.store.store(taken_out)
        engine = await world.sync(SMALL)
        assert world.control.state().calls["messages.get"] == 40
        assert (engine.progress().known, engine.progress().stored) == (40, 40)
        assert world.archived() == world.truth()

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-1")
def test_a_slice_with_too_many_pages_is_split_while_it_is_listed(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        with captured_log() as events:
            await world.sync(settings_with(granularity="month", page_size=10, max_pages_per_slice=2))
        state = await world.state()
        assert sum(event["event"] == "slice.split" for event in events) > 3
        assert all(event["listed"] <= 20 for event in events if event["event"] == "slice.listed")
        assert world.archived() == world.truth()
        assert check([events]).watermark == state.watermark == state.until

    in_virtual_time(letters(300, apart_s=3_600), tmp_path, story)


@pytest.mark.req("SY-1", "SY-3")
def test_a_mailbox_of_ten_years_is_listed_in_few_requests(tmp_path: Path) -> None:
    source = letters(120, apart_s=30 * DAY_S)

    async def story(world: SyncRig) -> None:
        all_mail = [
            IncomingMail(source.raw(index), Provenance.TAKEOUT, gmail_id=source.summary(index).id)
            for index in range(120)
        ]
        await world.store.store(all_mail)
        world.control.add_fault(FaultRule(fault=GmailFault(kind="latency", seconds=0.03)))
        await world.sync(settings_with(granularity="month"))
        state = world.control.state()
        listings = state.calls["messages.list"]
        assert listings > 100
        assert "messages.get" not in state.calls
        assert state.requests < listings / 3
        assert world.archived() == world.truth()

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-1")
@pytest.mark.parametrize("years", [0.1, 3, 20])
def test_the_oldest_mail_is_found_within_two_months_after_four_requests(tmp_path: Path, years: float) -> None:
    last = int(datetime(2025, 12, 30, tzinfo=UTC).timestamp())
    first = last - int(years * 365 * DAY_S)
    source = ListSource((ListedMail(letter(f"Of {at}"), at * 1_000) for at in (first, last)), email=OWNER)

    async def story(world: SyncRig) -> None:
        found = await oldest_mail(world.mailbox, last + DAY_S)
        assert first - 60 * DAY_S <= found <= first
        assert world.control.state().batches <= 4

    in_virtual_time(source, tmp_path, story)


def test_the_oldest_mail_of_an_empty_mailbox_is_yet_to_come(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        assert await oldest_mail(world.mailbox, 1_700_000_000) == 1_700_000_000

    in_virtual_time(ListSource((), email=OWNER), tmp_path, story)


@pytest.mark.req("SY-1")
def test_a_second_that_holds_more_than_a_slice_should_is_listed_to_its_end(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        await world.sync(settings_with(granularity="month", page_size=10, max_pages_per_slice=2))
        assert world.archived() == world.truth()

    in_virtual_time(letters(60, apart_s=0), tmp_path, story)


@pytest.mark.req("SY-1", "SY-8")
def test_mail_dated_in_the_future_is_brought_and_moves_no_watermark(tmp_path: Path) -> None:
    dates = [int(datetime(year, 12, 1, tzinfo=UTC).timestamp() * 1_000) for year in (2025, 2026, 2027, 2099)]
    source = ListSource((ListedMail(letter(f"Of {date}"), date) for date in dates), email=OWNER)

    async def story(world: SyncRig) -> None:
        await world.sync(SMALL)
        state = await world.state()
        assert world.archived() == world.truth()
        assert state.watermark == state.until < world.clock.now().timestamp() - SMALL.settle_s + 60

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-13")
def test_mail_that_arrives_or_goes_during_the_walk_is_neither_missed_nor_kept_as_present(tmp_path: Path) -> None:
    source = letters(300)

    async def story(world: SyncRig) -> None:
        engine = world.whole(SMALL)
        running = asyncio.create_task(engine.run(once=True))
        await stored(engine, 40)
        new = world.control.deliver(letter("New"))
        old = world.control.deliver(letter("Old"), internal_date=source.internal_date(0))  # behind the frontier soon
        doomed = {source.summary(index).id for index in (0, 5, 298, 299)}
        for gmail_id in doomed:
            await world.client.delete_message(gmail_id)
        await running
        kept = world.archived()
        assert kept.items() >= world.truth().items()
        assert {new, old} <= kept.keys()
        assert await world.bad() == set()

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-13")
def test_an_expired_history_id_begins_another_walk_and_leaves_no_gap(tmp_path: Path) -> None:
    source = letters(60)
    dated = source.internal_date(0)

    async def story(world: SyncRig) -> None:
        with captured_log() as events:
            await world.whole(SMALL).run(once=True)
            first = await world.state()
            behind = world.control.deliver(letter("Told by a history that nobody can read"), internal_date=dated)
            world.control.expire_history()
            await world.whole(SMALL).run(once=True)
        second = await world.state()
        assert (first.walk, second.walk) == (1, 2)
        assert second.watermark >= first.watermark
        assert not second.is_walking
        assert behind in world.archived()
        check([events])

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-13")
def test_the_history_id_is_from_before_the_first_listing(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="latency", seconds=30), method="messages.list"))
        at_start = world.control.state().history_id
        running = asyncio.create_task(world.engine(SMALL).run(once=True))
        await asyncio.sleep(20)  # the profile is read, the first list under way
        world.control.deliver(letter("In between"))
        world.control.clear_faults()
        await running
        cursor = await world.database.read(lambda tx: cursor_of(tx, world.account.id))
        assert cursor == at_start

    in_virtual_time(letters(10), tmp_path, story)


@pytest.mark.req("SY-8")
def test_after_the_walk_the_watermark_follows_the_present(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        engine = world.whole(SMALL.model_copy(update={"poll_s": 1_800.0}))
        with captured_log() as events:
            running = asyncio.create_task(engine.run())
            await asyncio.sleep(DAY_S / 8)
            fresh = world.control.deliver(letter("Fresh"))
            await asyncio.sleep(DAY_S / 8)
            await cancelled(running)
        state = await world.state()
        assert state.watermark > (world.clock.now() - timedelta(hours=2)).timestamp()
        assert fresh in world.archived()
        assert check([events]).watermark == state.watermark

    in_virtual_time(letters(30), tmp_path, story)


@pytest.mark.req("SY-13")
def test_one_account_has_one_reader(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        now = world.clock.now()
        await world.database.write(lambda tx: claim_reader(tx, world.account.id, "the connector", now))
        with pytest.raises(ReaderElsewhere, match="the connector"):
            await world.sync(SMALL)
        await asyncio.sleep(120)  # its lease runs out
        engine = world.engine(SMALL)
        running = asyncio.create_task(engine.run())
        await stored(engine, 10)
        with pytest.raises(ReaderElsewhere, match="a test"):
            await world.database.write(lambda tx: claim_reader(tx, world.account.id, "other", world.clock.now()))
        much_later = world.clock.now() + timedelta(hours=1)
        await world.database.write(lambda tx: claim_reader(tx, world.account.id, "other", much_later))
        with pytest.raises(HistoryLeaseLost):
            await running

    in_virtual_time(letters(100), tmp_path, story)


@pytest.mark.req("SY-5", "SY-9")
def test_a_message_found_bad_before_a_crash_is_not_asked_for_again_by_the_same_walk(tmp_path: Path) -> None:
    source = letters(30)
    poison = source.summary(25).id  # in the first batch, which is answered; the second is not
    fault = GmailFault(kind="error", code=400, reason="badBytes")

    async def story(world: SyncRig) -> None:
        rule = world.control.add_fault(FaultRule(fault=fault, method="messages.get", ids=frozenset({poison})))
        hold = world.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="batch", skip=1))
        running = asyncio.create_task(world.engine(SMALL).run(once=True))
        while await world.bad() == set():
            await asyncio.sleep(1)
        await cancelled(running)
        world.control.clear_faults(hold)
        asked = world.control.state().fault_hits[str(rule)]
        await world.sync(SMALL)
        assert world.control.state().fault_hits[str(rule)] == asked
        assert await world.bad() == {poison}
        assert (await world.state()).watermark == (await world.state()).until

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-8")
def test_when_the_watermark_moves_the_shards_themselves_hold_what_it_speaks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without their logs: a copy of the files alone has every message before it."""
    source = letters(60)
    dates = {source.summary(index).id: source.summary(index).internal_date // 1_000 for index in range(60)}
    seen: list[int] = []

    def finish(tx: Tx, *arguments: Any) -> SyncState:
        state = finish_slices(tx, *arguments)
        held: set[str] = set()
        for shard in (tmp_path / "archive" / OWNER).glob("????.db"):
            alone = shutil.copy(shard, tmp_path / "alone.db")
            with closing_after(sqlite3.connect(f"file:{alone}?mode=ro&immutable=1", uri=True)) as connection:
                held |= {gmail_id for (gmail_id,) in connection.execute("SELECT gmail_id FROM messages")}
        assert held >= {each for each, date in dates.items() if date < state.watermark}
        seen.append(len(held))
        return state

    async def story(world: SyncRig) -> None:
        monkeypatch.setattr(slice_ledger, "finish_slices", finish)
        await world.sync(SMALL)
        assert max(seen) == 60

    in_virtual_time(source, tmp_path, story)
