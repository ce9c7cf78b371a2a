"""When a worker asks for backfill work: at once for a new job, never twice within a minute, and not without a job."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.accounts.account_jobs import job_of
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.audit import SYSTEM
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.domain.jobs import BACKFILL
from postroom.domain.roles import Caller, Role
from postroom.domain.terms import BackfillStatus
from postroom.settings import BackfillSettings, DatabaseSettings, RecurringSettings, Settings
from postroom.sim.gmail.server import running_sim
from postroom.switchboard.backfill.operations import Backfill
from postroom.switchboard.backfill.terms import NewBackfill
from tests.support.logins import logged_in
from tests.support.mail import mailbox

ONLY_BACKFILL = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off")
OWNER = Caller(Role.DASHBOARD, "the owner", is_proved=True)


async def backfill_jobs(app: App) -> list[Any]:
    query = select(jobs.c.state, jobs.c.ready, jobs.c.result_json).where(jobs.c.type == BACKFILL.name)
    return await app.database.read(lambda tx: list(tx.execute(query)))


@pytest.mark.req("BF-11", "BF-4")
async def test_a_new_job_is_asked_for_at_once_and_the_next_one_waits_for_the_minute(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = 0
    poll = Backfill.poll

    async def counted(self: Backfill, *given: Any) -> Any:
        nonlocal polls
        polls += 1
        return await poll(self, *given)

    monkeypatch.setattr(Backfill, "poll", counted)
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    settings = Settings(
        home=home,
        database=DatabaseSettings(url=database_url),
        recurring=ONLY_BACKFILL,
        backfill=BackfillSettings(enabled=True),
    )
    async with running_sim(mailbox(2)) as sim, open_app(settings) as app:
        _, grant = await logged_in(sim, home, SystemClock())
        account, _ = await app.take_in(grant, SYSTEM)
        new = NewBackfill("gmail", account.email, date(2000, 1, 1), date(2030, 1, 1), uses_model=False)

        await app.queue.enqueue(job_of(BACKFILL.name, account))
        async with open_worker(app, until_idle=True) as worker:
            await worker.run()
            [row] = await backfill_jobs(app)
            assert (polls, row.state) == (0, "completed")
            assert "skipped" in row.result_json

            first = await app.backfill.create(OWNER, new)
            await worker.run()
            assert (polls, (await app.backfill.show(first.id)).job.status) == (1, BackfillStatus.COMPLETED)

            second = await app.backfill.create(OWNER, new)
            await worker.run()
            [row] = await backfill_jobs(app)
            assert (polls, row.state, row.ready) == (1, "queued", False)
            assert (await app.backfill.show(second.id)).job.status is BackfillStatus.PENDING
