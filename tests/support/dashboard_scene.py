"""A post room with something in every corner, for pages to show: mail, connectors, jobs, money, trouble."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import update

from postroom.accounts.store import Account, NewAccount, add_account
from postroom.connectors.priority import AssignmentRule
from postroom.db import Tx
from postroom.db.tables.backfill import BACKFILL_JOBS, backfill_spend
from postroom.db.tables.mail import contact_exports, contacts, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import model_calls
from postroom.domain.ids import new_id
from postroom.domain.tiers import Tier
from postroom.queue import JobState, NewJob, QueueName
from postroom.switchboard.backfill.ledger import day_of
from postroom.switchboard.registry import Heartbeat, record_heartbeat
from postroom.sync.alert_store import settle
from postroom.sync.alerts import Alert, Condition, Level
from tests.support.dashboards import Site
from tests.support.envelopes import ME

RULES = {
    Tier.HIGH_PRIORITY: AssignmentRule.KNOWN_CONTACT,
    Tier.INTERACTIVE: AssignmentRule.DIRECT_CORRESPONDENCE,
    Tier.DEFAULT: AssignmentRule.FALLBACK_DEFAULT,
}


async def account(site: Site, email: str = ME) -> Account:
    new = NewAccount(email, "https://example.org")
    return await site.write(lambda tx: add_account(tx, new, site.app.clock.now()))


async def mail(site: Site, counts: Mapping[Tier, int], age: timedelta = timedelta(), **columns: Any) -> None:
    """Live mail of these tiers, received so long ago."""
    received = site.app.clock.now() - age
    rows = [
        {
            "id": new_id(),
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": ME,
            "external_event_id": (event := new_id()),
            "idempotency_key": f"gmail:{ME}:{event}",
            "sender_identity": "ann@example.org",
            "ingestion_tier": "metadata",
            "policy_tier": tier,
            "assignment_rule": RULES[tier],
            "observed_at": received,
            "received_at": received,
            "accepted_at": received,
            **columns,
        }
        for tier, count in counts.items()
        for _ in range(count)
    ]
    await site.write(lambda tx: tx.execute(messages.insert(), rows))


async def heartbeat(site: Site, identity: str = ME, *, ago: timedelta = timedelta(), **said: Any) -> None:
    beat = Heartbeat(
        **{
            "connector_type": "gmail",
            "endpoint_identity": identity,
            "instance": "worker",
            "version": "0.1.0",
            "status": "running",
            "counters": {"ingested": 1_234, "skipped": 56},
            "checkpoint": {
                "gap_open": False,
                "contacts": "fresh",
                "contacts_generated_at": "2026-01-01T00:00:00+00:00",
            },
            "capabilities": ("live", "backfill"),
            **said,
        }
    )
    await site.write(lambda tx: record_heartbeat(tx, beat, site.app.clock.now() - ago))


async def contact_book(site: Site, generated_at: datetime) -> None:
    def run(tx: Tx) -> None:
        for place, source in enumerate(("vcard", "sent", "sent")):
            tx.execute(contacts.insert().values(address=f"p{place}@example.org", source=source, added_at=generated_at))
        tx.execute(contact_exports.insert().values(version=4, generated_at=generated_at, addresses=3, sha256="0" * 64))

    await site.write(run)


async def failed_jobs(
    site: Site, count: int = 1, error: str = "The model did not answer within 60 seconds."
) -> list[str]:
    made = await site.app.queue.enqueue(*(NewJob("classify", {"n": n}) for n in range(count)))
    ids, now = [each.job_id for each in made], site.app.clock.now()
    values = {"state": JobState.FAILED, "ready": False, "finished_at": now, "attempts": 5, "last_error": error}
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id.in_(ids)).values(**values)))
    return ids


async def served_mail(site: Site, tier: Tier, waited: timedelta, count: int = 3) -> None:
    """Completed jobs of live mail that had waited for so long."""
    made = await site.app.queue.enqueue(*(NewJob("classify", {}, QueueName.LIVE, tier) for _ in range(count)))
    ids, now = [each.job_id for each in made], site.app.clock.now()
    values = {
        "state": JobState.COMPLETED,
        "ready": False,
        "queued_at": now - waited,
        "started_at": now,
        "finished_at": now,
    }
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id.in_(ids)).values(**values)))


async def alert(site: Site, owner: Account, message: str, level: Level = Level.CRITICAL) -> None:
    raised = Alert(next(iter(Condition)), level, message)
    await site.write(lambda tx: settle(tx, owner.id, [raised], site.app.clock.now()))


async def backfill_job(site: Site, *, spent: int = 0, reserved: int = 0, **columns: Any) -> str:
    """A job in the table as it stands, with what it spent today in micro-dollars."""
    job_id, now = new_id(), site.app.clock.now()
    today = day_of(now, site.app.settings.backfill.zone)
    values = {
        "id": job_id,
        "connector_type": "gmail",
        "endpoint_identity": ME,
        "date_from": today - timedelta(days=365),
        "date_to": today,
        "status": "active",
        "target_categories": ["finance"],
        "created_at": now,
        "updated_at": now,
        **columns,
    }

    def run(tx: Tx) -> None:
        tx.execute(BACKFILL_JOBS[tx.dialect].insert().values(**values))
        if spent or reserved:
            money = {"settled_microdollars": spent, "reserved_microdollars": reserved}
            tx.execute(backfill_spend.insert().values(job_id=job_id, day=today, **money))

    await site.write(run)
    return job_id


async def model_call(site: Site, microdollars: int, **columns: Any) -> None:
    row = {
        "id": new_id(),
        "provider": "compatible",
        "model": "a-model",
        "input_tokens": 900,
        "output_tokens": 60,
        "cost_microdollars": microdollars,
        "latency_ms": 800,
        "outcome": "ok",
        "created_at": site.app.clock.now(),
        **columns,
    }
    await site.write(lambda tx: tx.execute(model_calls.insert().values(**row)))
