"""Rows for the dashboard's pages to show: mail, connectors, jobs, spend, alerts, archived and decided mail, actions,
and web sources with runs and kept pages.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import insert, update

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.actions.scheduling import ActionIntake
from postroom.archive.messages import IncomingMail
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.series import Moment, add_amounts
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_spend, contact_exports, contacts, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, decisions, model_calls
from postroom.db.tables.web import backfill_runs, discovered_items, web_endpoints
from postroom.domain.actions import ActionOrder, Origin, Proposal
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.terms import AssignmentRule, Tier
from postroom.queue import JobState, NewJob, QueueName
from postroom.settings import SafetySettings
from postroom.switchboard.backfill.ledger import day_of
from postroom.switchboard.tools.mail import Heartbeat, record_heartbeat
from postroom.sync.alerts import Alert, AlertCondition, AlertLevel, settle
from postroom.telemetry.series import NO_BOUND, Amount, Series, bound_of
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import parse_actions, parse_draft
from postroom.triage.rules.store import add_rule
from postroom.web import evidence, runs
from postroom.web.extraction.web_reader import Extracted
from postroom.web.fetching.interface import Fetched, Validators
from postroom.web.runs import Counters, NewRun, Run, WalkState, stored_walks
from postroom.web.sentinel import SentinelReport, sentinel_job
from postroom.web.sources import EndpointMode
from tests.support.actions import A_TEST, ActionScene, action_scene
from tests.support.dashboards import Site
from tests.support.mail import ME
from tests.support.web_sources import write_sources

RULE_OF_TIER = {
    Tier.HIGH_PRIORITY: AssignmentRule.KNOWN_CONTACT,
    Tier.INTERACTIVE: AssignmentRule.DIRECT_CORRESPONDENCE,
    Tier.DEFAULT: AssignmentRule.FALLBACK_DEFAULT,
}


async def add_mailbox(site: Site, email: str = ME) -> Account:
    new = NewAccount(email, "https://example.org")
    return await site.write(lambda tx: add_account(tx, new, site.app.clock.now()))


async def add_series(site: Site, hours: int = 3, days: int = 0) -> None:
    """So many hours of every series, and before them an hour each day: busier by day than by night."""
    now = site.app.clock.now()
    amounts: dict[Moment, Amount] = {}
    for back in [*range(hours), *(24 * day for day in range(1, days))]:
        at = now - timedelta(hours=back)
        busy = 2 + 6 * (8 <= at.hour < 20) + (back * 7) % 5
        for place, series in enumerate(Series):
            number = busy * (1 + place % 3) // (9 if "history" in series else 1)
            if series.startswith(("queue.wait", "sync.requests")):
                for seconds in (0.08, 0.3 + 0.1 * busy, 2.0 + (20 if back == 9 else 0)):
                    amounts[at, series, bound_of(seconds)] = Amount(busy, busy * seconds, seconds)
            elif series in (Series.JOBS_FAILED, Series.SYNC_THROTTLED, Series.SYNC_BAD):
                number = int(back % 11 == 9)
                amounts[at, series, NO_BOUND] = Amount(number, float(number), float(number))
            elif series in (Series.SPEND, Series.SYNC_LAG):
                amounts[at, series, NO_BOUND] = Amount(number, number * 700.0, number * 700.0)
            else:
                amounts[at, series, NO_BOUND] = Amount(number, float(number), float(number))
    await site.write(lambda tx: add_amounts(tx, amounts))


async def add_live_mail(site: Site, counts: Mapping[Tier, int], age: timedelta = timedelta(), **columns: Any) -> None:
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
            "assignment_rule": RULE_OF_TIER[tier],
            "observed_at": received,
            "received_at": received,
            "accepted_at": received,
            **columns,
        }
        for tier, count in counts.items()
        for _ in range(count)
    ]
    await site.write(lambda tx: tx.execute(messages.insert(), rows))


async def add_heartbeat(site: Site, identity: str = ME, *, ago: timedelta = timedelta(), **said: Any) -> None:
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


async def add_contacts(site: Site, generated_at: datetime) -> None:
    def run(tx: Tx) -> None:
        for place, source in enumerate(("vcard", "sent", "sent")):
            tx.execute(contacts.insert().values(address=f"p{place}@example.org", source=source, added_at=generated_at))
        tx.execute(contact_exports.insert().values(version=4, generated_at=generated_at, addresses=3, sha256="0" * 64))

    await site.write(run)


async def add_failed_jobs(
    site: Site, count: int = 1, error: str = "The model did not answer within 60 seconds."
) -> list[str]:
    made = await site.app.queue.enqueue(*(NewJob("classify", {"n": n}) for n in range(count)))
    ids, now = [each.job_id for each in made], site.app.clock.now()
    values = {"state": JobState.FAILED, "ready": False, "finished_at": now, "attempts": 5, "last_error": error}
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id.in_(ids)).values(**values)))
    return ids


async def add_served_mail(site: Site, tier: Tier, waited: timedelta, count: int = 3) -> None:
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


async def add_alert(site: Site, owner: Account, message: str, level: AlertLevel = AlertLevel.CRITICAL) -> None:
    raised = Alert(next(iter(AlertCondition)), level, message)
    await site.write(lambda tx: settle(tx, owner.id, [raised], site.app.clock.now()))


async def add_backfill_job(site: Site, *, spent: int = 0, reserved: int = 0, **columns: Any) -> str:
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


async def add_model_call(site: Site, microdollars: int, **columns: Any) -> None:
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


async def archive_mail(site: Site, mails: Sequence[IncomingMail], email: str = ME) -> list[str]:
    """Stored as a sync stores it; their keys."""
    stored = await site.dashboard.pages.state.services.shared.archive.of(email).store(mails)
    return [one.key for one in stored]


async def add_decided_mail(site: Site, key: str, email: str = ME, *, action: str | None = None, **decision: Any) -> str:
    """As if it had come in by a connector and been decided about; the id of its message."""
    now, message = site.app.clock.now(), new_id()
    account = await site.write(lambda tx: add_account(tx, NewAccount(email, "http://127.0.0.1:9"), now))
    row = {
        "id": message,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": email,
        "external_event_id": key,
        "idempotency_key": f"gmail:{email}:{key}",
        "sender_identity": "ann@example.org",
        "ingestion_tier": "full",
        "policy_tier": "high_priority",
        "assignment_rule": "known_contact",
        "observed_at": now,
        "received_at": now,
        "accepted_at": now,
    }
    made = {"id": new_id(), "message_id": message, "source": "llm", "action": "archive", "reason": "It is news."}
    done = {
        "id": new_id(),
        "account_id": account.id,
        "message_id": message,
        "gmail_id": key,
        "origin": "model",
        "type": action,
        "status": "completed",
        "wanted_by": "the model",
        "created_at": now,
        "updated_at": now,
        "finished_at": now,
    }
    await site.write(lambda tx: tx.execute(messages.insert().values(row)))
    await site.write(lambda tx: tx.execute(decisions.insert().values(made | {"created_at": now} | decision)))
    if action is not None:
        await site.write(lambda tx: tx.execute(actions.insert().values(done)))
    return message


HOSTILE_TEXT = "<script>window.hit=1</script><img src=x onerror='window.hit=1'>\u202egnp.exe"


@asynccontextmanager
async def dashboard_actions(site: Site, **labels: str) -> AsyncIterator[ActionScene]:
    """A mailbox, and the worker that does what is wanted with it (`scene.work()`)."""
    async with action_scene(site.app.database, ManualClock(site.app.clock.now()), **labels) as scene:
        yield scene


async def add_one_rule(site: Site, name: str = "Receipts", actions: Any = ("archive",), **given: Any) -> StoredRule:
    condition = given.pop("condition", {"sender_domain": "shop.example"})
    draft = parse_draft({"name": name, "condition": condition, "actions": list(actions), **given})
    return await site.write(lambda tx: add_rule(tx, draft, A_TEST, site.app.clock.now()))


async def message_at(scene: ActionScene, *labels: str, **columns: Any) -> tuple[str, str]:
    """New mail: Gmail's id and ours."""
    gmail_id, message_id = await scene.message(*labels)
    if columns:
        await scene.database.write(
            lambda tx: tx.execute(update(messages).where(messages.c.id == message_id).values(**columns))
        )
    return gmail_id, message_id


async def add_decision(
    scene: ActionScene, ids: tuple[str, str], *names: str, by: StoredRule | None = None, reason: str = "", why: str = ""
) -> list[str]:
    """A rule, or the model, wants this; with a reason (`why`) a person is asked first. The actions' ids."""
    gmail_id, message_id = ids
    now, decision_id = scene.clock.now(), new_id()
    source, said = ("llm", "It is news.") if by is None else ("deterministic", f"The rule {by.name} matched.")
    made = {"id": decision_id, "message_id": message_id, "source": source, "action": names[0], "created_at": now}
    made |= {"reason": reason or said, "confidence": 0.93 if by is None else 1.0}
    made |= {} if by is None else {"rule_id": by.id, "rule_name": by.name}
    order = ActionOrder(
        account_id=scene.account.id,
        message_id=message_id,
        gmail_id=gmail_id,
        thread_id=gmail_id,
        decision_id=decision_id,
        origin=Origin.MODEL if by is None else Origin.RULE,
        wanted_by="model gpt-5-mini" if by is None else f"rule {by.name}",
        proposals=tuple(Proposal(wanted, (why,) if why else ()) for wanted in parse_actions(list(names))),
        rule_id=None if by is None else by.id,
        rule_name=None if by is None else by.name,
    )
    await scene.database.write(lambda tx: tx.execute(decisions.insert().values(made)))
    return list(await scene.database.write(lambda tx: ActionIntake(scene.queue, SafetySettings()).accept(tx, order)))


OWNER = Actor("dashboard", "owner")
SITE_URL = "https://gazette.example"
SOURCES_FILE = f"""
[[source]]
slug = "gazette"
name = "The Gazette"
domains = ["gazette.example"]

[[source.endpoint]]
name = "sitemap"
mode = "sitemap"
url = "{SITE_URL}/sitemap.xml"

[[source.endpoint]]
name = "daily"
mode = "archive"
url = "{SITE_URL}/{{yyyy}}/{{mm}}/{{dd}}"
first_day = 2012-01-01
sentinel = false

[[source]]
slug = "tax-office"
domains = ["tax.example"]

[[source.endpoint]]
name = "news"
mode = "pagination"
url = "https://tax.example/news"
"""


def follow_sources(site: Site, text: str = SOURCES_FILE) -> None:
    write_sources(site.app.settings.home, text)


async def add_run(site: Site, *slugs: str, mode: EndpointMode = EndpointMode.SITEMAP, **new: Any) -> Run:
    """A run that waits for a worker. Needs backfill to be on."""
    return await site.app.web.hand_over(OWNER, NewRun(sources=list(slugs or ("gazette",)), mode=mode, **new))


async def start_run(site: Site, run_id: str, found: int = 0, **columns: Any) -> None:
    """The run is under way and has found so many pages."""
    await site.app.web.start(OWNER, run_id)
    walk = WalkState("gazette", "sitemap", counters=Counters(found, found))
    values = {
        "discovered_count": found,
        "queued_count": found,
        "walks": stored_walks({"gazette/sitemap": walk}),
        "updated_at": site.app.clock.now(),
        **columns,
    }
    await site.write(lambda tx: tx.execute(update(backfill_runs).where(backfill_runs.c.id == run_id).values(**values)))


async def fail_run(site: Site, run_id: str, reason: str, *errors: tuple[str, str]) -> None:
    now = site.app.clock.now()
    log = [{"at": now.isoformat(), "source": "gazette", "url": url, "error": error} for url, error in errors]
    values = {"error_log": json.dumps(log), "error_count": len(log)}

    def run(tx: Tx) -> None:
        tx.execute(update(backfill_runs).where(backfill_runs.c.id == run_id).values(**values))
        runs.fail(tx, runs.find(tx, run_id, lock=True), reason, OWNER, now)
        tx.execute(update(jobs).where(jobs.c.type == "web.backfill").values(state=JobState.FAILED, finished_at=now))

    await site.write(run)


async def add_items(
    site: Site,
    statuses: dict[str, int],
    error: str | None = None,
    run_id: str | None = None,
    evidence_id: str | None = None,
) -> None:
    """So many discovered pages of each status, of the gazette's sitemap."""
    now = site.app.clock.now()

    def add(tx: Tx) -> None:
        endpoint = {"id": new_id(), "source_slug": "gazette", "name": "sitemap", "mode": "SITEMAP", "url": SITE_URL}
        tx.insert_missing(web_endpoints, {**endpoint, "created_at": now, "sentinel_at": now - timedelta(hours=3)})
        endpoint_id = tx.execute(web_endpoints.select().where(web_endpoints.c.name == "sitemap")).one().id
        for status, count in statuses.items():
            for _ in range(count):
                item_id = new_id()
                row = {"id": item_id, "endpoint_id": endpoint_id, "status": status, "run_id": run_id}
                row["evidence_id"] = evidence_id
                row |= {"url": f"{SITE_URL}/item/{item_id}", "fetch_url": SITE_URL, "discovery_method": "SENTINEL"}
                row |= {"job_key": item_id, "discovered_at": now, "updated_at": now}
                tx.execute(insert(discovered_items).values(**row, error=error if status == "FAILED" else None))

    await site.write(add)


async def add_look(site: Site, *problems: str) -> None:
    """A worker's look at all sources, which met these problems."""
    now = site.app.clock.now()
    report = SentinelReport("gazette", "sitemap", found=40, new=3, changed=2, due=5, not_reached=12)
    looks = [asdict(report) | {"problems": problems}]
    (queued,) = await site.app.queue.enqueue(sentinel_job())
    done = {"state": JobState.COMPLETED, "ready": False, "finished_at": now, "result_json": json.dumps(looks)}
    await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.id == queued.job_id).values(**done)))


async def add_kept_page(
    site: Site,
    body: str | bytes,
    text: str | None = None,
    *,
    title: str | None = "A title",
    path: str = "/item/1",
    age: timedelta = timedelta(),
    content_type: str = "text/html",
    problem: str | None = None,
) -> str:
    """Evidence of a page with this content; its id. `text` is what was read out of it; None: not read yet."""
    content = body.encode() if isinstance(body, str) else body
    at = site.app.clock.now() - age
    url = f"{SITE_URL}{path}"
    fetched = Fetched(
        url=url,
        final_url=url,
        status=200,
        content_type=content_type,
        charset=None,
        body=content,
        validators=Validators('"abc"', None),
        fetched_at=at,
    )

    def keep(tx: Tx) -> str:
        stored = evidence.keep(tx, url, "gazette", fetched)
        if text is not None:
            read = Extracted("plain 1", title=title, text=text, language="en", problem=problem)
            evidence.write_text(tx, stored.id, read, at)
        return stored.id

    return await site.write(keep)
