"""The recurring jobs in a worker: every account is served, and a job that finds the archive in use ends well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.accounts.history import claim_reader
from postroom.app import App, open_app
from postroom.app.schedules import schedules
from postroom.app.worker import open_worker
from postroom.archive.shards.reader import FileArchiveReader
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.errors import BadInput
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.queue import NewJob
from postroom.queue.inspection import JobFilter, JobRecord, list_jobs
from postroom.settings import ArchiverSettings, RecurringSettings, Settings, SyncSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.vault import Vault
from tests.support.archiver import CLOCK
from tests.support.databases import install
from tests.support.mail import OWNER, mailbox

COUNT = 7
HURRIED = SyncSettings(rps_start=1_000, rps_max=1_000)
FROM_INBOX = ArchiverSettings(enabled=True, action="label")


@pytest.fixture
async def sim() -> AsyncIterator[GmailSim]:
    async with running_sim(mailbox(COUNT)) as running:
        yield running


@asynccontextmanager
async def app_with_account(home: Path, sim: GmailSim, **settings: Any) -> AsyncIterator[tuple[App, Account]]:
    install(home)
    GrantStore(Vault(home)).save(StaticGrant(email=OWNER, api_base=sim.url, access_token=sim.token))
    async with open_app(Settings(home=home, sync=HURRIED, **settings)) as app:
        account = await app.database.write(lambda tx: add_account(tx, NewAccount(OWNER, sim.url), CLOCK.now()))
        yield app, account


async def run_worker(app: App) -> None:
    """What is due is fired first: a worker that ends when idle may do so before it looks."""
    async with open_worker(app, until_idle=True) as worker:
        await app.database.write(app.queue.fire_schedules)
        await worker.run()


async def job_of(app: App, job_type: str) -> JobRecord:
    [job] = await app.database.read(lambda tx: list_jobs(tx, JobFilter(type=job_type)))
    return job


@pytest.mark.req("JB-6")
async def test_a_worker_syncs_every_account_and_then_archives_what_may_go(home: Path, sim: GmailSim) -> None:
    async with app_with_account(home, sim, archiver=FROM_INBOX) as (app, _):
        await run_worker(app)
        synced = await job_of(app, "sync.gmail")
        assert (synced.state, synced.result["stored"]) == ("completed", COUNT)
        with FileArchiveReader(home / "archive") as reader:
            assert reader.count(OWNER) == COUNT
        assert (await job_of(app, "sync.bad.gmail")).state == "completed"
        assert not await app.database.read(lambda tx: list_jobs(tx, JobFilter(type="archive.gmail")))
        await app.queue.enqueue(NewJob("accounts.each", {"type": "archive.gmail"}))
        await run_worker(app)
        archived = await job_of(app, "archive.gmail")
        assert (archived.state, archived.result["removed"]) == ("completed", COUNT)
        assert not any("INBOX" in mail["label_ids"] for mail in sim.control.truth(hashes=False))  # type: ignore[operator]


@pytest.mark.req("JB-6", "SY-7", "SY-13")
async def test_a_job_that_finds_the_archive_or_the_account_taken_ends_well_and_says_by_whom(
    home: Path, sim: GmailSim
) -> None:
    only_archive = RecurringSettings(live="off")
    async with app_with_account(home, sim, recurring=only_archive) as (app, account):
        with FileArchiveWriter(home / "archive", purpose="postroom sync run"):
            await run_worker(app)
        job = await job_of(app, "sync.gmail")
        assert job.state == "completed"
        assert "`postroom sync run`" in job.result["skipped"]
        now = CLOCK.now()
        await app.database.write(lambda tx: claim_reader(tx, account.id, "the connector", now))
        await app.queue.enqueue(NewJob("sync.gmail", {"account_id": account.id}, key=f"sync.gmail:{account.id}"))
        await run_worker(app)
        assert "the connector" in (await job_of(app, "sync.gmail")).result["skipped"]


@pytest.mark.req("JB-6", "SY-10")
async def test_the_archiver_has_no_schedule_until_it_is_enabled_and_runs_nothing_then(
    home: Path, sim: GmailSim
) -> None:
    async with app_with_account(home, sim, recurring=RecurringSettings(sync="off")) as (app, account):
        assert "archive.gmail" not in {each.name for each in schedules(app.settings)}
        await app.queue.enqueue(NewJob("archive.gmail", {"account_id": account.id}))
        await run_worker(app)
        assert (await job_of(app, "archive.gmail")).result == {"skipped": "archiver.enabled is not set."}
        assert not await app.database.read(lambda tx: list_jobs(tx, JobFilter(type="sync.gmail")))


@pytest.mark.req("JB-6")
async def test_a_schedule_that_is_turned_off_stops_firing(home: Path, sim: GmailSim) -> None:
    async with app_with_account(home, sim) as (app, _):
        await app.declare_schedules()
        nothing = RecurringSettings(sync="off", bad_messages="off", live="off", labels="off")
        changed = app.settings.model_copy(update={"recurring": nothing})
        async with open_app(changed) as other:
            await run_worker(other)
            assert not await other.database.read(lambda tx: list_jobs(tx, JobFilter(type="accounts.each")))


async def test_a_cadence_that_nobody_understands_is_refused_when_the_worker_starts(home: Path, sim: GmailSim) -> None:
    wrong = RecurringSettings(sync="now and then")
    async with app_with_account(home, sim, recurring=wrong) as (app, _):
        with pytest.raises(BadInput, match="now and then"):
            await app.declare_schedules()
