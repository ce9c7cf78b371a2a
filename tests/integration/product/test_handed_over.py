"""Imports and repairs beside a running Postroom: it does them, and the command shows how they go."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest

from postroom.app import archive_runner, open_app
from postroom.app.archive_runner import index_handler
from postroom.app.archive_tasks import (
    ArchiveTask,
    ImportOrder,
    TaskKind,
    TaskState,
    add_task,
    get_task,
    home_id,
    list_tasks,
)
from postroom.archive.backend import ImportTarget
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.sources import MailFormat, open_mbox
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.service import open_archive
from postroom.archive.status import ArchiveFlaw
from postroom.audit import SYSTEM
from postroom.cli.mail import handed_over
from postroom.domain.errors import Fatal
from postroom.domain.jobs import ARCHIVE_INDEX
from postroom.queue import NewJob
from postroom.settings import Settings
from postroom.sim.gmail.server import running_sim
from tests.support.archives import ME, plain_letter
from tests.support.attachments import with_attachments
from tests.support.commands import in_this_process, postroom
from tests.support.dashboard_data import archive_mail
from tests.support.dashboards import Site, open_site
from tests.support.databases import install
from tests.support.mail import OWNER, mailbox, write_mbox
from tests.support.queues import run_until_idle
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("SY-16")

COUNT = 30


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_runner, "_LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(archive_runner, "_REPORT_EVERY_S", 0.02)
    monkeypatch.setattr(handed_over, "_LOOK_EVERY_S", 0.02)


@pytest.fixture
async def site(home: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(home)) as opened:
        yield opened


@pytest.fixture
def box(tmp_path: Path) -> Path:
    path = tmp_path / "mail.mbox"
    write_mbox(path, [plain_letter(f"{n}", message_id=f"<{n}@example.org>") for n in range(COUNT)])
    return path


async def test_an_import_beside_a_running_postroom_is_done_there_and_reported_as_ever(site: Site, box: Path) -> None:
    done = await postroom("import", "mbox", str(box), "--account", ME, "--json")
    assert done.code == 0, done.stderr
    assert "is running and owns the archive: the import is done there" in done.stderr
    assert "postroom switchboard" in done.json["done_by"]
    assert (done.json["report"]["found"], done.json["report"]["stored"]) == (COUNT, COUNT)
    again = await postroom("import", "mbox", str(box), "--account", ME)
    assert f"0 stored, {COUNT} were there already" in again.stdout
    with site.app.archive.backend.reader() as reader:
        assert reader.count(ME) == COUNT
    audited = (await site.api("GET", "/audit?action=archive.import")).json()["items"]
    assert len(audited) == 2


@pytest.mark.req("FD-1")
async def test_a_worker_beside_the_owner_of_the_archive_has_it_index_attachments(site: Site) -> None:
    await archive_mail(site, [with_attachments(1, [("a.txt", b"hiddenword")])])
    async with open_app(Settings(home=site.app.settings.home)) as other:
        await other.queue.enqueue(NewJob(ARCHIVE_INDEX.name, key="index"))
        await run_until_idle(other.queue, {ARCHIVE_INDEX.name: index_handler(other)})
    tasks: list[ArchiveTask] = []
    while not tasks or not tasks[0].is_over:
        tasks = await site.app.database.read(lambda tx: list_tasks(tx, TaskKind.INDEX))
        await asyncio.sleep(0)
    assert (tasks[0].state, tasks[0].result) == (TaskState.COMPLETED, {"attachments": 1, "stopped": False})
    with site.app.archive.backend.search() as search:
        assert search.count("attachment:hiddenword").messages == 1


async def test_what_fails_there_fails_here_and_what_is_wrong_is_not_handed_over(
    site: Site, box: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = await postroom("import", "eml", str(box), "--account", ME)
    assert (wrong.code, "postroom import mbox" in wrong.stderr) == (2, True)
    assert await site.read(lambda tx: list_tasks(tx, TaskKind.IMPORT)) == []

    def fail(*given: object, **more: object) -> None:
        raise Fatal("The disk is full.")

    monkeypatch.setattr(archive_runner, "import_mail", fail)
    failed = await postroom("import", "mbox", str(box), "--account", ME)
    assert (failed.code, "The disk is full." in failed.stderr) == (1, True)
    [task] = await site.read(lambda tx: list_tasks(tx, TaskKind.IMPORT))
    assert task.state is TaskState.FAILED


async def test_an_import_that_was_cut_off_goes_on_counting_where_it_was(home: Path, box: Path) -> None:
    cut_off = threading.Event()
    cut_off.set()  # after the first message
    with open_archive(Settings(home=home)) as place, place.writer("a test") as archive:
        target = cast(ImportTarget, archive)
        first = import_mail(target, ME, open_mbox(box), stop=cut_off)
    assert (first.found, first.stopped) == (1, True)
    async with in_a_task(open_site(home)):
        done = await postroom("import", "mbox", str(box), "--account", ME, "--json")
    report = done.json["report"]
    assert (report["found"], report["stored"], report["duplicates"]) == (COUNT, COUNT, 0)
    assert report["bytes"] > first.bytes
    assert report["resumed_from"].startswith("byte ")


async def test_a_sync_beside_a_bare_switchboard_is_done_by_it(site: Site) -> None:
    async with running_sim(mailbox(9)) as sim:
        base = ["--api-base", sim.url, "--access-token", sim.token]
        added = await postroom("account", "add", "gmail", "--email", OWNER, *base)
        assert added.code == 0, added.stderr
        done = await postroom("sync", "run", "--json")
        assert done.code == 0, done.stderr
        assert "is running and owns the archive: the sync is done there" in done.stderr
        [ended] = done.json["accounts"]
        assert (ended["error"], ended["result"]["stored"], ended["result"]["watermark"] > 0) == (None, 9, True)
        again = await postroom("sync", "run")
        assert f"{OWNER}: 0 stored" in again.stdout
        assert "run the same command again, or `postroom up` in its place" in again.stdout
        sim.control.revoke()
        refused = await postroom("sync", "run")
        assert (refused.code, "postroom account add gmail" in refused.stderr) == (1, True)
    with site.app.archive.backend.reader() as reader:
        assert reader.count(OWNER) == 9


def test_an_import_that_waits_for_a_start_is_settled_by_the_command_that_did_it_without_one(
    home: Path, box: Path
) -> None:
    install(home)
    order = ImportOrder(MailFormat.MBOX, box, ME).written()

    async def hand_over() -> str:
        async with open_app(Settings(home=home)) as app:
            name, now = home_id(home), app.clock.now()
            task, _ = await app.database.write(lambda tx: add_task(tx, name, TaskKind.IMPORT, order, SYSTEM, now))
            same, is_new = await app.database.write(lambda tx: add_task(tx, name, TaskKind.IMPORT, order, SYSTEM, now))
            assert (same.id, is_new) == (task.id, False)
            return task.id

    async def settled(task_id: str) -> TaskState:
        async with open_app(Settings(home=home)) as app:
            return (await app.database.read(lambda tx: get_task(tx, task_id))).state

    task_id = asyncio.run(hand_over())
    done = in_this_process("import", "mbox", str(box), "--account", ME)
    assert (done.code, asyncio.run(settled(task_id))) == (0, TaskState.COMPLETED), done.stderr


async def test_a_damaged_shard_is_rebuilt_while_postroom_goes_on_writing_to_it(home: Path) -> None:
    mails = [IncomingMail(plain_letter(f"{n}", message_id=f"<{n}@x>"), Provenance.IMPORT) for n in range(3)]
    with open_archive(Settings(home=home)) as place, place.writer("a test") as archive:
        keys = [stored.key for stored in archive.store(ME, mails)]
    [shard] = (home / "archive" / ME).glob("*.db")
    with closing(sqlite3.connect(shard)) as database:
        database.execute("UPDATE raw SET data = x'00' WHERE id = (SELECT id FROM messages WHERE key = ?)", (keys[0],))
        database.commit()
    async with in_a_task(open_site(home)) as site, site.app.archive.store(ME, "a test") as store:
        later = [IncomingMail(plain_letter(f"new {n}", message_id=f"<n{n}@x>"), Provenance.IMPORT) for n in range(2)]
        await store.store(later[:1])
        done = await postroom("verify", "--repair")
        assert "the repair is done there" in done.stderr
        assert "Rebuilt" in done.stdout
        assert "3 messages recovered, 1 lost" in done.stdout
        await store.store(later[1:])
        shared = site.dashboard._services.shared.archive
        assert await shared.read(lambda reader: reader.count(ME)) == 4
        [left] = [finding for finding in site.app.archive.backend.verify(ME).findings]
        assert left.flaw is ArchiveFlaw.LOST_BEFORE
