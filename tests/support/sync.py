"""A sync in one process: the stand-in, a database, an archive, and an engine for its account; and one account without a
pace for tests of changes.

As a program it is a sync to be killed: `python -m tests.support.sync` and one JSON object. Its log goes to standard
error at level info; it exits with 0 when everything is archived.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx2

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.accounts.history import HistoryLease, claim_reader, cursor_of, move_cursor
from postroom.accounts.observers import MailboxObserver, NoObserver
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import AccountStore
from postroom.archive.shards.reader import MESSAGE_COLUMNS, FileArchiveReader
from postroom.db import Database, connect
from postroom.domain.clock import Clock, ManualClock, SystemClock
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.methods import PROFILES, ProfileName, QuotaProfile
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.labels import LabelNames
from postroom.mailboxes.limiter import limiter_for
from postroom.settings import SyncSettings
from postroom.sim.gmail.control import SimControl
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource, MailboxSource
from postroom.sync.context import sync_context
from postroom.sync.engine import MakeChangeReader, SyncEngine, build_engine
from postroom.sync.fetch import MailFetcher, bad_of
from postroom.sync.history import HistoryFollower, OnPage
from postroom.sync.labels import LabelFollower
from postroom.sync.slices import Granularity
from postroom.sync.state import SyncState, begin_walk, get_state
from postroom.telemetry import logs
from tests.support import virtual_time
from tests.support.archives import opened_store
from tests.support.databases import install
from tests.support.gmail_sim import UNHURRIED, FixedToken, in_process_sim
from tests.support.mail import OWNER, letter
from tests.support.virtual_time import VirtualClock


@dataclass(frozen=True)
class SyncedAccount:
    database: Database
    account: Account
    client: GmailClient
    control: SimControl
    store: AccountStore
    root: Path
    clock: Clock

    @property
    def mailbox(self) -> GmailMailbox:
        return GmailMailbox(self.client)

    async def claim(self, holder: str = "a test") -> HistoryLease:
        """The right to read the account's changes, from where the mailbox stands now if they were never read before."""
        now = self.clock.now()
        reader = await self.database.write(lambda tx: claim_reader(tx, self.account.id, holder, now))
        if reader.history_id is None:
            start = (await self.client.get_profile()).history_id
            await self.database.write(lambda tx: move_cursor(tx, reader, start, now))
        return reader

    def fetcher(self, store: AccountStore | None = None) -> MailFetcher:
        """As a fresh process has it: it remembers no label."""
        keeper = LabelFollower(self.database, self.account.id, self.mailbox, store or self.store)
        return MailFetcher(self.mailbox, store or self.store, LabelNames(self.mailbox, keeper))

    def deltas(
        self,
        reader: HistoryLease,
        fetcher: MailFetcher | None = None,
        on_page: OnPage = lambda page: None,
        watch: MailboxObserver | None = None,
    ) -> HistoryFollower:
        watch = watch or NoObserver()
        return HistoryFollower(self.database, reader, fetcher or self.fetcher(), self.clock, on_page, watch)

    async def bring_all(self) -> None:
        """What a walk would do: everything that is at the source now."""
        fetcher = self.fetcher()
        await fetcher.names.refresh()
        await fetcher.fetch([str(each["id"]) for each in self.control.truth(hashes=False)])

    async def cursor(self) -> str | None:
        return await self.database.read(lambda tx: cursor_of(tx, self.account.id))

    def archived(self) -> dict[str, ArchivedMessage]:
        """Every message of the archive, by Gmail id."""
        query = f"SELECT {MESSAGE_COLUMNS} FROM messages"  # noqa: S608 - a constant
        with FileArchiveReader(self.root) as reader:
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
async def synced_account(
    database: Database, source: MailboxSource, root: Path, clock: Clock | None = None
) -> AsyncIterator[SyncedAccount]:
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
        yield SyncedAccount(database, account, client, sim.control, store, root, clock)


HOLDER = "a test"
LAST = datetime(2025, 12, 31, tzinfo=UTC)


class NoDeltas:
    """For tests of the walk alone."""

    async def read(self) -> None:
        return None


def no_deltas(reader: HistoryLease, fetcher: MailFetcher) -> NoDeltas:
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
class SyncRig:
    control: SimControl
    database: Database
    account: Account
    client: GmailClient
    store: AccountStore
    root: Path
    clock: Clock

    @property
    def mailbox(self) -> GmailMailbox:
        return GmailMailbox(self.client)

    def engine(self, settings: SyncSettings | None = None, deltas: MakeChangeReader | None = no_deltas) -> SyncEngine:
        settings = settings or settings_with()
        context = sync_context(self.database, self.account, self.mailbox, self.store, settings, self.clock)
        return SyncEngine(context, HOLDER, changes=deltas)

    def whole(self, settings: SyncSettings | None = None) -> SyncEngine:
        """As the product has it, with the account's changes read beside the walk."""
        settings = settings or settings_with()
        return build_engine(self.database, self.account, self.mailbox, self.store, settings, self.clock)

    async def sync(
        self, settings: SyncSettings | None = None, deltas: MakeChangeReader | None = no_deltas
    ) -> SyncEngine:
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


SyncScenario = Callable[[SyncRig], Awaitable[None]]


def in_virtual_time(
    source: MailboxSource,
    folder: Path,
    story: SyncScenario,
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
        database = await connect(f"sqlite:///{install(folder) / 'postroom.db'}")
        try:
            account = await _account(database, source.email, "http://127.0.0.1", clock)
            async with (
                sim.client(limiter, profile, batch_size=batch_size) as client,
                opened_store(folder / "archive", source.email, purpose="a test") as store,
            ):
                await story(SyncRig(sim.control, database, account, client, store, folder / "archive", clock))
        finally:
            await database.close()

    virtual_time.run(main())


@contextlib.asynccontextmanager
async def sync_rig(source: MailboxSource, database: Database, root: Path) -> AsyncIterator[SyncRig]:
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
            yield SyncRig(sim.control, database, account, client, store, root, clock)


async def _account(database: Database, email: str, api_base: str, clock: Clock) -> Account:
    return await database.write(lambda tx: add_account(tx, NewAccount(email, api_base), clock.now()))


def archived(root: Path, email: str) -> dict[str, str]:
    """Gmail id and hash of all that the archive holds; fails if it holds one twice."""
    with FileArchiveReader(root) as reader:
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


async def sync_until_killed(folder: Path, url: str, token: str, email: str, settings: dict[str, object]) -> None:
    clock = SystemClock()
    database = await connect(f"sqlite:///{folder / 'postroom.db'}")
    try:
        account = await database.write(lambda tx: add_account(tx, NewAccount(email, url), clock.now()))
        limiter = limiter_for(None, clock, tuning=UNHURRIED, dice=random.Random(1))
        async with (
            connected(FixedToken(token), limiter, clock, config=TransportConfig(api_base=url, read_s=20)) as client,
            opened_store(folder / "archive", email) as store,
        ):
            engine = build_engine(database, account, GmailMailbox(client), store, settings_with(**settings), clock)
            await engine.run(once=True)
    finally:
        await database.close()


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    logs.configure(level="info", format="json")
    asyncio.run(sync_until_killed(Path(task["folder"]), task["url"], task["token"], task["email"], task["settings"]))
