"""A gap in Gmail's history is filled by a job of its own, and nothing that came meanwhile is missed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.accounts.account_jobs import job_of
from postroom.accounts.history import cursor_of
from postroom.app import App, open_app
from postroom.app.schedules import gap_key
from postroom.app.worker import open_worker
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.domain.jobs import BACKFILL, HISTORY_SYNC
from postroom.mailboxes.credentials import StaticGrant
from postroom.settings import Settings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.actions import rows_of
from tests.support.databases import install
from tests.support.mail import letter, mailbox

pytestmark = pytest.mark.req("JB-18", "SY-13", "WB-6")


class Place:
    """An installation whose worker has looked at its mailbox once; backfills are switched off."""

    def __init__(self, app: App, sim: GmailSim, account: Account) -> None:
        self.app, self.sim, self.account = app, sim, account

    async def look(self) -> None:
        await self.app.queue.enqueue(job_of(HISTORY_SYNC.name, self.account))
        async with open_worker(self.app, until_idle=True) as worker:
            await worker.run()

    async def cursor(self) -> str | None:
        return await self.app.database.read(lambda tx: cursor_of(tx, self.account.id))

    async def taken_in(self) -> list[str]:
        return [row.external_event_id for row in await rows_of(self.app.database, messages)]

    async def gap_jobs(self) -> list[tuple[str, str]]:
        rows = await rows_of(self.app.database, jobs)
        return [(row.type, row.state) for row in rows if row.idempotency_key == gap_key(self.account)]


@pytest.fixture
async def place(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Place]:
    async def nothing(app: App) -> None:
        """Only what the test asks for is done."""

    monkeypatch.setattr(App, "declare_schedules", nothing)
    install(home)
    async with running_sim(mailbox(0)) as sim, open_app(Settings(home=home)) as app:
        app.grants.save(StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token))
        new = NewAccount(sim.email, sim.url)
        account = await app.database.write(lambda tx: add_account(tx, new, app.clock.now()))
        made = Place(app, sim, account)
        await made.look()
        yield made


async def test_a_gap_is_filled_by_a_job_of_its_own(place: Place) -> None:
    missed = [place.sim.control.deliver(letter(f"Missed {number}")) for number in range(3)]
    place.sim.control.expire_history()
    await place.look()
    assert await place.gap_jobs() == [(BACKFILL.name, "completed")]
    assert sorted(await place.taken_in()) == sorted(missed)
    later = place.sim.control.deliver(letter("Later"))
    await place.look()
    assert sorted(await place.taken_in()) == sorted([*missed, later]), "the history is followed from there on"


async def test_live_mail_goes_on_while_the_gap_cannot_be_walked(place: Place) -> None:
    missed = place.sim.control.deliver(letter("Missed"))
    place.sim.control.expire_history()
    fault = place.sim.control.add_fault(FaultRule(method="messages.list", fault=GmailFault(kind="error", code=503)))
    await place.look()
    assert await place.gap_jobs() == [(BACKFILL.name, "queued")]
    fresh = place.sim.control.deliver(letter("Fresh"))
    await place.look()
    assert await place.taken_in() == [fresh]
    place.sim.control.clear_faults(fault)
    rows = await rows_of(place.app.database, jobs)
    [waiting] = [row.id for row in rows if row.idempotency_key == gap_key(place.account)]
    await place.app.queue.cancel(waiting)  # by hand, say: the next look asks for it again
    await place.look()
    assert sorted(await place.taken_in()) == sorted([missed, fresh])
