"""The connector as a process of its own: killed at any moment, it loses and doubles nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import func, select, update

from postroom.db import Database, Tx
from postroom.db.tables.access import connectors
from postroom.db.tables.accounts import history_cursors
from postroom.db.tables.mail import BACKFILL_JOBS, messages
from postroom.domain.clock import SystemClock
from postroom.domain.roles import Role
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import ListSource
from tests.support.connectors import listed, ms, source_of
from tests.support.databases import on_sqlite
from tests.support.deployment import ConnectorProcess
from tests.support.mail import letter
from tests.support.switchboards import Bench, open_bench, served
from tests.support.triage import classifier

FIRST, LAST = date(2026, 3, 1), date(2026, 3, 31)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

pytestmark = on_sqlite
"""The Switchboard's own tests run its SQL on both databases; a connector cannot tell them apart."""


@dataclass
class House:
    sim: GmailSim
    bench: Bench
    url: str
    connector: ConnectorProcess
    token: str

    @property
    def database(self) -> Database:
        return self.bench.database

    async def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        async with self.bench.client(Role.DASHBOARD, is_proved=True) as call:
            return await call(tool, arguments)

    async def create_job(self) -> str:
        given = {"connector_type": "gmail", "endpoint_identity": self.sim.email, "rate_limit_per_hour": 100_000}
        days = {
            "date_from": FIRST.isoformat(),
            "date_to": LAST.isoformat(),
            "daily_cost_cap_cents": 100_000,
            "uses_model": False,
        }
        return str((await self.ask("create_backfill_job", **given, **days))["job_id"])

    async def count(self) -> int:
        return await self.database.read(lambda tx: tx.execute(select(func.count()).select_from(messages)).scalar_one())

    async def job(self, job_id: str) -> Any:
        jobs = BACKFILL_JOBS["sqlite"]
        return await self.database.read(lambda tx: tx.execute(select(jobs).where(jobs.c.id == job_id)).one())

    async def let_leases_run_out(self) -> None:
        """As if the time had passed."""

        def write(tx: Tx) -> None:
            jobs = BACKFILL_JOBS["sqlite"]
            tx.execute(update(jobs).where(jobs.c.lease_expires_at.is_not(None)).values(lease_expires_at=LONG_AGO))
            tx.execute(update(history_cursors).values(lease_expires_at=LONG_AGO))

        await self.database.write(write)

    async def until(self, condition: Any) -> None:
        """The test's own time limit is the only deadline."""
        while not await condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def house(source: ListSource, database: Database, path: Path, **variables: str) -> AsyncIterator[House]:
    async with running_sim(source) as sim, open_bench(database, path) as bench, served(bench) as url:
        await bench.account(sim.email)
        token = await bench.token(Role.CONNECTOR, endpoint_identity=sim.email)
        connector = ConnectorProcess(path / "connector", sim, url, token, **variables)
        worker = Worker(bench.queue, {"classify": classifier(bench.queue, None)}, WorkerSettings(poll_s=0.5))
        deciding = asyncio.create_task(worker.run())
        try:
            yield House(sim, bench, url, connector, token)
        finally:
            await connector.kill()
            worker.stop()
            await deciding


def march(count: int) -> ListSource:
    start = ms(datetime(2026, 3, 1, tzinfo=UTC))
    dice = random.Random(count)
    return source_of(listed(number, start + dice.randrange(31 * 86_250) * 1_000) for number in range(count))


@pytest.mark.req("BF-15", "BF-5", "BF-13", "SY-13")
@pytest.mark.parametrize(
    ("kills", "mails"), [(1, 120), pytest.param(8, 1_000, marks=[pytest.mark.chaos, pytest.mark.timeout(600)])]
)
async def test_killed_again_and_again_it_brings_every_message_once(
    database: Database, tmp_path: Path, kills: int, mails: int
) -> None:
    dice = random.Random(kills)
    async with house(march(mails), database, tmp_path, CONNECTOR_BACKFILL_PROGRESS_INTERVAL="7") as place:
        connector, job_id = place.connector, await place.create_job()
        live: set[str] = set()
        for _ in range(kills):
            await connector.start()
            reached = await place.count() + dice.randrange(5, mails // (kills + 1))
            await place.until(lambda reached=reached: _at_least(place, reached))
            live.add(place.sim.control.deliver(letter("Live"), internal_date=ms(SystemClock().now())))
            await asyncio.sleep(dice.random() * 0.2)
            await connector.kill()
            await place.let_leases_run_out()
        await connector.start()
        await place.until(lambda: _ended(place, job_id))
        live.add(place.sim.control.deliver(letter("Live"), internal_date=ms(SystemClock().now())))
        await place.until(lambda: _at_least(place, mails + len(live)))
        code, logged = await connector.end()
        job = await place.job(job_id)
        rows = await place.database.read(lambda tx: list(tx.execute(select(messages))))
        assert (job.status, job.rows_processed, job.rows_skipped) == ("completed", mails, 0)
        assert len(rows) == len({row.external_event_id for row in rows}) == mails + len(live)
        assert {row.external_event_id for row in rows if row.backfill_job_id is None} == live
        assert (code, place.token in logged) == (0, False)


async def _at_least(place: House, number: int) -> bool:
    return await place.count() >= number


async def _ended(place: House, job_id: str) -> bool:
    return (await place.job(job_id)).status in ("completed", "error")


@pytest.mark.req("BF-14", "PL-5")
async def test_told_to_stop_it_reports_what_is_done_and_says_goodbye(database: Database, tmp_path: Path) -> None:
    async with house(march(300), database, tmp_path, CONNECTOR_BACKFILL_PROGRESS_INTERVAL="1000") as place:
        job_id = await place.create_job()
        await place.connector.start()
        await place.until(lambda: _at_least(place, 60))
        async with httpx2.AsyncClient() as http:
            health = await http.get(place.connector.health)
            metrics = await http.get(place.connector.health.replace("/health", "/metrics"))
        assert (health.status_code, health.json()["status"], metrics.status_code) == (200, "ok", 404)
        code, _ = await place.connector.end()
        job = await place.job(job_id)
        assert code == 0
        assert job.rows_processed == await place.count(), "nothing that is in is left uncounted"
        assert job.cursor["place"] is not None
        row = await place.database.read(lambda tx: tx.execute(select(connectors)).one())
        assert (row.endpoint_identity, row.status) == (place.sim.email, "stopped")


@pytest.mark.req("PL-6")
async def test_what_a_person_has_to_change_is_said_at_once(database: Database, tmp_path: Path) -> None:
    async with house(march(1), database, tmp_path) as place:
        wrong = ConnectorProcess(tmp_path / "wrong", place.sim, place.url, "prt_wrong-token-0123456789")
        code, said = await wrong.refusal()
        assert (code, "token create --role connector" in said, "wrong-token" in said) == (1, True, False)
