"""Troubles that are not the fault of a message, a slice or a setting: a sync waits, goes on, or says so, and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from postroom.accounts.history import HistoryLease, renew_reader
from postroom.db import Tx
from postroom.domain.errors import Retryable
from postroom.mailboxes.errors import CallRefused, MailboxUnavailable
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync import engine as engine_module
from postroom.sync import slice_ledger, slices, walk
from postroom.sync.engine import ChangeReader
from postroom.sync.slices import Slice
from tests.support.mail import letter
from tests.support.sync import SyncRig, in_virtual_time, letters, settings_with

SMALL = settings_with(granularity="week", job_size=40, page_size=50)
DOWN = GmailFault(kind="error", code=503, reason="backendError")


@pytest.mark.req("SY-5")
def test_an_outage_of_messages_alone_blames_none_of_them(tmp_path: Path) -> None:
    """Lists and the profile come from elsewhere at Gmail, and may go on while no message can be had."""

    async def story(world: SyncRig) -> None:
        await world.sync(SMALL)
        for index in range(30):
            world.control.deliver(letter(f"News {index}"))
        fault = world.control.add_fault(FaultRule(fault=DOWN, method="messages.get"))
        running = asyncio.create_task(world.whole(SMALL).run(once=True))
        await world.clock.sleep(1_200)
        assert await world.bad() == set()
        world.control.clear_faults(fault)
        await running
        assert world.archived() == world.truth()
        assert await world.bad() == set()

    in_virtual_time(letters(100), tmp_path, story)


@pytest.mark.req("SY-5")
def test_an_outage_of_messages_during_the_first_walk_blames_none_of_them(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        engine = world.engine(SMALL)
        running = asyncio.create_task(engine.run(once=True))
        while engine.progress().stored < 100:
            await asyncio.sleep(0.1)
        fault = world.control.add_fault(FaultRule(fault=DOWN, method="messages.get"))
        await world.clock.sleep(300)  # without the look at other messages, the first is blamed after 130
        assert await world.bad() == set()
        world.control.clear_faults(fault)
        await running
        assert world.archived() == world.truth()

    in_virtual_time(letters(250), tmp_path, story)


@pytest.mark.req("SY-5", "SY-6")
def test_messages_that_all_hang_are_waited_for_and_none_is_blamed(tmp_path: Path) -> None:
    impatient = SMALL.model_copy(update={"stall_timeout_s": 40.0, "retry_budget": 2})

    async def story(world: SyncRig) -> None:
        engine = world.engine(impatient)
        running = asyncio.create_task(engine.run(once=True))
        while engine.progress().stored < 20:
            await asyncio.sleep(0.1)
        fault = world.control.add_fault(FaultRule(fault=GmailFault(kind="hang"), method="messages.get"))
        await world.clock.sleep(1_500)
        assert await world.bad() == set()
        world.control.clear_faults(fault)
        await running
        assert world.archived() == world.truth()

    in_virtual_time(letters(60), tmp_path, story, batch_size=1)


@pytest.mark.req("SY-5")
def test_a_mailbox_that_refuses_everything_ends_the_run_and_blames_no_message(tmp_path: Path) -> None:
    refusal = GmailFault(kind="error", code=400, reason="failedPrecondition", message="Mail service not enabled")

    async def story(world: SyncRig) -> None:
        engine = world.engine(SMALL)
        running = asyncio.create_task(engine.run(once=True))
        while engine.progress().stored < 100:
            await asyncio.sleep(0.1)
        world.control.add_fault(FaultRule(fault=refusal, method="messages.get"))
        with pytest.raises(CallRefused, match="not enabled"):
            await running
        assert await world.bad() == set()

    in_virtual_time(letters(250), tmp_path, story)


@pytest.mark.req("SY-1", "SY-8")
def test_a_slice_that_cannot_be_listed_holds_up_no_other_and_ends_the_run_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However well everything else goes on: a run that could never end says why instead."""
    source = letters(400)
    unlucky = source.summary(200).internal_date // 1_000
    poisoned: set[int] = set()

    def ids_of(mailbox: Mailbox, part: Slice, settings: SyncSettings, *, may_split: bool) -> AsyncIterator[list[str]]:
        if part.start <= unlucky and (part.end is None or unlucky < part.end):
            poisoned.add(part.start)
            raise MailboxUnavailable("Gmail could not answer messages.list")
        return slices.ids_of(mailbox, part, settings, may_split=may_split)

    async def story(world: SyncRig) -> None:
        monkeypatch.setattr(walk, "ids_of", ids_of)
        with pytest.raises(MailboxUnavailable, match="could not answer"):
            await asyncio.wait_for(world.whole(SMALL).run(once=True), 100_000)
        state = await world.state()
        assert {state.watermark} == poisoned
        missing = set(world.truth()) - set(world.archived())
        assert 0 < len(missing) <= 7 * 8, "a week's mail"

    in_virtual_time(source, tmp_path, story)


@pytest.mark.req("SY-13")
def test_once_ends_also_where_the_newest_mail_is_listed_again_all_the_time(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        class Slow(ChangeReader):
            async def read(self) -> None:
                await world.clock.sleep(5)

        await world.sync(SMALL)
        await world.clock.sleep(7_200)
        eager = settings_with(extend_s=0.0)
        await asyncio.wait_for(world.sync(eager, lambda reader, fetcher: Slow()), 600)
        assert (await world.state()).until >= world.clock.now().timestamp() - 1_000

    in_virtual_time(letters(30), tmp_path, story)


@pytest.mark.req("SY-9")
def test_a_database_that_is_away_for_a_while_ends_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where a lease is renewed nor where a slice is closed."""

    async def story(world: SyncRig) -> None:
        turns = iter(range(1_000))

        def now_and_then(tx: Tx, reader: HistoryLease, now: datetime) -> None:
            if next(turns) % 2 == 0:
                raise Retryable("The database went away.")
            renew_reader(tx, reader, now)

        monkeypatch.setattr(engine_module, "renew_reader", now_and_then)
        monkeypatch.setattr(slice_ledger, "renew_reader", now_and_then)
        next(turns)  # the walk itself is begun undisturbed
        await world.sync(SMALL)
        assert world.archived() == world.truth()
        state = await world.state()
        assert state.watermark == state.until

    in_virtual_time(letters(100), tmp_path, story)
