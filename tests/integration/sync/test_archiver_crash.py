"""`postroom archive run` in real processes, killed at random points under faults. The stand-in's own record judges:
whatever was removed there had its certificate on disk before, with the hash of the bytes that Gmail held.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.certificates import RemovalResult
from postroom.archive.shards.certificates import certificates_path
from postroom.db import connect
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import MailboxSource
from postroom.sync.fetch import record_bad
from postroom.vault import Vault
from tests.support.archiver import CLOCK, advance_watermark, as_takeout, hour, incoming, store
from tests.support.databases import SqliteFactory
from tests.support.gmail_sim import client_of
from tests.support.mail import OWNER, letter, mailbox

ROOT = Path(__file__).parents[3]
QUICK = {
    "POSTROOM_ARCHIVER__BATCH_SIZE": "8",
    "POSTROOM_SYNC__RPS_START": "1000",
    "POSTROOM_SYNC__RPS_MAX": "1000",
}
MILD = (
    FaultRule(
        fault=GmailFault(kind="drop", after_effect=True),
        method="messages.batchModify",
        probability=0.2,
        seed=3,
        times=2,
    ),
    FaultRule(fault=GmailFault(kind="latency", seconds=0.02), method="messages.batchModify"),
)
WILD = (
    FaultRule(
        fault=GmailFault(kind="error", code=429, reason="rateLimitExceeded", retry_after_s=0), probability=0.02, seed=1
    ),
    FaultRule(fault=GmailFault(kind="truncate"), probability=0.02, seed=2),
    FaultRule(
        fault=GmailFault(kind="drop", after_effect=True), method="messages.batchModify", probability=0.05, seed=3
    ),
    FaultRule(fault=GmailFault(kind="latency", seconds=0.02), method="messages.batchModify"),
)
"""Every pause that they cause is a real one, so they are for the longer run."""


@dataclass(frozen=True)
class House:
    sim: GmailSim
    home: Path

    @property
    def archive(self) -> Path:
        return self.home / "archive"

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        environment = {**os.environ, **QUICK, "POSTROOM_HOME": str(self.home), "PYTHONPATH": path}
        pipe = asyncio.subprocess.PIPE
        command = [sys.executable, "-m", "postroom", *arguments]
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)

    async def postroom(self, *arguments: str) -> tuple[int, str, str]:
        process = await self.start(*arguments)
        out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def archive_run(self) -> tuple[int, str, str]:
        return await self.postroom("archive", "run", "--enable", "--action", "label")

    async def prepare(self, watermark: int, bad: str) -> None:
        database = await connect(f"sqlite:///{self.home / 'postroom.db'}")
        try:
            new = NewAccount(OWNER, self.sim.url)
            account_id = (await database.write(lambda tx: add_account(tx, new, CLOCK.now()))).id
            await database.write(lambda tx: advance_watermark(tx, account_id, watermark))
            await database.write(lambda tx: record_bad(tx, account_id, bad, "broken", 1, CLOCK.now()))
        finally:
            await database.close()

    def removed(self) -> dict[str, int]:
        """By the stand-in's record: which messages lost INBOX, and when."""
        return {
            str(change["id"]): int(str(change["at_ms"]))
            for change in self.sim.control.changes()
            if change["kind"] == "labelsRemoved" and "INBOX" in list(change["labels"])  # type: ignore[call-overload]
        }

    def certificates(self) -> list[tuple[str, str, str, str]]:
        if not certificates_path(self.archive, OWNER).exists():
            return []
        with closing(sqlite3.connect(f"file:{certificates_path(self.archive, OWNER)}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT gmail_id, sha256, certified_at, result FROM ledger").fetchall()

    def check(self, truth: dict[str, str]) -> None:
        """Nothing was removed that had no certificate before, of the bytes that Gmail held; and none has two."""
        certified = {gmail_id: (sha256, at) for gmail_id, sha256, at, _ in self.certificates()}
        assert len(certified) == len(self.certificates())
        for gmail_id, at_ms in self.removed().items():
            sha256, at = certified[gmail_id]
            assert sha256 == truth[gmail_id]
            assert datetime.fromisoformat(at).timestamp() * 1_000 <= at_ms + 1


@asynccontextmanager
async def house(source: MailboxSource, folder: Path, template: str) -> AsyncIterator[House]:
    home = folder / "home"
    home.mkdir(mode=0o700)
    shutil.copy(template.removeprefix("sqlite:///"), home / "postroom.db")
    async with running_sim(source) as sim:
        GrantStore(Vault(home)).save(StaticGrant(email=OWNER, api_base=sim.url, access_token=sim.token))
        yield House(sim, home)


async def kill_when(house: House, process: asyncio.subprocess.Process, removed: int, pause: float) -> None:
    """Once so many messages are gone, and a moment later: the point within a batch is left to chance, from a seed."""
    while len(house.removed()) < removed and process.returncode is None:
        await asyncio.sleep(0.002)
    await asyncio.sleep(pause)
    if process.returncode is None:
        process.kill()
    await process.communicate()


async def run_through_kills(house: House, truth: dict[str, str], kills: int, step: int, dice: random.Random) -> int:
    """How many of the kills came between certificates and their outcome."""
    in_between = 0
    for number in range(kills):
        process = await house.start("archive", "run", "--enable", "--action", "label")
        await kill_when(house, process, (number + 1) * step - step // 2, dice.random() * 0.05)
        house.check(truth)
        in_between += any(result == RemovalResult.INTENDED for *_, result in house.certificates())
    return in_between


async def check_crashes(folder: Path, template: str, count: int, kills: int, faults: Sequence[FaultRule]) -> int:
    source = mailbox(count)
    ids = [source.summary(index).id for index in range(count)]
    async with house(source, folder, template) as built:
        below = count - 10
        await built.prepare(hour(below), ids[5])
        takeout = range(20, 40)
        store(built.archive, (as_takeout(incoming(source, index), changed=index % 2 == 0) for index in takeout))
        store(built.archive, (incoming(source, index) for index in range(count) if index not in takeout))
        truth = {str(mail["id"]): str(mail["sha256"]) for mail in built.sim.control.truth()}
        async with client_of(built.sim) as owner:
            await owner.modify_message(ids[below - 1], add=["STARRED"])  # the archive has not heard of it
        built.sim.control.deliver(letter("Just arrived"))
        for rule in faults:
            built.sim.control.add_fault(rule)
        in_between = await run_through_kills(built, truth, kills, below // (kills + 1), random.Random(count))
        built.sim.control.clear_faults()
        code, out, err = await built.archive_run()
        assert code == 0, out + err
        built.check(truth)
        assert set(built.removed()) == set(ids[:below]) - {ids[5], ids[below - 1]}
        assert {result for *_, result in built.certificates()} == {RemovalResult.REMOVED}
        return in_between


@pytest.mark.req("SY-10")
async def test_an_archiver_killed_at_random_points_removes_nothing_without_a_certificate(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    await check_crashes(tmp_path, sqlite_factory.url(), count=90, kills=3, faults=MILD)


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.req("SY-10")
async def test_an_archiver_killed_again_and_again_over_3_000_messages_ends_with_every_one_certified(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    assert await check_crashes(tmp_path, sqlite_factory.url(), count=3_000, kills=60, faults=WILD) > 0


def corrupt(root: Path, gmail_id: str) -> None:
    """Flip bits of a message's stored bytes, in the file itself."""
    [shard] = (root / OWNER).glob("2023.db")
    with closing(sqlite3.connect(shard)) as connection:
        [(data,)] = connection.execute(
            "SELECT data FROM raw JOIN messages USING (id) WHERE gmail_id = ?", (gmail_id,)
        ).fetchall()
    content = bytearray(shard.read_bytes())
    middle = content.index(data) + len(data) // 2
    for place in range(middle, middle + 4):
        content[place] ^= 0xFF
    shard.write_bytes(content)


@pytest.mark.req("SY-10")
async def test_a_message_whose_stored_bytes_rotted_stops_the_run_before_its_batch(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    source = mailbox(30)
    ids = [source.summary(index).id for index in range(30)]
    async with house(source, tmp_path, sqlite_factory.url()) as built:
        await built.prepare(hour(30), ids[29])
        store(built.archive, (incoming(source, index) for index in range(30)))
        corrupt(built.archive, ids[12])
        code, out, err = await built.archive_run()
        assert code == 1
        assert ids[12] in err
        assert "postroom verify" in err
        assert "8 messages removed" in out
        assert set(built.removed()) == set(ids[:8])
        code, out, _ = await built.postroom("archive", "plan", "--verify", "--json")
        assert code == 0
        assert json.loads(out)[0]["damaged"] == [ids[12]]


@pytest.mark.req("SY-10")
async def test_ctrl_c_ends_after_the_batch_and_the_next_run_goes_on(
    tmp_path: Path, sqlite_factory: SqliteFactory
) -> None:
    source = mailbox(60)
    ids = [source.summary(index).id for index in range(60)]
    async with house(source, tmp_path, sqlite_factory.url()) as built:
        await built.prepare(hour(60), ids[0])
        store(built.archive, (incoming(source, index) for index in range(60)))
        slow = GmailFault(kind="latency", seconds=0.1)
        built.sim.control.add_fault(FaultRule(fault=slow, method="messages.batchModify"))
        process = await built.start("archive", "run", "--enable", "--action", "label")
        while not built.removed():
            await asyncio.sleep(0.005)
        process.send_signal(2)
        out, err = await process.communicate()
        assert process.returncode == 130, err
        assert b"run the same command to continue" in out
        assert {result for *_, result in built.certificates()} == {RemovalResult.REMOVED}
        assert len(built.removed()) < 59
        assert (await built.archive_run())[0] == 0
        assert set(built.removed()) == set(ids[1:])
