"""A good day in a post room, for pictures of the pages: mail that people know, a job under way, a little trouble."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from sqlalchemy import update

from postroom.accounts.store import NewAccount, add_account
from postroom.archive.model import IncomingMail, Provenance
from postroom.audit import Actor
from postroom.db import Dialect, Tx
from postroom.db.tables.backfill import BACKFILL_JOBS, backfill_rate, backfill_spend
from postroom.db.tables.sync import sync_states
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.tiers import Tier
from postroom.gmail.quota import ProfileName
from postroom.switchboard.backfill.ledger import day_of
from postroom.triage.rules.model import parse_draft
from postroom.triage.rules.store import add_rule
from tests.dashboard.test_approvals_page import ask
from tests.support import dashboard_scene as scene
from tests.support import web_scene as web
from tests.support.dashboards import Site
from tests.support.envelopes import ME
from tests.support.histories import make_job, report, take_job
from tests.support.mail_sites import judge, keep

MORNING = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
_BASE = "http://127.0.0.1:9"
_LETTERS = (
    (
        "Nora Blake <nora@harbour.example>",
        "Lunch on Thursday?",
        "Are you in town? The place by the harbour is open again.",
        True,
    ),
    (
        "Meridian Bank <notices@meridian.example>",
        "Your statement for February",
        "Your statement is ready. Total of all accounts: 4,210.",
        True,
    ),
    (
        "City Clinic <desk@clinic.example>",
        "Appointment confirmed: 9 March, 10:20",
        "Please bring your insurance card.",
        False,
    ),
    (
        "Tom Reyes <tom@reyes.example>",
        "Re: The contract, second draft",
        "I went through it with Ada. Two remarks on page 4.",
        False,
    ),
    (
        "Rail Tickets <tickets@rail.example>",
        "Your journey to Lisbon",
        "Coach 7, seat 41. Show this mail or its attachment.",
        False,
    ),
    (
        "The Weekly Bread <news@bread.example>",
        "Five loaves for March",
        "Rye, spelt, and one that needs no kneading.",
        False,
    ),
    ("Ada Okafor <ada@okafor.example>", "Photos from the weekend", "All of them, and the one with the dog.", False),
    (
        "Parcel Post <track@parcel.example>",
        "Your parcel is on its way",
        "It arrives today between 14:00 and 16:00.",
        False,
    ),
)
_NOTICE = """\
Value added tax

This notice holds for all invoices that are written in the country.
The rate is 20 % from May on.
Invoices name the rate and the amount.
Questions go to the office in Harbour Street.
The office is open from 9 to 12."""
_RENEWED = (
    _NOTICE.replace("20 % from May", "25 % from January").replace("Questions go to the office in Harbour Street.\n", "")
    + "\nThis notice takes the place of the one of 2025."
)


OWNER = Actor("dashboard", "the owner")
RULES: tuple[dict[str, Any], ...] = (
    {
        "name": "Receipts",
        "condition": {"subject_contains": ["invoice", "receipt"]},
        "actions": ["apply_label=Receipts", "archive"],
    },
    {
        "name": "Newsletters",
        "condition": {"header": {"name": "List-Unsubscribe", "present": True}},
        "actions": ["mark_read", "archive"],
    },
    {"name": "The bank", "scope": "domain:bank.example", "condition": {"has_attachment": True}, "actions": ["star"]},
    {"name": "Old parcels", "priority": 200, "condition": {"older_than": "30d"}, "actions": ["trash"]},
)


def clock() -> ManualClock:
    return ManualClock(MORNING)


@dataclass(frozen=True)
class GoodDay:
    message: str
    job: str
    evidence: str
    before: str


async def good_day(site: Site) -> GoodDay:
    """Needs backfill to be on, and a clock that stands at the morning."""
    message = await _mail(site)
    await scene.heartbeat(site, ago=timedelta(seconds=20))
    await scene.contact_book(site, site.app.clock.now() - timedelta(minutes=2))
    for subject in ("Your parcel could not be delivered", "You have won a voyage"):
        await ask(site, subject)
    await scene.failed_jobs(site, 1)
    await scene.model_call(site, 184_000)
    job = await _backfill(site)
    before, evidence = await _web(site)
    await _rules(site)
    return GoodDay(message, job, evidence, before)


async def _mail(site: Site) -> str:
    now = site.app.clock.now()
    wanted = NewAccount(ME, _BASE, ProfileName.MAY_2026)
    account = await site.write(lambda tx: add_account(tx, wanted, now))
    older = [_letter(n, *_LETTERS[n % len(_LETTERS)][:3], age=timedelta(days=9 * n + 3)) for n in range(8, 400)]
    newest = [
        _letter(n, *text[:3], age=timedelta(minutes=25 + 90 * n), unread=text[3]) for n, text in enumerate(_LETTERS)
    ]
    await keep(site, [*older, *newest])
    await judge(site, _key(0), reason="Somebody whom you write to asks for an answer.")
    await judge(site, _key(1), reason="A monthly statement: nothing has to be done, and it is easy to find again.")
    await scene.mail(site, {Tier.HIGH_PRIORITY: 11, Tier.INTERACTIVE: 23, Tier.DEFAULT: 64}, account_id=account.id)
    for tier, waited in ((Tier.HIGH_PRIORITY, 2), (Tier.INTERACTIVE, 9), (Tier.DEFAULT, 41)):
        await scene.served_mail(site, tier, timedelta(seconds=waited))
    await _proven(site, account.id)
    return _key(1)


def _key(number: int) -> str:
    return f"19a{number:013}"


def _letter(number: int, sender: str, subject: str, text: str, *, age: timedelta, unread: bool = False) -> IncomingMail:
    html = f"<p>Hello,</p><p>{text}</p><p>With kind regards</p>"
    head = f"From: {sender}\r\nTo: Me <{ME}>\r\nSubject: {subject}\r\nMessage-ID: <{number}@good.example>\r\n"
    head += f"Date: {format_datetime(MORNING - age)}\r\nMIME-Version: 1.0\r\n"
    raw = f"{head}Content-Type: text/html; charset=utf-8\r\n\r\n{html}\r\n".encode()
    labels = frozenset({"INBOX", *(("UNREAD",) if unread else ())})
    return IncomingMail(raw, Provenance.API, _key(number), f"t{number}", labels, MORNING - age)


async def _rules(site: Site) -> None:
    now = site.app.clock.now()
    drafts = [parse_draft(rule) for rule in RULES]
    await site.write(lambda tx: [add_rule(tx, draft, OWNER, now) for draft in drafts])


async def _proven(site: Site, account_id: str) -> None:
    """All of it is proven to be in the archive, until a quarter of an hour ago."""
    now = site.app.clock.now()
    until = int((now - timedelta(minutes=15)).timestamp())
    row = {"account_id": account_id, "walk": 1, "walk_started_at": now - timedelta(hours=2), "walked_at": now}
    row |= {"granularity": "month", "until": until, "frontier": until, "watermark": until, "compared_walk": 1}
    row |= {"counters": '{"stored": 400, "listed": 400, "known": 0}', "updated_at": now}
    await site.write(lambda tx: tx.execute(sync_states.insert().values(row)))


async def _backfill(site: Site) -> str:
    job = await make_job(site)
    work = await take_job(site)
    await report(site, work, rows_processed=126, rows_skipped=14)
    now = site.app.clock.now()
    today = day_of(now, site.app.settings.backfill.zone)
    hour = {"id": new_id(), "job_id": job, "at": now - timedelta(minutes=20), "count": 58}
    spent = {"settled_microdollars": 236_000, "reserved_microdollars": 12_000}
    jobs = BACKFILL_JOBS[Dialect.SQLITE]
    settled = {"spent_microdollars": 236_000, "cost_spent_cents": 24}

    def run(tx: Tx) -> None:
        tx.execute(backfill_rate.insert().values(**hour))
        tx.execute(backfill_spend.insert().values(job_id=job, day=today, **spent))
        tx.execute(update(jobs).where(jobs.c.id == job).values(**settled))

    await site.write(run)
    return job


async def _web(site: Site) -> tuple[str, str]:
    web.follow(site)
    await web.items(site, {"FETCHED": 214, "PENDING": 31, "SKIPPED": 2})
    await web.looked(site)
    run = await web.make_run(site, max_urls=300)
    await web.start_run(site, run.id, found=182)
    title, path = "Notice on the rate of value added tax", "/notices/vat"
    old, new = (f"<h1>{title}</h1><p>{text}</p>" for text in (_NOTICE, _RENEWED))
    before = await web.kept(site, old, _NOTICE, title=title, path=path, age=timedelta(days=212))
    return before, await web.kept(site, new, _RENEWED, title=title, path=path, age=timedelta(hours=3))
