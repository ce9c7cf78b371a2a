"""An installation whose archive is in PostgreSQL, as people and processes use it: import, sync, serve, work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import SecretStr

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.app import App, open_app
from postroom.app.serving import toolbox_of
from postroom.app.worker import open_worker
from postroom.archive.backend import ArchiveBackend
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.dashboard.archive.routes import files_of
from postroom.domain.roles import Caller, Role
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.queue import NewJob
from postroom.queue.inspection import JobFilter, list_jobs
from postroom.settings import ArchiverSettings, ArchiveSettings, DatabaseSettings, Settings, SyncSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.vault import Vault
from tests.support.archiver import CLOCK
from tests.support.archives import ME, generated_mail, plain_letter
from tests.support.commands import in_this_process
from tests.support.databases import PostgresFactory
from tests.support.mail import OWNER, envelope, inline, mailbox
from tests.support.switchboards import DirectCalls

pytestmark = pytest.mark.req("SY-18")

COUNT = 9
IN_DATABASE = ArchiveSettings(store="database")


@pytest.fixture
def url(postgres_factory: PostgresFactory) -> str:
    return postgres_factory.url()


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(COUNT)) as running:
        yield running


def settings_of(home: Path, url: str) -> Settings:
    return Settings(
        home=home,
        database=DatabaseSettings(url=SecretStr(url)),
        archive=IN_DATABASE,
        archiver=ArchiverSettings(enabled=True, action="label"),
        sync=SyncSettings(rps_start=1_000, rps_max=1_000),
    )


def opened(url: str) -> ArchiveBackend:
    return PostgresArchive(url)


def test_the_commands_of_the_archive_work_and_leave_no_file(
    home: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POSTROOM_DATABASE__URL", url)
    monkeypatch.setenv("POSTROOM_ARCHIVE__STORE", "database")
    for number, mail in enumerate(generated_mail(30)):
        (tmp_path / f"{number}.eml").write_bytes(mail.raw)
    imported = in_this_process("import", "eml", str(tmp_path), "--account", ME, "--json").json
    assert (imported["report"]["stored"], imported["report"]["duplicates"]) == (30, 0)
    again = in_this_process("import", "eml", str(tmp_path), "--account", ME, "--json").json
    assert (again["report"]["stored"], again["report"]["duplicates"]) == (0, 30)
    hits = in_this_process("search", "in:anywhere", "--limit", "500", "--json").json["hits"]
    assert len(hits) == 30
    shown = in_this_process("show", hits[0]["message"]["key"][:8], "--json").json
    assert shown["message"]["sha256"] == hits[0]["message"]["sha256"]
    verified = in_this_process("verify", "--json")
    assert (verified.code, verified.json["report"]["messages"]) == (0, 30)
    out = tmp_path / "out"
    exported = in_this_process("export", "eml", "--out", str(out), "--json").json
    assert exported["report"]["exported"] == 30
    assert sorted(file.read_bytes() for file in out.iterdir()) == sorted(mail.raw for mail in generated_mail(30))
    tried = in_this_process("rules", "try", "--subject", "e", "--json")
    assert tried.code == 0
    assert not (home / "archive").exists()


async def test_a_worker_syncs_into_the_database_and_the_archiver_certifies_there(
    home: Path, url: str, sim: GmailSim
) -> None:
    async with open_app(settings_of(home, url)) as app:
        account = await added(app, sim)
        await work(app, NewJob("sync.gmail", {"account_id": account.id}))
        with opened(url) as place, place.reader() as reader:
            assert reader.count(OWNER) == COUNT
            assert place.verify(OWNER).is_sound
        assert files_of(app.archive.backend, OWNER).messages == COUNT
        await work(app, NewJob("archive.gmail", {"account_id": account.id}))
        [archived] = await app.database.read(lambda tx: list_jobs(tx, JobFilter(type="archive.gmail")))
        assert (archived.state, archived.result["removed"]) == ("completed", COUNT)
        assert len(app.archive.backend.ledger(OWNER).certificates()) == COUNT
    assert not (home / "archive").exists()


async def test_two_workers_without_a_shared_disk_fill_one_archive(tmp_path: Path, url: str, sim: GmailSim) -> None:
    homes = [tmp_path / name for name in ("here", "there")]
    async with open_app(settings_of(homes[0], url)) as here, open_app(settings_of(homes[1], url)) as there:
        account = await added(here, sim)
        GrantStore(Vault(homes[1])).save(StaticGrant(email=OWNER, api_base=sim.url, access_token=sim.token))
        async with here.archive.owned("one"), there.archive.owned("the other"):
            await here.queue.enqueue(
                NewJob("sync.gmail", {"account_id": account.id}),
                NewJob("history.sync.gmail", {"account_id": account.id}),
            )
            await asyncio.gather(work(here), work(there))
        with there.archive.backend.reader() as reader:
            assert reader.count(OWNER) == COUNT
        assert here.archive.backend.verify().is_sound


async def test_two_switchboards_on_two_hosts_serve_the_same_mail(tmp_path: Path, url: str) -> None:
    raw = plain_letter("told to one, read from the other")
    async with (
        switchboard(tmp_path / "a", url, Caller(Role.CONNECTOR, "one", endpoint_identity=ME)) as first,
        switchboard(tmp_path / "b", url, Caller(Role.AGENT, "the other")) as second,
    ):
        assert (await first("ingest", envelope("a1", raw=inline(raw))))["status"] == "accepted"
        found = await second("search_archive", {"query": "told to one"})
        assert [message["key"] for message in found["messages"]] == ["a1"]
        assert "read from the other" in (await second("read_message", {"id": "a1"}))["text"]


@asynccontextmanager
async def switchboard(home: Path, url: str, caller: Caller) -> AsyncIterator[DirectCalls]:
    async with (
        open_app(settings_of(home, url)) as app,
        app.archive.owned("a switchboard") as archive,
    ):
        yield DirectCalls(toolbox_of(app, archive, app.archive.backend.search()), caller)


async def added(app: App, sim: GmailSim) -> Account:
    app.grants.save(StaticGrant(email=OWNER, api_base=sim.url, access_token=sim.token))
    return await app.database.write(lambda tx: add_account(tx, NewAccount(OWNER, sim.url), CLOCK.now()))


async def work(app: App, *jobs: NewJob) -> None:
    if jobs:
        await app.queue.enqueue(*jobs)
    async with open_worker(app, until_idle=True) as worker:
        await worker.run()
