"""A whole sync in one process: the stand-in, a database, an archive, and an engine for its account."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from postroom.accounts.history import Reader
from postroom.accounts.store import Account, NewAccount, add_account
from postroom.archive.account_store import AccountStore
from postroom.archive.reading import ArchiveReader
from postroom.db import Database, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.limiter import limiter_for
from postroom.gmail.quota import QuotaProfile
from postroom.gmail.sim.control import Control
from postroom.gmail.sim.list_source import ListedMail, ListSource
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.server import running_sim
from postroom.gmail.transport import TransportConfig
from postroom.settings import SyncSettings
from postroom.sync.account_sync import account_sync
from postroom.sync.bringing import Bringer
from postroom.sync.engine import MakeDeltas, SyncEngine
from postroom.sync.state import SyncState, bad_of, get_state
from postroom.telemetry import logs
from tests.support import virtual_time
from tests.support.archives import opened_store
from tests.support.gmail_client import UNHURRIED, FixedToken
from tests.support.in_process_sim import in_process_sim
from tests.support.sim_mail import OWNER, letter
from tests.support.virtual_time import VirtualClock

HOLDER = "a test"
LAST = datetime(2025, 12, 31, tzinfo=UTC)


class NoDeltas:
    """For tests of the walk alone."""

    async def read(self) -> None:
        return None


def no_deltas(reader: Reader, bringer: Bringer) -> NoDeltas:
    return NoDeltas()


async def cancelled(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def letters(count: int, *, apart_s: int = 3 * 3_600, until: datetime = LAST) -> ListSource:
    """Small letters, the last of them a day before the virtual clock starts."""
    start = int(until.timestamp()) - (count - 1) * apart_s
    return ListSource(
        (
            ListedMail(
                letter(f"Letter {index}", headers={"Message-ID": f"<{index}@x.example>"}),
                (start + index * apart_s) * 1_000,
            )
            for index in range(count)
        ),
        email=OWNER,
    )


def settings_with(**changes: Any) -> SyncSettings:
    """Settings for a test; here, jobs may be smaller than a person could set them."""
    return SyncSettings().model_copy(update=changes)


@dataclass(frozen=True)
class World:
    control: Control
    database: Database
    account: Account
    client: GmailClient
    store: AccountStore
    root: Path
    clock: Clock

    def engine(self, settings: SyncSettings | None = None, deltas: MakeDeltas | None = no_deltas) -> SyncEngine:
        return SyncEngine(
            self.database,
            self.account,
            self.client,
            self.store,
            settings or settings_with(),
            self.clock,
            holder=HOLDER,
            deltas=deltas,
        )

    def whole(self, settings: SyncSettings | None = None) -> SyncEngine:
        """As the product has it, with the account's changes read beside the walk."""
        settings = settings or settings_with()
        return account_sync(self.database, self.account, self.client, self.store, settings, self.clock)

    async def sync(self, settings: SyncSettings | None = None, deltas: MakeDeltas | None = no_deltas) -> SyncEngine:
        engine = self.engine(settings, deltas)
        await engine.run(once=True)
        return engine

    async def state(self) -> SyncState:
        return await self.database.read(lambda tx: get_state(tx, self.account.id))

    async def bad(self) -> set[str]:
        rows = await self.database.read(lambda tx: bad_of(tx, self.account.id))
        return {row.key for row in rows}

    def archived(self) -> dict[str, str]:
        return archived(self.root, self.account.email)

    def truth(self) -> dict[str, str]:
        """Id and hash of all that the mailbox holds."""
        return {str(each["id"]): str(each["sha256"]) for each in self.control.truth()}


Story = Callable[[World], Awaitable[None]]


def in_virtual_time(
    source: MailSource,
    folder: Path,
    story: Story,
    *,
    profile: QuotaProfile | None = None,
    batch_size: int | None = None,
) -> None:
    """Tell a story in a world where a pause of an hour takes no time, and everything happens in the same order."""

    async def main() -> None:
        clock = VirtualClock()
        sim = in_process_sim(source, profile, clock)
        tuning = None if profile else UNHURRIED
        limiter = limiter_for(profile, clock, tuning=tuning, dice=random.Random(1))
        database = await connect(f"sqlite:///{folder / 'postroom.db'}")
        try:
            account = await _account(database, source.email, "http://127.0.0.1", clock)
            async with (
                sim.client(limiter, profile, batch_size=batch_size) as client,
                opened_store(folder / "archive", source.email, purpose="a test") as store,
            ):
                await story(World(sim.control, database, account, client, store, folder / "archive", clock))
        finally:
            await database.close()

    virtual_time.run(main())


@contextlib.asynccontextmanager
async def served_world(source: MailSource, database: Database, root: Path) -> AsyncIterator[World]:
    """The same over real connections and in real time."""
    clock = SystemClock()
    async with running_sim(source) as sim:
        account = await _account(database, sim.email, sim.url, clock)
        limiter = limiter_for(None, clock, tuning=UNHURRIED, dice=random.Random(1))
        config = TransportConfig(api_base=sim.url)
        async with (
            connected(FixedToken(sim.token), limiter, clock, config=config) as client,
            opened_store(root, sim.email, purpose="a test") as store,
        ):
            yield World(sim.control, database, account, client, store, root, clock)


async def _account(database: Database, email: str, api_base: str, clock: Clock) -> Account:
    return await database.write(lambda tx: add_account(tx, NewAccount(email, api_base), clock.now()))


def archived(root: Path, email: str) -> dict[str, str]:
    """Gmail id and hash of all that the archive holds; fails if it holds one twice."""
    with ArchiveReader(root) as reader:
        rows = [row for shard in reader.shards(email) for row in shard.query("SELECT gmail_id, sha256 FROM messages")]
    found = {gmail_id: sha256.hex() for gmail_id, sha256 in rows}
    assert len(found) == len(rows), "a message is in the archive twice"
    return found


@contextlib.contextmanager
def captured_log() -> Iterator[list[dict[str, Any]]]:
    """The events that are logged inside the block, all of them known when it ends."""
    stream = io.StringIO()
    events: list[dict[str, Any]] = []
    logs.configure(level="info", format="json", stream=stream)
    try:
        yield events
    finally:
        logs.configure(level="error", format="console")
        events.extend(json.loads(line) for line in stream.getvalue().splitlines())
