"""A dashboard with a mailbox whose history the archive holds, so that an estimate needs no Gmail; and jobs on it."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from postroom.accounts.store import NewAccount, add_account
from postroom.archive.model import IncomingMail
from postroom.db.tables.sync import sync_states
from postroom.domain.roles import Caller, Role
from postroom.gmail.quota import ProfileName
from postroom.gmail.sim.mailbox import GeneratedMailbox
from postroom.settings import BackfillSettings, ModelSettings
from postroom.switchboard.backfill.leases import Assignment
from postroom.switchboard.backfill.progress import Report
from tests.support.archives import ME, incoming
from tests.support.backfills import new_backfill
from tests.support.dashboards import Site

CONNECTOR = Caller(Role.CONNECTOR, "gmail-one")
OWNER = Caller(Role.DASHBOARD, "owner")
BOX = GeneratedMailbox(120, 42, ME)
HELD_UNTIL = date(2030, 1, 1)

ON: dict[str, Any] = {
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


def letters() -> list[IncomingMail]:
    return [incoming(BOX, index) for index in range(BOX.count())]


async def add_history(site: Site, email: str = ME) -> str:
    """An account whose mail is in the archive; its id."""
    now = site.app.clock.now()
    new = NewAccount(email, "http://127.0.0.1:9", ProfileName.MAY_2026)
    account = await site.write(lambda tx: add_account(tx, new, now))
    async with site.app.archive.store(email, "a test") as store:
        await store.store(letters())
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
    return (await site.app.backfill.create(OWNER, new)).id


async def take_job(site: Site) -> Assignment:
    """The oldest waiting job, in the hands of a connector."""
    taken = (await site.app.backfill.poll(CONNECTOR, "gmail", ME)).job
    assert taken is not None
    return taken


async def report(site: Site, work: Assignment, **values: Any) -> None:
    given = {"rows_processed": 0, "rows_skipped": 0, **values}
    await site.app.backfill.progress(CONNECTOR, Report(work.job_id, work.fence, **given))
