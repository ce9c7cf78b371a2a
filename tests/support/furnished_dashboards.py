"""Dashboards in which every page has something to show: one filled with whatever words a test gives (`furnish`), and
one with an ordinary day for the screenshots (`good_day`).

`known` has values for the parameters of routes, so that a test can walk all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.header import Header
from email.utils import format_datetime
from typing import Any

from fastapi.routing import iter_route_contexts
from sqlalchemy import update

from postroom.accounts.account import NewAccount, add_account
from postroom.archive.messages import IncomingMail, Provenance
from postroom.audit import Actor
from postroom.db import Dialect, Tx
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_rate, backfill_spend
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.roles import Role
from postroom.domain.terms import Tier
from postroom.mailboxes.gmail.methods import ProfileName
from postroom.switchboard.backfill.ledger import day_of
from postroom.sync.fetch import record_bad
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.dashboard.test_approvals_page import ask
from tests.support import dashboard_data as scene
from tests.support import dashboard_data as web
from tests.support.backfills import add_history, make_job, report_progress, take_job
from tests.support.dashboard_data import add_decided_mail, archive_mail
from tests.support.dashboards import Site, log_in
from tests.support.mail import ME

FURNISHED_KEY = "18f0000000000099"
_NO_PAGES = ("/api/", "/static/", "/live", "/login", "/welcome", "/manifest")
_FILES = ("/raw", "/body", "/attachments/{number}")
_NEEDED = {"/archive/bad": f"?account={ME}", "/archive/certificates": f"?account={ME}"}


@dataclass(frozen=True)
class FurnishedDashboard:
    site: Site
    known: dict[str, str] = field(default_factory=dict)

    def known_at(self, route: str) -> dict[str, str]:
        """Jobs of the queue and of backfill have different ids under one name."""
        if "/backfill" in route:
            return self.known | {"job_id": self.known["backfill_id"]}
        return self.known

    def paths(self) -> list[str]:
        """Every page whose parameters are known, from the routes, and some in their other states."""
        return [*self._from_routes(), *self._states()]

    def _from_routes(self) -> Iterator[str]:
        for context in iter_route_contexts(self.site.dashboard.pages.routes):
            route = re.sub(r":\w+}", "}", str(context.path))
            if "GET" not in (context.methods or ()) or route.startswith(_NO_PAGES) or route.endswith(_FILES):
                continue
            known = self.known_at(route)
            if set(re.findall(r"{(\w+)}", route)) <= known.keys():
                yield route.format_map(known) + _NEEDED.get(route, "")

    def _states(self) -> list[str]:
        message, evidence = f"/mail/{ME}/{FURNISHED_KEY}", f"/web/evidence/{self.known['evidence_id']}"
        return [
            *(f"{message}?view=text", "/mail?query=a%20(", "/mail?query=in:anywhere", "/queue?state=failed"),
            *("/web/evidence?query=a%20(", f"{evidence}?view=page", f"{evidence}?view=source"),
            *(f"{evidence}/compare/{self.known['other_id']}?of=source", "/no/such/page"),
        ]


async def furnish(site: Site, said: str) -> FurnishedDashboard:
    """Needs backfill to be on."""
    known = {"account": ME, "key": FURNISHED_KEY, "number": "0", "connector_type": "gmail", "identity": ME}
    await _furnish_mail(site, said)
    known["action_id"] = await ask(site, said)
    known["job_id"] = (await scene.add_failed_jobs(site, 2, said))[0]
    known["backfill_id"] = await make_job(site)
    await scene.add_backfill_job(site, spent=1_000_000, status="error", error=said)
    await scene.add_model_call(site, 12_000, model=said)
    await _furnish_connectors(site, said)
    await scene.add_series(site)
    known |= await _furnish_web(site, said)
    await site.token(Role.AGENT)
    await log_in(site.app, said)
    settings = (await site.api("GET", "/settings")).json()
    known["token_id"] = settings["tokens"][0]["id"]
    known["session_id"] = next(each["id"] for each in settings["sessions"] if each["client"].startswith(said[:20]))
    return FurnishedDashboard(site, known)


async def _furnish_mail(site: Site, said: str) -> None:
    account = await add_history(site)
    now = site.app.clock.now()
    word = Header(said, "utf-8", maxlinelen=10_000).encode()
    head = f"From: {word} <eve@example.org>\r\nTo: {word} <{ME}>\r\nSubject: {word}\r\nX-Said: {word}\r\n"
    parts = f"\r\n--b\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<p>{said}</p>\r\n--b\r\n"
    file = f"Content-Type: text/plain\r\nContent-Disposition: attachment; filename*=utf-8''{word}.txt\r\n\r\n{said}\r\n"
    raw = f"{head}Content-Type: multipart/mixed; boundary=b\r\n{parts}{file}--b--\r\n".encode()
    labels = frozenset({"INBOX", "UNREAD", said})
    await archive_mail(site, [IncomingMail(raw, Provenance.API, FURNISHED_KEY, "t1", labels, now)])
    await scene.add_live_mail(site, {Tier.HIGH_PRIORITY: 2, Tier.DEFAULT: 3}, assignment_rule=said, account_id=account)
    await add_decided_mail(site, FURNISHED_KEY, action="archive", needs_review=True, reason=said)
    await site.write(lambda tx: record_bad(tx, account, "18c1", said, 1, now))


async def _furnish_connectors(site: Site, said: str) -> None:
    await scene.add_heartbeat(site, status=said, instance=said, checkpoint={said: said, "contacts": said})
    await scene.add_heartbeat(site, said, ago=timedelta(hours=2))
    await scene.add_contacts(site, site.app.clock.now())


async def _furnish_web(site: Site, said: str) -> dict[str, str]:
    web.follow_sources(site)
    await web.add_items(site, {"FETCHED": 3, "FAILED": 2}, error=said)
    await web.add_look(site, said)
    run = await web.add_run(site)
    await web.start_run(site, run.id, found=7)
    await web.fail_run(site, run.id, said, (f"{web.SITE_URL}/{said}", said))
    old = await web.add_kept_page(site, f"<p>{said}</p>", said, title=said, path=f"/{said}", age=timedelta(days=9))
    new = await web.add_kept_page(site, f"<p>{said}, anew</p>", f"{said}\n{said} anew", title=said, path=f"/{said}")
    return {"run_id": run.id, "evidence_id": new, "other_id": old}


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


DAY_OWNER = Actor("dashboard", "the owner")
DAY_RULES: tuple[dict[str, Any], ...] = (
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


def morning_clock() -> ManualClock:
    return ManualClock(MORNING)


@dataclass(frozen=True)
class GoodDay:
    message: str
    job: str
    evidence: str
    before: str


async def good_day(site: Site) -> GoodDay:
    """Needs backfill to be on, and a clock that stands at the morning."""
    message = await _day_mail(site)
    await scene.add_heartbeat(site, ago=timedelta(seconds=20))
    await scene.add_contacts(site, site.app.clock.now() - timedelta(minutes=2))
    for subject in ("Your parcel could not be delivered", "You have won a voyage"):
        await ask(site, subject)
    await scene.add_failed_jobs(site, 1)
    await scene.add_model_call(site, 184_000)
    job = await _day_backfill(site)
    before, evidence = await _day_web(site)
    await _day_rules(site)
    await scene.add_series(site, hours=24, days=30)
    return GoodDay(message, job, evidence, before)


async def _day_mail(site: Site) -> str:
    now = site.app.clock.now()
    wanted = NewAccount(ME, _BASE, ProfileName.MAY_2026)
    account = await site.write(lambda tx: add_account(tx, wanted, now))
    older = [_letter(n, *_LETTERS[n % len(_LETTERS)][:3], age=timedelta(days=9 * n + 3)) for n in range(8, 400)]
    newest = [
        _letter(n, *text[:3], age=timedelta(minutes=25 + 90 * n), unread=text[3]) for n, text in enumerate(_LETTERS)
    ]
    await archive_mail(site, [*older, *newest])
    await add_decided_mail(site, _key(0), reason="Somebody whom you write to asks for an answer.")
    await add_decided_mail(
        site, _key(1), reason="A monthly statement: nothing has to be done, and it is easy to find again."
    )
    await scene.add_live_mail(
        site, {Tier.HIGH_PRIORITY: 11, Tier.INTERACTIVE: 23, Tier.DEFAULT: 64}, account_id=account.id
    )
    for tier, waited in ((Tier.HIGH_PRIORITY, 2), (Tier.INTERACTIVE, 9), (Tier.DEFAULT, 41)):
        await scene.add_served_mail(site, tier, timedelta(seconds=waited))
    await _day_archive(site, account.id)
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


async def _day_rules(site: Site) -> None:
    now = site.app.clock.now()
    drafts = [parse_draft(rule) for rule in DAY_RULES]
    await site.write(lambda tx: [add_rule(tx, draft, DAY_OWNER, now) for draft in drafts])


async def _day_archive(site: Site, account_id: str) -> None:
    """All of it is proven to be in the archive, until a quarter of an hour ago."""
    now = site.app.clock.now()
    until = int((now - timedelta(minutes=15)).timestamp())
    row = {"account_id": account_id, "walk": 1, "walk_started_at": now - timedelta(hours=2), "walked_at": now}
    row |= {"granularity": "month", "until": until, "frontier": until, "watermark": until, "compared_walk": 1}
    row |= {"counters": '{"stored": 400, "listed": 400, "known": 0}', "updated_at": now}
    await site.write(lambda tx: tx.execute(sync_states.insert().values(row)))


async def _day_backfill(site: Site) -> str:
    job = await make_job(site)
    work = await take_job(site)
    await report_progress(site, work, rows_processed=126, rows_skipped=14)
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


async def _day_web(site: Site) -> tuple[str, str]:
    web.follow_sources(site)
    await web.add_items(site, {"FETCHED": 214, "PENDING": 31, "SKIPPED": 2})
    await web.add_look(site)
    run = await web.add_run(site, max_urls=300)
    await web.start_run(site, run.id, found=182)
    title, path = "Notice on the rate of value added tax", "/notices/vat"
    old, new = (f"<h1>{title}</h1><p>{text}</p>" for text in (_NOTICE, _RENEWED))
    before = await web.add_kept_page(site, old, _NOTICE, title=title, path=path, age=timedelta(days=212))
    return before, await web.add_kept_page(site, new, _RENEWED, title=title, path=path, age=timedelta(hours=3))
