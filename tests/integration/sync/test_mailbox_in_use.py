"""A whole sync while somebody uses the mailbox: what the archive says in the end is what is there."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, cast

import pytest

from postroom.archive.shards.reader import MESSAGE_COLUMNS, FileArchiveReader
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sync.alerts import AlertCondition, alerts_of
from postroom.sync.context import sync_context
from postroom.sync.engine import SyncEngine, build_engine
from postroom.sync.history import HistoryFollower
from postroom.sync.labels import SourceReconciliation
from tests.support.mail import letter
from tests.support.sync import HOLDER, SyncRig, in_virtual_time, letters, settings_with

pytestmark = pytest.mark.req("SY-13")


class Owner:
    """Reads, sorts, deletes and receives mail, now and then."""

    def __init__(self, world: SyncRig, seed: int) -> None:
        self._world = world
        self._dice = random.Random(seed)

    async def use_mailbox(self, times: int) -> None:
        for _ in range(times):
            await self._world.clock.sleep(self._dice.uniform(0.1, 2.0))
            await self._act()

    async def _act(self) -> None:
        client, control = self._world.client, self._world.control
        alive = [str(each["id"]) for each in control.truth(hashes=False)]
        chosen = self._dice.choice(alive)
        match self._dice.randrange(6):
            case 0:
                control.deliver(letter(f"No. {self._dice.random()}"))
            case 1:
                await client.delete_message(chosen)
            case 2:
                await client.trash_message(chosen)
            case 3:
                await client.modify_message(chosen, add=["STARRED"])
            case 4:
                await client.modify_message(chosen, remove=["INBOX", "STARRED"])
            case _:
                label = await client.create_label(f"Label {self._dice.random()}")
                await client.modify_message(chosen, add=[label.id])


def engine_of(world: SyncRig) -> SyncEngine:
    settings, clock = settings_with(poll_s=3.0, job_size=20), world.clock
    return SyncEngine(
        sync_context(world.database, world.account, world.mailbox, world.store, settings, clock),
        HOLDER,
        changes=lambda lease, fetcher: HistoryFollower(world.database, lease, fetcher, clock),
        side_tasks=lambda lease, fetcher: [SourceReconciliation(world.database, world.account.id, fetcher, clock)],
    )


async def assert_like_the_source(world: SyncRig) -> None:
    names = {label.id: label.name for label in await world.client.list_labels()}
    messages = cast("list[dict[str, Any]]", list(world.control.truth(hashes=False)))
    truth = {each["id"]: {names[label] for label in each["label_ids"]} for each in messages}
    query = f"SELECT {MESSAGE_COLUMNS} FROM messages"  # noqa: S608 - a constant
    with FileArchiveReader(world.root) as reader:
        rows = [shard.read_row(row) for shard in reader.shards() for row in shard.query(query)]
    assert {row.key: set(row.labels) for row in rows if row.deleted_at_source is None} == truth


@pytest.mark.parametrize("seed", range(3))
def test_a_mailbox_in_use_is_mirrored(tmp_path: Path, seed: int) -> None:
    async def story(world: SyncRig) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(Owner(world, seed).use_mailbox(60))
            await engine_of(world).run(once=True)
        await engine_of(world).run(once=True)
        await assert_like_the_source(world)

    in_virtual_time(letters(300), tmp_path, story)


@pytest.mark.parametrize("seed", range(2))
def test_a_history_that_expires_in_the_middle_leaves_no_gap(tmp_path: Path, seed: int) -> None:
    async def story(world: SyncRig) -> None:
        owner = Owner(world, seed)
        await engine_of(world).run(once=True)
        await owner.use_mailbox(30)
        world.control.expire_history()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(owner.use_mailbox(40))
            await engine_of(world).run(once=True)
        await engine_of(world).run(once=True)
        assert (await world.state()).walk == 2
        await assert_like_the_source(world)

    in_virtual_time(letters(200), tmp_path, story)


@pytest.mark.req("SY-12")
def test_bad_messages_among_new_mail_raise_an_alert_and_are_tried_again(tmp_path: Path) -> None:
    async def story(world: SyncRig) -> None:
        async def sync() -> None:
            await build_engine(
                world.database, world.account, world.mailbox, world.store, settings_with(), world.clock
            ).run(once=True)

        await sync()
        poison = frozenset(world.control.deliver(letter(f"Poison {number}")) for number in range(3))
        rule = world.control.add_fault(FaultRule(fault=GmailFault(kind="malformed"), method="messages.get", ids=poison))
        await sync()
        assert await world.bad() == poison
        alerts = await world.database.read(lambda tx: alerts_of(tx, world.account.id))
        assert [alert.condition for alert in alerts if alert.is_in_force] == [AlertCondition.BAD_RATE_HIGH]
        world.control.clear_faults(rule)
        await world.clock.sleep(25 * 3_600)
        await sync()
        assert await world.bad() == set()
        assert poison <= world.archived().keys()

    in_virtual_time(letters(400), tmp_path, story)
