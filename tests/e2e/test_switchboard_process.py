"""`postroom switchboard` as a process: served to a stranger, killed at bad moments, and ended politely."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from mcp import MCPError
from sqlalchemy import select

from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.archive.status import OwnedElsewhere
from postroom.db import Database, connect
from postroom.db.tables.mail import ingest_inbox, messages
from postroom.db.tables.queue import jobs
from postroom.domain.errors import BadInput
from postroom.domain.roles import Role
from tests.support.archives import ME, generated_mail
from tests.support.databases import DatabaseFactory
from tests.support.mail import envelope, inline
from tests.support.switchboards import Calls, SwitchboardProcess, stranger

BATCH = 20
GONE = (MCPError, httpx2.HTTPError, ExceptionGroup, OSError)


@asynccontextmanager
async def process(home: Path, url: str | None = None) -> AsyncIterator[SwitchboardProcess]:
    running = SwitchboardProcess(home, url)
    await running.start()
    try:
        yield running
    finally:
        if running.process is not None and running.process.returncode is None:
            await running.kill()


@pytest.mark.req("PL-4", "PL-7", "SY-7")
async def test_a_stranger_with_a_token_can_use_it_and_it_ends_cleanly(home: Path) -> None:
    async with process(home) as running:
        assert running.url.startswith("http://127.0.0.1:")
        async with stranger(running.url, await running.token(Role.CONNECTOR, endpoint_identity=ME)) as call:
            first = await call("ingest", envelope("a1", raw=inline(b"Subject: hello\r\n\r\nworld")))
            assert first["status"] == "accepted"
            with pytest.raises(BadInput):
                await call("ingest", {"schema_version": "ingest.v1"})
        with pytest.raises(OwnedElsewhere, match="being written by `postroom switchboard`"):
            FileArchiveWriter(home / "archive")
        code, logged = await running.end()
    assert code == 0
    assert '"level": "error"' not in logged
    with FileArchiveReader(home / "archive") as archive:
        assert archive.raw(ME, "a1") == b"Subject: hello\r\n\r\nworld"


async def test_a_second_switchboard_is_told_who_owns_the_archive(home: Path) -> None:
    async with process(home):
        second = SwitchboardProcess(home)
        with pytest.raises(AssertionError, match="being written by `postroom switchboard`"):
            await second.start()


class Courier:
    """Brings all mail, whatever happens to the Switchboard, by starting again where an answer is missing."""

    def __init__(self, mails: list[Any], random: Random) -> None:
        self.mails = mails
        self.random = random
        self.answers: dict[str, str] = {}

    async def deliver(self, running: SwitchboardProcess) -> None:
        """Until a call fails because the other side is gone, or everything is delivered."""
        async with stranger(running.url, await running.token(Role.CONNECTOR)) as call:
            missing = [mail for mail in self.mails if mail.gmail_id not in self.answers]
            self.random.shuffle(missing)
            for start in range(0, len(missing), BATCH):
                await self._batch(call, missing[start : start + BATCH])

    async def _batch(self, call: Calls, some: list[Any]) -> None:
        raws = [
            {
                "gmail_id": mail.gmail_id,
                "internal_date": int(mail.received.timestamp() * 1_000),
                "raw": inline(mail.raw)["base64"],
            }
            for mail in some
        ]
        proofs = (await call("archive.store", endpoint_identity=ME, messages=raws))["stored"]
        sent = [envelope(p["key"], raw={"key": p["key"], "sha256": p["sha256"]}, text="body") for p in proofs]
        again = self.random.sample(sent, 3)
        results = (await call("ingest", {"envelopes": [*sent, *again]}))["results"]
        for one, result in zip([*sent, *again], results, strict=True):
            assert result["status"] == "accepted"
            known = self.answers.setdefault(one["event"]["external_event_id"], result["request_id"])
            assert known == result["request_id"]


async def survive(home: Path, url: str | None, count: int, kills: int, seed: int) -> None:
    random = Random(seed)
    courier = Courier(generated_mail(count, seed), random)
    running = SwitchboardProcess(home, url)
    await running.start()
    try:
        for _ in range(kills):
            delivery = asyncio.create_task(courier.deliver(running))
            wanted = len(courier.answers) + random.randrange(1, count // (kills + 1))
            while len(courier.answers) < wanted and not delivery.done():
                await asyncio.sleep(random.uniform(0, 0.02))
            await running.kill()
            await asyncio.gather(delivery, return_exceptions=True)
            failure = delivery.exception()
            assert failure is None or isinstance(failure, GONE), failure
            await running.start()
        await courier.deliver(running)
        assert (await running.end())[0] == 0
    finally:
        if running.process is not None and running.process.returncode is None:
            await running.kill()
    database = await connect(url or f"sqlite:///{home / 'postroom.db'}")
    try:
        await examine(database, home, courier)
    finally:
        await database.close()


async def examine(database: Database, home: Path, courier: Courier) -> None:
    """Nothing lost, nothing doubled: each message once in the archive, the tables and the queue."""
    rows = await database.read(lambda tx: list(tx.execute(select(messages)).all()))
    inbox = await database.read(lambda tx: list(tx.execute(select(ingest_inbox)).all()))
    queued = await database.read(lambda tx: list(tx.execute(select(jobs).where(jobs.c.type == "classify")).all()))
    wanted = {mail.gmail_id: hashlib.sha256(mail.raw).hexdigest() for mail in courier.mails}
    assert sorted(row.external_event_id for row in rows) == sorted(wanted)
    assert {row.external_event_id: row.archive_sha256 for row in rows} == wanted
    assert {row.request_id for row in inbox} == set(courier.answers.values())
    assert len(inbox) == len(queued) == len(wanted)
    with FileArchiveReader(home / "archive") as archive:
        assert archive.count() == len(wanted)
        for mail in courier.mails:
            assert archive.raw(ME, mail.gmail_id) == mail.raw


@pytest.mark.req("PL-4", "BF-13", "SY-13")
async def test_a_switchboard_killed_at_random_loses_nothing_and_doubles_nothing(
    home: Path, database_factory: DatabaseFactory
) -> None:
    url = database_factory.url() if database_factory.dialect == "postgresql" else None
    await survive(home, url, count=240, kills=2, seed=3)


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_many_kills(home: Path, database_factory: DatabaseFactory, seed: int) -> None:
    url = database_factory.url() if database_factory.dialect == "postgresql" else None
    await survive(home, url, count=3_000, kills=12, seed=seed)
