"""Backfill jobs: the service on a fresh database with one mailbox, and a dashboard whose archive already holds the
mailbox's history, so that an estimate needs no Gmail.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import select

from postroom import audit
from postroom.accounts.account import NewAccount, add_account
from postroom.archive.messages import IncomingMail
from postroom.audit import AuditEntry, AuditFilter
from postroom.db import Database, Tx
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE
from postroom.domain.model_costs import CostMeter, FixedTariff
from postroom.domain.money import Denied, Micros, NewCall, Reserved
from postroom.domain.roles import Caller, Role
from postroom.mailboxes.gmail.methods import ProfileName
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import BackfillSettings, ModelSettings, Settings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.switchboard.backfill import undecided
from postroom.switchboard.backfill.admission import Admission, open_gate
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.leases import JobAssignment, ProgressReport, ProgressResponse
from postroom.switchboard.backfill.operations import Backfill
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.switchboard.spending import ModelBudget
from tests.support.archives import ME, incoming
from tests.support.dashboards import Site

EMAIL = "me@example.com"
CATEGORIES = ("finance", "health", "relationship", "travel")
OPERATOR = Caller(Role.DASHBOARD, "olivia")
CONNECTOR = Caller(Role.CONNECTOR, "gmail-one")
RIVAL = Caller(Role.CONNECTOR, "gmail-two")
CENT = Micros(10_000)


ANSWER_LIMIT = timedelta(seconds=90)
CHEAP_METER = CostMeter(FixedTariff(Decimal("0.01"), Decimal("0.01")), 1_000)
"""So cheap that any cap has room for a message."""


def meter_of(dearest_cents: int) -> CostMeter:
    """A model whose dearest answer costs this much."""
    return CostMeter(FixedTariff(Decimal(0), Decimal(dearest_cents * CENT) / 1_000), 1_000)


def message_row(email: str, now: datetime, **values: Any) -> dict[str, Any]:
    """A message as ingest stores it."""
    message_id = new_id()
    return {
        "id": message_id,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": email,
        "external_event_id": message_id,
        "idempotency_key": message_id,
        "sender_identity": "anna@example.org",
        "subject": "Hello",
        "ingestion_tier": "full",
        "policy_tier": "default",
        "observed_at": now,
        "received_at": now,
        "accepted_at": now,
        **values,
    }


class BackfillRig:
    """One mailbox, one service, one clock that stands until it is moved."""

    def __init__(
        self,
        database: Database,
        clock: ManualClock,
        *,
        email: str = EMAIL,
        ceiling_cents: int = 1_000,
        dearest_cents: int | None = None,
        **settings: Any,
    ) -> None:
        self.database = database
        self.clock = clock
        self.email = email
        self.settings = BackfillSettings(**{"enabled": True, **settings})
        self.queue = JobQueue(database, CATALOGUE, clock)
        meter = CHEAP_METER if dearest_cents is None else meter_of(dearest_cents)
        self.budget = ModelBudget(
            self.queue, Settings(model=ModelSettings(daily_ceiling_cents=ceiling_cents), backfill=self.settings)
        )
        self.service = Backfill(self.budget, CATEGORIES, meter)

    @property
    def now(self) -> datetime:
        return self.clock.now()

    async def prepare(self) -> BackfillRig:
        await self.database.write(lambda tx: add_account(tx, NewAccount(self.email, "https://x.test"), self.now))
        return self

    async def create(self, **changes: Any) -> BackfillJob:
        return await self.service.create(OPERATOR, new_backfill(**{"endpoint_identity": self.email} | changes))

    async def job(self, job_id: str) -> BackfillJob:
        return (await self.service.show(job_id)).job

    async def take(self, who: Caller = CONNECTOR) -> JobAssignment | None:
        return (await self.service.poll(who, "gmail", self.email)).job

    async def started(self, **changes: Any) -> JobAssignment:
        """A fresh job in the hands of the connector."""
        job = await self.create(**changes)
        taken = await self.take()
        assert taken is not None
        assert taken.job_id == job.id
        return taken

    async def report(self, work: JobAssignment, who: Caller = CONNECTOR, **values: Any) -> ProgressResponse:
        return await self.service.progress(who, ProgressReport(work.job_id, work.fence, **values))

    async def admit(self, job_id: str) -> Admission:
        return await self.database.write(lambda tx: open_gate(tx, self.settings, job_id, self.email, self.now).admit())

    async def mail(self, job_id: str | None) -> NewCall:
        """A message that was taken in, as the call that would judge it."""
        row = message_row(self.email, self.now, backfill_job_id=job_id)

        def take_in(tx: Tx) -> NewCall:
            tx.execute(messages.insert().values(row))
            lane = QueueName.LIVE if job_id is None else QueueName.HISTORY
            [queued] = self.queue.add(tx, NewJob("classify", {"message_id": row["id"]}, lane, key=row["id"]))
            if job_id is not None:
                undecided.enter(tx, [(row["id"], job_id, queued.job_id)], self.now)
            return NewCall(CENT, self.now, row["id"], job_id, queued.job_id)

        return await self.database.write(take_in)

    async def reserve(self, mail: NewCall, most: Micros = CENT) -> Reserved | Denied:
        call = replace(mail, most=most, deadline=self.now + ANSWER_LIMIT)
        return await self.database.write(lambda tx: self.budget.reserve(tx, call))

    async def call(self, job_id: str | None, most: Micros = CENT) -> str:
        """A call about a new message that is under way: its id."""
        reserved = await self.reserve(await self.mail(job_id), most)
        assert isinstance(reserved, Reserved), reserved
        return reserved.call_id

    async def settle(self, call_id: str, cost: Micros | None) -> None:
        await self.database.write(lambda tx: self.budget.settle(tx, call_id, cost))

    async def spend(self, job_id: str, cost: Micros) -> None:
        """A call that cost exactly what it could."""
        await self.settle(await self.call(job_id, cost), cost)

    async def decide(self, mail: NewCall) -> None:
        await self.database.write(lambda tx: self.budget.decided(tx, str(mail.message_id), mail.backfill_job_id))

    async def is_released(self, mail: NewCall) -> bool:
        """Whether a worker may take its job now."""
        ready = select(jobs.c.ready).where(jobs.c.id == mail.queue_job_id)
        return bool(await self.database.read(lambda tx: tx.execute(ready).scalar_one()))

    async def entries(self, job_id: str) -> list[AuditEntry]:
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
    from postroom.switchboard.backfill.job import jobs_table

    jobs = jobs_table(tx)
    tx.execute(jobs.update().where(jobs.c.id == job_id).values(**values))


HISTORY_CONNECTOR = Caller(Role.CONNECTOR, "gmail-one")
HISTORY_OWNER = Caller(Role.DASHBOARD, "owner")
BOX = GeneratedMailbox(120, 42, ME)
HELD_UNTIL = date(2030, 1, 1)

BACKFILL_ON: dict[str, Any] = {
    "backfill": BackfillSettings(enabled=True),
    "model": ModelSettings(
        provider="compatible",
        name="a-model",
        base_url="http://127.0.0.1:9",
        input_price=Decimal("0.30"),
        output_price=Decimal("2.50"),
    ),
}
"""Groups of settings: backfill allowed, and a model that has a price."""


def history_mail() -> list[IncomingMail]:
    return [incoming(BOX, index) for index in range(BOX.count())]


async def add_history(site: Site, email: str = ME) -> str:
    """An account whose mail is in the archive; its id."""
    now = site.app.clock.now()
    new = NewAccount(email, "http://127.0.0.1:9", ProfileName.MAY_2026)
    account = await site.write(lambda tx: add_account(tx, new, now))
    async with site.app.archive.store(email, "a test") as store:
        await store.store(history_mail())
    watermark = int(datetime(HELD_UNTIL.year, 1, 1, tzinfo=UTC).timestamp())
    row = {
        "account_id": account.id,
        "walk": 1,
        "walk_started_at": now,
        "walked_at": now,
        "granularity": "month",
        "until": watermark,
        "frontier": watermark,
        "watermark": watermark,
        "compared_walk": 1,
        "counters": '{"stored": 120}',
        "updated_at": now,
    }
    await site.write(lambda tx: tx.execute(sync_states.insert().values(row)))
    return account.id


async def make_job(site: Site, **changes: Any) -> str:
    """A job that waits, made by the owner."""
    estimate = {"messages": 200, "messages_left_out": 20, "cost_microdollars": 400_000, "seconds": 7_200}
    new = new_backfill(**{"endpoint_identity": ME, "estimate": estimate} | changes)
    return (await site.app.backfill.create(HISTORY_OWNER, new)).id


async def take_job(site: Site) -> JobAssignment:
    """The oldest waiting job, in the hands of a connector."""
    taken = (await site.app.backfill.poll(HISTORY_CONNECTOR, "gmail", ME)).job
    assert taken is not None
    return taken


async def report_progress(site: Site, work: JobAssignment, **values: Any) -> None:
    given = {"rows_processed": 0, "rows_skipped": 0, **values}
    await site.app.backfill.progress(HISTORY_CONNECTOR, ProgressReport(work.job_id, work.fence, **given))
