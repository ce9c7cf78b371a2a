"""The newest 30 days come first, and the watermark passes them only where the history vouches for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.accounts.history import Duty, break_history, claim_reader, record_end
from postroom.db import Database, Tx
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName
from postroom.sim.gmail.sources import ListedMail, ListSource
from postroom.sync.slices import DAY_S, Granularity, Slice, in_walk_order, plan
from postroom.sync.state import FinishedSlice, Listing, SyncState, begin_walk, finish_slice, finish_slices, slices_of
from postroom.sync.status import status_of
from tests.support.mail import OWNER, letter
from tests.support.sync import SyncRig, captured_log, in_virtual_time, letters, settings_with

START = datetime(2026, 1, 1, tzinfo=UTC)
"""Of the virtual clock."""


def busy_mailbox(days: int, a_day: int) -> ListSource:
    """So many letters on each of the last days, the youngest a minute old."""
    newest = int(START.timestamp()) - 60
    apart = DAY_S // a_day
    mails = (
        ListedMail(
            letter(f"No. {index}", headers={"Message-ID": f"<{index}@x.example>"}), (newest - index * apart) * 1_000
        )
        for index in range(days * a_day - 1, -1, -1)
    )
    return ListSource(mails, email=OWNER)


@pytest.mark.req("SY-1", "SY-3")
def test_todays_mail_is_in_the_archive_within_a_minute_at_five_messages_a_second(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        midnight = (START - timedelta(days=1)).timestamp()
        mails = world.control.truth(hashes=False)
        todays = {str(each["id"]) for each in mails if int(str(each["internal_date"])) >= midnight * 1_000}
        assert len(todays) >= 80
        engine = world.whole()
        running = asyncio.create_task(engine.run(once=True))
        await world.clock.sleep(60)
        held = world.archived().keys()
        assert todays <= held, (len(held), len(todays - held))
        assert len(world.archived()) < 700, "at the pace that a new project has"
        status = await world.database.read(lambda tx: status_of(tx, world.account, world.clock.now()))
        assert status.watermark == 0
        assert status.progress is not None
        assert status.progress.total == 2_400
        assert status.progress.words.startswith(f"{status.progress.done:,} of 2,400 · ")
        assert status.progress.words.endswith(" left")
        await running
        assert world.archived() == world.truth()
        assert (await world.state()).watermark > 0

    in_virtual_time(busy_mailbox(30, 80), tmp_path, story, profile=PROFILES[ProfileName.MAY_2026])


@pytest.mark.req("SY-8", "SY-9")
@pytest.mark.parametrize("seed", range(3))
async def test_what_was_done_ahead_is_passed_only_under_the_history_it_was_listed_in(
    database: Database, seed: int
) -> None:
    dice, until = random.Random(seed), int(START.timestamp())
    account = await database.write(lambda tx: add_account(tx, NewAccount(OWNER, "http://127.0.0.1"), START))
    slices = plan(until - 90 * DAY_S, until, Granularity.MONTH)
    reader = await database.write(lambda tx: claim_reader(tx, account.id, "connector", START))
    state = await database.write(lambda tx: begin_walk(tx, account.id, slices, until, Granularity.MONTH, START))
    epoch, now, listed = 0, START, dict[Slice, int]()
    while state.is_walking:
        now += timedelta(minutes=dice.choice([1, 90]))
        if dice.random() < 0.15 and epoch < 3:
            epoch += 1
            await database.write(lambda tx: break_history(tx, reader, "7", now))  # noqa: B023 - awaited at once
        elif dice.random() < 0.5:
            await database.write(lambda tx: record_end(tx, reader, now))  # noqa: B023 - awaited at once
        rows = await database.read(lambda tx: slices_of(tx, account.id))
        still_open = in_walk_order([row.slice for row in rows if not row.is_done], until)
        part = still_open[0] if dice.random() < 0.7 else dice.choice(still_open)
        before, listing = state, Listing(now, epoch)
        listed[part] = epoch
        state = await database.write(
            lambda tx: finish_slice(tx, account.id, 1, part, 1, now, listing)  # noqa: B023 - awaited at once
        )
        assert state.watermark == state.frontier >= before.frontier
        passed = [each for each in listed if each.end is not None and before.frontier < each.end <= state.frontier]
        assert all(listed[each] == epoch for each in passed)
        first_open = min(row.slice.start for row in await database.read(lambda tx: slices_of(tx, account.id)))
        assert state.frontier == min(first_open, until)
    assert state.watermark == until


@pytest.mark.req("SY-8", "SY-13")
def test_days_that_were_done_before_the_history_broke_are_listed_again(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        reader = await world.database.write(
            lambda tx: claim_reader(tx, world.account.id, "connector", world.clock.now(), duty=Duty.CHANGES)
        )
        running = asyncio.create_task(world.engine(settings_with(), deltas=None).run(once=True))
        while len(world.archived()) < 300:
            await world.clock.sleep(0.05)
        late = world.control.deliver(letter("Late"), internal_date=int((START.timestamp() - 5 * DAY_S) * 1_000))
        await world.database.write(lambda tx: break_history(tx, reader, "99", world.clock.now()))
        with captured_log() as events:
            await running
        assert late in world.archived(), "it came into a day that was done, and no history tells of it"
        assert sum(event["event"] == "slice.listed" for event in events) > 30
        assert (await world.state()).watermark == (await world.state()).until

    in_virtual_time(letters(600), tmp_path, story)


@pytest.mark.req("SY-8", "IM-4")
async def test_many_slices_are_finished_with_as_many_statements_as_one(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mailbox of years has a slice for each month, and most of a walk through few messages would be spent on them."""
    until = int(START.timestamp())
    account = await database.write(lambda tx: add_account(tx, NewAccount(OWNER, "http://127.0.0.1"), START))
    slices = plan(until - 1_000 * DAY_S, until, Granularity.MONTH)
    state = await database.write(lambda tx: begin_walk(tx, account.id, slices, until, Granularity.MONTH, START))
    done = [FinishedSlice(each, 0) for each in sorted(slices, key=lambda each: each.start)]
    counts: list[int] = []

    def counted(some: list[FinishedSlice]) -> Callable[[Tx], SyncState]:
        def finish(tx: Tx) -> SyncState:
            execute, made = tx.execute, list[object]()

            def noted(_: Tx, *given: Any) -> Any:
                made.append(given)
                return execute(*given)

            with monkeypatch.context() as patched:
                patched.setattr(type(tx), "execute", noted)
                found = finish_slices(tx, account.id, state.walk, some, START)
            counts.append(len(made))
            return found

        return finish

    first = await database.write(counted(done[:1]))
    last = await database.write(counted(done[1:]))
    assert counts[0] == counts[1]
    assert (first.frontier, last.frontier, last.is_walking) == (done[0].slice.end, until, False)
