"""Jobs record what they did, step by step, whichever part of the product they are of."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from sqlalchemy import select

from postroom.accounts.account_jobs import job_of
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.audit import SYSTEM
from postroom.db.tables.queue import job_steps, jobs
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import BACKFILL, CLASSIFY, HISTORY_SYNC, LABELS_SYNC, SYNC_BAD
from postroom.domain.roles import Caller, Role
from postroom.settings import BackfillSettings, DatabaseSettings, RecurringSettings, Settings
from postroom.sim.gmail.server import running_sim
from postroom.switchboard.backfill.terms import NewBackfill
from tests.support.logins import logged_in
from tests.support.mail import letter, mailbox

NOTHING_RECURS = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off")


async def work(app: App) -> None:
    async with open_worker(app, until_idle=True) as worker:
        await worker.run()


@pytest.mark.req("JB-1")
async def test_jobs_of_every_kind_record_their_steps(tmp_path: Path, database_url: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    groups = {"recurring": NOTHING_RECURS, "backfill": BackfillSettings(enabled=True)}
    settings = Settings(home=home, database=DatabaseSettings(url=database_url), **groups)
    async with running_sim(mailbox(2)) as sim, open_app(settings) as app:
        _, grant = await logged_in(sim, home, SystemClock())
        account, _ = await app.take_in(grant, SYSTEM)
        await app.queue.enqueue(job_of(HISTORY_SYNC.name, account))
        await work(app)
        sim.control.deliver(letter("New"), frozenset({"INBOX"}))
        new = NewBackfill("gmail", account.email, date(2000, 1, 1), date(2030, 1, 1), uses_model=False)
        await app.backfill.create(Caller(Role.DASHBOARD, "the owner"), new)
        kinds = (HISTORY_SYNC, SYNC_BAD, LABELS_SYNC, BACKFILL)
        await app.queue.enqueue(*(job_of(kind.name, account) for kind in kinds))
        await work(app)
        query = select(jobs.c.type, job_steps.c.name).join(job_steps, job_steps.c.job_id == jobs.c.id).distinct()
        found = await app.database.read(lambda tx: {(row.type, row.name) for row in tx.execute(query)})
    wanted = {HISTORY_SYNC: "pass", SYNC_BAD: "retry", LABELS_SYNC: "list", BACKFILL: "pass", CLASSIFY: "decide"}
    assert found >= {(kind.name, step) for kind, step in wanted.items()}
