"""One account with its mailbox at the stand-in, its archive and its database: in this process, and without a pace."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx2

from postroom.accounts.history import Reader, claim_reader, cursor_of, move_cursor
from postroom.accounts.mailstate import NobodyWatches, SourceWatch
from postroom.accounts.store import Account, NewAccount, add_account
from postroom.archive.account_store import AccountStore
from postroom.archive.model import ArchivedMessage
from postroom.archive.reading import MESSAGE_COLUMNS, ArchiveReader
from postroom.db import Database
from postroom.domain.clock import Clock, ManualClock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.limiter import limiter_for
from postroom.gmail.quota import PROFILES, ProfileName
from postroom.gmail.sim.control import Control
from postroom.gmail.sim.model import MailSource
from postroom.gmail.transport import TransportConfig
from postroom.sync.bringing import Bringer
from postroom.sync.deltas import DeltaReader, OnPage
from postroom.sync.label_following import LabelFollower
from postroom.sync.labels import LabelNames
from postroom.sync.slices import Granularity
from postroom.sync.state import begin_walk
from tests.support.archives import opened_store
from tests.support.gmail_client import UNHURRIED, FixedToken
from tests.support.in_process_sim import in_process_sim


@dataclass(frozen=True)
class Followed:
    database: Database
    account: Account
    client: GmailClient
    control: Control
    store: AccountStore
    root: Path
    clock: Clock

    async def claim(self, holder: str = "a test") -> Reader:
        """The right to read the account's changes, from where the mailbox stands now if nobody has read before."""
        now = self.clock.now()
        reader = await self.database.write(lambda tx: claim_reader(tx, self.account.id, holder, now))
        if reader.history_id is None:
            start = (await self.client.get_profile()).history_id
            await self.database.write(lambda tx: move_cursor(tx, reader, start, now))
        return reader

    def bringer(self, store: AccountStore | None = None) -> Bringer:
        """As a fresh process has it: it remembers no label."""
        keeper = LabelFollower(self.database, self.account.id, self.client, store or self.store)
        return Bringer(self.client, store or self.store, LabelNames(self.client, keeper))

    def deltas(
        self,
        reader: Reader,
        bringer: Bringer | None = None,
        on_page: OnPage = lambda page: None,
        watch: SourceWatch | None = None,
    ) -> DeltaReader:
        watch = watch or NobodyWatches()
        return DeltaReader(self.database, reader, bringer or self.bringer(), self.clock, on_page, watch)

    async def bring_all(self) -> None:
        """What a walk would do: everything that is at the source now."""
        bringer = self.bringer()
        await bringer.names.refresh()
        await bringer.bring([str(each["id"]) for each in self.control.truth(hashes=False)])

    async def cursor(self) -> str | None:
        return await self.database.read(lambda tx: cursor_of(tx, self.account.id))

    def archived(self) -> dict[str, ArchivedMessage]:
        """Every message of the archive, by Gmail id."""
        query = f"SELECT {MESSAGE_COLUMNS} FROM messages"  # noqa: S608 - a constant
        with ArchiveReader(self.root) as reader:
            rows = [shard.read_row(row) for shard in reader.shards(self.account.email) for row in shard.query(query)]
        return {message.gmail_id or message.key: message for message in rows}

    def present(self) -> dict[str, set[str]]:
        """What the archive takes to be at the source, and its labels."""
        return {key: set(each.labels) for key, each in self.archived().items() if each.deleted_at_source is None}

    async def truth(self) -> dict[str, set[str]]:
        """What is at the source, and its labels by name."""
        names = {label.id: label.id if label.is_system else label.name for label in await self.client.list_labels()}
        messages = cast("list[dict[str, Any]]", list(self.control.truth(hashes=False)))
        return {each["id"]: {names[label] for label in each["label_ids"]} for each in messages}


async def new_account(database: Database, clock: Clock, email: str = "owner@example.com") -> Account:
    """An account that a walk has begun for."""
    account = await database.write(lambda tx: add_account(tx, NewAccount(email, "http://127.0.0.1"), clock.now()))
    await database.write(lambda tx: begin_walk(tx, account.id, [], 0, Granularity.WEEK, clock.now()))
    return account


@contextlib.asynccontextmanager
async def followed(
    database: Database, source: MailSource, root: Path, clock: Clock | None = None
) -> AsyncIterator[Followed]:
    clock = clock or ManualClock()
    account = await new_account(database, clock, source.email)
    sim = in_process_sim(source, PROFILES[ProfileName.LEGACY], clock)
    async with (
        connected(
            FixedToken(sim.token),
            limiter_for(None, clock, tuning=UNHURRIED, dice=random.Random(1)),
            clock,
            config=TransportConfig(api_base="http://127.0.0.1"),
            http_transport=httpx2.ASGITransport(app=cast("Any", sim.app)),
        ) as client,
        opened_store(root, account.email) as store,
    ):
        yield Followed(database, account, client, sim.control, store, root, clock)
