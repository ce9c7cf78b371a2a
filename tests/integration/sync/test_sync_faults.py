"""What a mailbox and a network can do to a sync: it ends complete, and only messages that deserve it are called bad."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from postroom.archive import preparing
from postroom.archive.importing import preparation
from postroom.archive.messages import IncomingMail
from postroom.archive.preparing import PreparedMail
from postroom.domain.errors import Retryable
from postroom.mailboxes.errors import LoginNeeded
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.engine import SyncEngine
from tests.support.sync import LAST, SyncRig, captured_log, in_virtual_time, letters, settings_with
from tests.support.sync_trace import check

SMALL = settings_with(granularity="week", job_size=40, page_size=50)
THROTTLED = GmailFault(kind="error", code=429, reason="rateLimitExceeded")


def some_ids(count: int, of: int, until: datetime = LAST) -> frozenset[str]:
    """Spread over the mailbox."""
    source = letters(of, until=until)
    return frozenset(source.summary(index * (of // count)).id for index in range(count))


async def stored(engine: SyncEngine, messages: int) -> None:
    while engine.progress().stored < messages:
        await asyncio.sleep(0.1)


@pytest.mark.req("SY-5", "SY-8")
@pytest.mark.parametrize("code", [400, 503])
def test_messages_that_always_fail_are_named_and_stop_nobody(tmp_path: Path, code: int) -> None:
    poison = some_ids(5, 200)
    fault = GmailFault(kind="error", code=code, reason="badBytes")

    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=fault, method="messages.get", ids=poison))
        with captured_log() as events:
            await world.sync(SMALL)
        state = await world.state()
        assert await world.bad() == poison
        assert set(world.archived()) == set(world.truth()) - poison
        assert state.watermark == state.until
        retried = sum(event["event"] == "job.retried" for event in events)
        assert state.counters.get("retried", 0) == retried, "kept in the metadata document"
        assert "bad" not in state.counters, "only the list of them says how many there are"
        assert check([events]).watermark == state.watermark

    in_virtual_time(letters(200), tmp_path, story)


@pytest.mark.req("SY-5")
def test_a_message_that_breaks_every_answer_it_is_in_takes_no_neighbour_along(tmp_path: Path) -> None:
    poison = some_ids(1, 60)

    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=poison))
        await world.sync(SMALL)
        assert await world.bad() == poison
        assert set(world.archived()) == set(world.truth()) - poison

    in_virtual_time(letters(60), tmp_path, story)


@pytest.mark.req("SY-4", "SY-5")
def test_a_storm_of_429_and_broken_answers_passes_without_blaming_a_message(tmp_path: Path) -> None:
    faults = [
        FaultRule(fault=THROTTLED, method="batch", probability=0.3, seed=1, times=8),
        FaultRule(fault=THROTTLED, method="messages.get", probability=0.1, seed=2, times=30),
        FaultRule(fault=THROTTLED, method="messages.list", probability=0.5, seed=3, times=5),
        FaultRule(fault=GmailFault(kind="truncate"), method="batch", probability=0.3, seed=4, times=6),
        FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", probability=0.05, seed=5, times=20),
        FaultRule(fault=GmailFault(kind="truncate"), method="messages.list", probability=0.3, seed=6, times=4),
        FaultRule(fault=GmailFault(kind="drop"), method="*", probability=0.1, seed=7, times=6),
        FaultRule(fault=GmailFault(kind="hang"), method="*", probability=0.05, seed=8, times=4),
    ]

    async def story(world: SyncRig) -> None:
        for rule in faults:
            world.control.add_fault(rule)
        with captured_log() as events:
            await world.sync(SMALL)
        assert world.archived() == world.truth()
        assert await world.bad() == set()
        check([events])

    in_virtual_time(letters(200), tmp_path, story)


@pytest.mark.req("SY-6")
def test_a_job_that_hangs_is_cancelled_and_queued_again(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="messages.get", times=3))
        engine = await world.sync(SMALL.model_copy(update={"stall_timeout_s": 60.0}))
        assert engine.progress().stalls == 3
        assert world.archived() == world.truth()
        assert await world.bad() == set()

    in_virtual_time(letters(120), tmp_path, story, batch_size=1)


@pytest.mark.req("SY-5", "SY-6")
def test_a_message_that_hangs_every_time_is_found_by_splitting(tmp_path: Path) -> None:
    old = LAST - timedelta(days=60)  # the newest days come in jobs too small to be split
    poison = some_ids(1, 24, old)

    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="messages.get", ids=poison))
        engine = await world.sync(SMALL.model_copy(update={"stall_timeout_s": 60.0, "retry_budget": 2}))
        assert await world.bad() == poison
        assert set(world.archived()) == set(world.truth()) - poison
        assert engine.progress().splits > 0

    in_virtual_time(letters(24, until=old), tmp_path, story, batch_size=1)


@pytest.mark.req("SY-5")
def test_an_outage_is_waited_out_and_no_message_pays_for_it(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        engine = world.engine(SMALL)
        running = asyncio.create_task(engine.run(once=True))
        await stored(engine, 40)
        world.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503)))
        await asyncio.sleep(600)
        assert not running.done()
        world.control.clear_faults()
        await running
        assert world.archived() == world.truth()
        assert await world.bad() == set()

    in_virtual_time(letters(200), tmp_path, story)


def test_an_outage_without_end_ends_the_run_with_its_reason(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=GmailFault(kind="error", code=503), method="messages.list", skip=2))
        with pytest.raises(Retryable, match=r"messages\.list"):
            await world.sync(SMALL)
        assert world.clock.monotonic() >= SMALL.patience_s

    in_virtual_time(letters(50), tmp_path, story)


def test_a_pause_that_gmail_asks_for_is_waited_out_however_long_it_is(tmp_path: Path) -> None:
    daily = GmailFault(kind="error", code=403, reason="dailyLimitExceeded", message="Daily Limit Exceeded")

    async def story(world: SyncRig) -> None:
        world.control.add_fault(FaultRule(fault=daily, method="messages.get", times=3, skip=30))
        await world.sync(SMALL)
        assert world.archived() == world.truth()
        assert world.clock.monotonic() > 3_600

    in_virtual_time(letters(100), tmp_path, story)


@pytest.mark.req("SY-5")
def test_a_login_that_ends_during_the_run_stops_it_and_blames_no_message(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        engine = world.engine(SMALL)
        running = asyncio.create_task(engine.run(once=True))
        await stored(engine, 20)
        world.control.revoke()
        with pytest.raises(LoginNeeded):
            await running
        state = await world.state()
        assert await world.bad() == set()
        assert state.is_walking

    in_virtual_time(letters(200), tmp_path, story)


@pytest.mark.req("SY-5")
def test_a_message_that_the_archive_cannot_take_is_bad_and_its_neighbours_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [poison] = some_ids(1, 60)

    def prepare(mail: IncomingMail) -> PreparedMail:
        if mail.gmail_id == poison:
            raise RecursionError("too deep")
        return preparing.prepare(mail)

    async def story(world: SyncRig) -> None:
        monkeypatch.setattr(preparation, "prepare", prepare)
        await world.sync(SMALL)
        assert await world.bad() == {poison}
        assert set(world.archived()) == set(world.truth()) - {poison}

    in_virtual_time(letters(60), tmp_path, story)
