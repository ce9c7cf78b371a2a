"""Any sequence of changes at the source, with readings, replays and restarts anywhere, ends with an archive like it."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroom.accounts.history import move_cursor
from postroom.db import connect
from postroom.domain.clock import ManualClock
from postroom.sim.gmail.faults import FaultRule, GmailFault
from tests.support.databases import SqliteFactory
from tests.support.mail import letter, mailbox
from tests.support.sync import SyncedAccount, synced_account

NAMES = ("Work", "Home", "Bills")
ACTIONS = (
    "arrive",
    "delete",
    "label",
    "unlabel",
    "trash",
    "untrash",
    "make label",
    "rename label",
    "delete label",
    "read",
    "read and die",
    "replay",
    "restart",
)


class Story:
    """Carries out actions, each on something that the dice choose."""

    def __init__(self, scene: SyncedAccount, seed: int) -> None:
        self.scene = scene
        self.dice = random.Random(seed)
        self.fetcher = scene.fetcher()
        self.cursors: list[str] = []

    async def act(self, action: str) -> None:
        match action:
            case "read":
                await self._read()
            case "read and die":
                await self._read_and_die()
            case "replay" if self.cursors:
                await self._go_back(self.dice.choice(self.cursors))
            case "restart":
                self.fetcher = self.scene.fetcher()
            case _:
                labels = [label.id for label in await self.scene.client.list_labels() if not label.is_system]
                await self._on_labels(action, labels)
                await self._on_mail(action, labels)

    async def finish(self) -> None:
        self.fetcher = self.scene.fetcher()
        await self._read()
        assert self.scene.present() == await self.scene.truth()

    async def _on_mail(self, action: str, labels: list[str]) -> None:
        client, control = self.scene.client, self.scene.control
        which = self.dice.choice([*labels, "STARRED", "INBOX"])
        if action == "arrive":
            control.deliver(letter(f"No. {self.dice.random()}"), frozenset({"UNREAD", which}))
        alive = [str(each["id"]) for each in control.truth(hashes=False)]
        chosen = self.dice.choice(alive) if alive else ""
        match action:
            case "delete" if alive:
                await client.delete_message(chosen)
            case "label" if alive:
                await client.modify_message(chosen, add=[which])
            case "unlabel" if alive:
                await client.modify_message(chosen, remove=[which])
            case "trash" if alive:
                await client.trash_message(chosen)
            case "untrash" if alive:
                await client.untrash_message(chosen)

    async def _on_labels(self, action: str, labels: list[str]) -> None:
        """The client renames no labels; whoever sits before Gmail does."""
        book, name = self.scene.control._box.store, self.dice.choice(NAMES)
        is_taken = any(label.name == name for label in book.labels.all())
        match action:
            case "make label" if not is_taken:
                book.labels.create({"name": name})
            case "rename label" if labels and not is_taken:
                book.labels.change(self.dice.choice(labels), {"name": name}, whole=False)
            case "delete label" if labels:
                book.delete_label(self.dice.choice(labels))

    async def _read(self) -> None:
        reader = await self.scene.claim()
        self.cursors.append(await self.scene.cursor() or "")
        await self.scene.deltas(reader, self.fetcher).read()

    async def _read_and_die(self) -> None:
        """After its effects and before the cursor: every page but the first is lost, and the process starts anew."""
        reader = await self.scene.claim()
        before = await self.scene.cursor() or ""
        await self.scene.deltas(reader, self.fetcher).read()
        await self._go_back(before)
        self.fetcher = self.scene.fetcher()

    async def _go_back(self, history_id: str) -> None:
        reader = await self.scene.claim()
        await self.scene.database.write(lambda tx: move_cursor(tx, reader, history_id, self.scene.clock.now()))


async def tell(factory: SqliteFactory, actions: list[str], seed: int, fault: str | None) -> None:
    database = await connect(factory.url())
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = mailbox(3, Label_1="Work", Label_2="Home")
            async with synced_account(database, source, Path(folder), ManualClock()) as scene:
                await scene.claim()
                await scene.bring_all()
                if fault:
                    scene.control.add_fault(
                        FaultRule(fault=GmailFault.model_validate({"kind": fault}), method="history.list")
                    )
                story = Story(scene, seed)
                for action in actions:
                    await story.act(action)
                await story.finish()
    finally:
        await database.close()


@pytest.mark.req("SY-13")
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from(ACTIONS), min_size=3, max_size=25),
    st.integers(0, 1_000_000),
    st.sampled_from([None, "duplicate_history", "reorder_history"]),
)
def test_the_archive_ends_like_the_source(
    sqlite_factory: SqliteFactory, actions: list[str], seed: int, fault: str | None
) -> None:
    asyncio.run(tell(sqlite_factory, actions, seed, fault))
