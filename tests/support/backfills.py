"""A backfill service on a fresh database with one mailbox, and the steps that its tests are told in."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from postroom import audit
from postroom.accounts.store import NewAccount, add_account
from postroom.audit import AuditFilter, Entry
from postroom.db import Database, Tx
from postroom.domain.clock import ManualClock
from postroom.domain.money import Micros
from postroom.domain.roles import Caller, Role
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.admission import Admission, open_gate
from postroom.switchboard.backfill.jobs import NewBackfill
from postroom.switchboard.backfill.leases import Assignment
from postroom.switchboard.backfill.model import BackfillJob
from postroom.switchboard.backfill.progress import ProgressReply, Report
from postroom.switchboard.backfill.service import Backfill

EMAIL = "me@example.com"
CATEGORIES = ("finance", "health", "relationship", "travel")
OPERATOR = Caller(Role.DASHBOARD, "olivia")
CONNECTOR = Caller(Role.CONNECTOR, "gmail-one")
RIVAL = Caller(Role.CONNECTOR, "gmail-two")
CENT = Micros(10_000)


class Rig:
    """One mailbox, one service, one clock that stands until it is moved."""

    def __init__(self, database: Database, clock: ManualClock, *, email: str = EMAIL, **settings: Any) -> None:
        self.database = database
        self.clock = clock
        self.email = email
        self.settings = BackfillSettings(**{"enabled": True, **settings})
        self.service = Backfill(database, self.settings, CATEGORIES, clock)

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def prepare(self) -> Rig:
        await self.database.write(lambda tx: add_account(tx, NewAccount(self.email, "https://x.test"), self.now))
        return self

    async def create(self, **changes: Any) -> BackfillJob:
        return await self.service.create(OPERATOR, new_backfill(**{"endpoint_identity": self.email} | changes))

    async def job(self, job_id: str) -> BackfillJob:
        return (await self.service.show(job_id)).job

    async def take(self, who: Caller = CONNECTOR) -> Assignment | None:
        return (await self.service.poll(who, "gmail", self.email)).job

    async def started(self, **changes: Any) -> Assignment:
        """A fresh job in the hands of the connector."""
        job = await self.create(**changes)
        taken = await self.take()
        assert taken is not None
        assert taken.job_id == job.id
        return taken

    async def report(self, work: Assignment, who: Caller = CONNECTOR, **values: Any) -> ProgressReply:
        return await self.service.progress(who, Report(work.job_id, work.fence, **values))

    async def admit(self, job_id: str, ref: str, cost: Micros | None = CENT) -> Admission:
        return await self.database.write(
            lambda tx: open_gate(tx, self.settings, job_id, self.email, self.now).admit(ref, cost)
        )

    async def settle(self, job_id: str, ref: str, cost: Micros) -> BackfillJob:
        return await self.database.write(lambda tx: ledger.settle(tx, self.settings, job_id, ref, cost, self.now))

    async def release(self, job_id: str, ref: str) -> BackfillJob:
        return await self.database.write(lambda tx: ledger.release(tx, self.settings, job_id, ref, self.now))

    async def entries(self, job_id: str) -> list[Entry]:
        """What the audit log has about the job, oldest first."""
        which = AuditFilter(subject_type="backfill_job", subject_id=job_id, limit=500)
        page = await self.database.read(lambda tx: audit.list_entries(tx, which))
        return page.entries[::-1]

    async def actions(self, job_id: str) -> list[str]:
        return [entry.action.removeprefix("backfill.") for entry in await self.entries(job_id)]


def new_backfill(**changes: Any) -> NewBackfill:
    values: dict[str, Any] = {
        "connector_type": "gmail",
        "endpoint_identity": EMAIL,
        "date_from": date(2024, 1, 1),
        "date_to": date(2024, 12, 31),
        "target_categories": ["finance"],
    }
    return NewBackfill(**values | changes)


def put_job(tx: Tx, job_id: str, **values: Any) -> None:
    """Set columns of a job directly, to begin a story in its middle."""
    from postroom.switchboard.backfill.model import table

    jobs = table(tx)
    tx.execute(jobs.update().where(jobs.c.id == job_id).values(**values))
