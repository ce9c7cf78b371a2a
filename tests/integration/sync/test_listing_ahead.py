"""Slices are listed ahead of those whose messages are fetched, and queued in order all the same."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom.mailboxes.errors import MailboxUnavailable
from postroom.mailboxes.protocol import Mailbox
from postroom.settings import SyncSettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync import slices, walk
from postroom.sync.fetch import FetchOutcome, MailFetcher
from postroom.sync.slices import DAY_S, Slice, in_walk_order
from tests.support.sync import SyncRig, captured_log, in_virtual_time, letters, settings_with
from tests.support.sync_trace import check

A_MINUTE_S = 60
SMALL_PAGES = settings_with(granularity="month", page_size=10)


@pytest.mark.req("SY-1")
def test_slices_are_queued_in_order_however_their_answers_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(3)

    async def ids_of(
        mailbox: Mailbox, part: Slice, settings: SyncSettings, *, may_split: bool
    ) -> AsyncIterator[list[str]]:
        await asyncio.sleep(dice.uniform(0, 5))
        async for ids in slices.ids_of(mailbox, part, settings, may_split=may_split):
            yield ids

    async def story(world: SyncRig) -> None:
        monkeypatch.setattr(walk, "ids_of", ids_of)
        with captured_log() as events:
            await world.sync(settings_with(granularity="month", page_size=5, max_pages_per_slice=2))
        listed = [Slice(each["start"], each["end"]) for each in events if each["event"] == "slice.listed"]
        assert any(each["event"] == "slice.split" for each in events), "some were replaced by their halves"
        assert listed == in_walk_order(listed, (await world.state()).until)
        assert world.archived() == world.truth()
        assert check([events]).watermark == (await world.state()).until

    in_virtual_time(letters(400, apart_s=DAY_S // 4), tmp_path, story)


@pytest.mark.req("SY-1")
def test_a_small_mailbox_is_fetched_from_the_first_page_of_a_slice_on(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        with captured_log() as events:
            await world.sync(SMALL_PAGES)
        listings = {each["listing"]: each["listed"] for each in events if each["event"] == "slice.listed"}
        full = max(listings, key=lambda listing: listings[listing])
        kinds = [each["event"] for each in events if each.get("listing") == full]
        assert kinds.index("job.attempted") < kinds.index("slice.listed")
        assert world.control.state().calls["messages.get"] == 150
        assert world.archived() == world.truth()
        check([events])

    in_virtual_time(letters(150, apart_s=A_MINUTE_S), tmp_path, story)


@pytest.mark.req("SY-1", "SY-8", "SY-9")
def test_a_listing_that_fails_half_way_and_pages_that_overlap_have_no_message_fetched_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    async def ids_of(
        mailbox: Mailbox, part: Slice, settings: SyncSettings, *, may_split: bool
    ) -> AsyncIterator[list[str]]:
        nonlocal failures
        before: list[str] = []
        pages = 0
        async for ids in slices.ids_of(mailbox, part, settings, may_split=may_split):
            yield [*before[-3:], *ids]  # as when mail arrives between two pages
            before, pages = ids, pages + 1
            if pages == 4 and failures < 2:
                failures += 1
                raise MailboxUnavailable("Gmail could not answer messages.list")

    async def story(world: SyncRig) -> None:
        monkeypatch.setattr(walk, "ids_of", ids_of)
        # Slow enough that messages of the first listing are under way when the next one begins.
        world.control.add_fault(FaultRule(fault=GmailFault(kind="latency", seconds=20), method="batch"))
        with captured_log() as events:
            engine = await world.sync(SMALL_PAGES)
        assert failures == 2
        assert world.control.state().calls["messages.get"] == 150
        assert (engine.progress().stored, engine.progress().known) == (150, 0)
        assert (await world.state()).counters["processed"] == 150
        assert world.archived() == world.truth()
        assert check([events]).watermark == (await world.state()).until

    in_virtual_time(letters(150, apart_s=A_MINUTE_S), tmp_path, story)


@pytest.mark.req("SY-1", "SY-3")
def test_a_mailbox_whose_mail_is_old_gives_its_first_message_after_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before: list[int] = []

    async def story(world: SyncRig) -> None:
        fetch = MailFetcher.fetch

        async def counted(fetcher: MailFetcher, *given: Any) -> FetchOutcome:
            before.append(world.control.state().requests)
            return await fetch(fetcher, *given)

        monkeypatch.setattr(MailFetcher, "fetch", counted)
        await world.sync(settings_with(granularity="month"))
        assert before[0] <= 7, "profile, labels, two for the oldest mail, two for the empty newest days, and one more"
        assert world.archived() == world.truth()

    last = datetime(2024, 12, 30, tzinfo=UTC)
    in_virtual_time(letters(60, apart_s=14 * DAY_S, until=last), tmp_path, story)
