"""A whole sync in one process: the stand-in, a database, an archive, and an engine for its account."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from postroom.accounts.history import Reader
from postroom.accounts.store import Account, NewAccount, add_account
from postroom.archive.reading import ArchiveReader
from postroom.db import Database
from postroom.domain.clock import Clock
from postroom.gmail.client import GmailClient, connected
from postroom.gmail.limiter import limiter_for
from postroom.gmail.quota import QuotaProfile
from postroom.gmail.sim.model import MailSource
from postroom.gmail.sim.server import Sim, running_sim
from postroom.gmail.transport import TransportConfig
from postroom.settings import SyncSettings
from postroom.sync.bringing import Bringer
from postroom.sync.engine import MakeDeltas, SyncEngine
from postroom.sync.state import SyncState, bad_of, get_state
from postroom.sync.store import ArchiveStore, opened_store
from postroom.telemetry import logs
from tests.support.gmail_client import UNHURRIED, FixedToken

HOLDER = "a test"
NOW = datetime(2026, 11, 1, tzinfo=UTC)


class HastyClock:
    """Time that runs so many times as fast as the real one; pauses are as much shorter."""

    def __init__(self, speed: float = 100.0, start: datetime = NOW) -> None:
        self._speed = speed
        self._start = start
        self._origin = time.monotonic()

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return (time.monotonic() - self._origin) * self._speed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)


class NoDeltas:
    """For tests of the walk alone."""

    def __init__(self) -> None:
        self.reads = 0

    async def read(self) -> None:
        self.reads += 1


def no_deltas(reader: Reader, bringer: Bringer) -> NoDeltas:
    return NoDeltas()


def hurried(**changes: Any) -> SyncSettings:
    """Settings for a test; small jobs are allowed here."""
    return SyncSettings().model_copy(update=changes)


@dataclass(frozen=True)
class World:
    sim: Sim
    database: Database
    account: Account
    client: GmailClient
    store: ArchiveStore
    root: Path
    clock: Clock

    def engine(self, settings: SyncSettings | None = None, deltas: MakeDeltas = no_deltas) -> SyncEngine:
        return SyncEngine(
            self.database,
            self.account,
            self.client,
            self.store,
            settings or hurried(),
            self.clock,
            holder=HOLDER,
            deltas=deltas,
        )

    async def sync(self, settings: SyncSettings | None = None, deltas: MakeDeltas = no_deltas) -> SyncEngine:
        engine = self.engine(settings, deltas)
        await engine.run(once=True)
        return engine

    async def state(self) -> SyncState:
        return await self.database.read(lambda tx: get_state(tx, self.account.id))

    async def bad(self) -> set[str]:
        rows = await self.database.read(lambda tx: bad_of(tx, self.account.id))
        return {row.gmail_id for row in rows}

    def archived(self) -> dict[str, str]:
        return archived(self.root, self.account.email)


@contextlib.asynccontextmanager
async def sync_world(
    source: MailSource,
    database: Database,
    root: Path,
    *,
    clock: Clock | None = None,
    quota: str = "none",
    profile: QuotaProfile | None = None,
    config: TransportConfig | None = None,
) -> AsyncIterator[World]:
    clock = clock or HastyClock()
    async with running_sim(source, quota=quota) as sim:
        new = NewAccount(sim.email, sim.url)
        account = await database.write(lambda tx: add_account(tx, new, clock.now()))
        limiter = limiter_for(profile, clock, tuning=UNHURRIED, dice=random.Random(1))
        config = config or TransportConfig(api_base=sim.url, read_s=2.0)
        async with (
            connected(FixedToken(sim.token), limiter, clock, profile=profile, config=config) as client,
            opened_store(root, sim.email, purpose="a test") as store,
        ):
            yield World(sim, database, account, client, store, root, clock)


def archived(root: Path, email: str) -> dict[str, str]:
    """Gmail id and hash of all that the archive holds; fails if it holds one twice."""
    with ArchiveReader(root) as reader:
        rows = [row for shard in reader.shards(email) for row in shard.query("SELECT gmail_id, sha256 FROM messages")]
    found = {gmail_id: sha256.hex() for gmail_id, sha256 in rows}
    assert len(found) == len(rows), "a message is in the archive twice"
    return found


def truth(sim: Sim) -> dict[str, str]:
    """The same of what the mailbox holds."""
    return {str(each["id"]): str(each["sha256"]) for each in sim.control.truth()}


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
