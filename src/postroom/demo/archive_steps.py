"""Steps that bring something in: a mailbox into the archive, old mail under a budget, and a web source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import func, select

from postroom.contract.agent import SEARCH, SearchedMessage
from postroom.db import Tx
from postroom.db.tables.web import evidence_texts
from postroom.demo.demo_session import DEMO_CALLER, DOCTOR, SOURCE, DemoSession, SoFar
from postroom.domain.money import Micros, format_dollars
from postroom.domain.terms import BackfillStatus
from postroom.mail.address_books import BookEntry
from postroom.mail.addresses import parse_addresses
from postroom.mailboxes.credentials import StaticGrant
from postroom.sim.gmail.generated.mailbox import END
from postroom.switchboard import contacts
from postroom.switchboard.backfill.job import BackfillJob
from postroom.switchboard.backfill.operations import BackfillView
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.switchboard.contacts import ContactSource
from postroom.sync.status import UP_TO_DATE, SyncStatus, status_of
from postroom.web.evidence import search
from postroom.web.runs import NewRun, Run, RunStatus
from postroom.web.sources import EndpointMode

MAIL_QUERY = "(invoice OR receipt) newer_than:5y"


@dataclass(frozen=True)
class ArchivingResult:
    in_the_mailbox: int
    stored: int
    bad: int
    watermarks: tuple[int, ...]
    """As they were seen, in epoch seconds."""
    seconds: float
    found: int
    newest: tuple[SearchedMessage, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        first, last = _day(self.watermarks[0]), _day(self.watermarks[-1])
        return (
            f"{self.stored:,} of {self.in_the_mailbox:,} messages stored in {self.seconds:.1f} s, {self.bad} bad",
            f"the watermark was seen at {len(self.watermarks)} places, from {first} to {last}",
            f"{_count(self.found)} for {MAIL_QUERY}, the newest:",
            *(f"  {mail.date:%Y-%m-%d}  {mail.subject}" for mail in self.newest[:3]),
        )


async def archive_the_mailbox(scene: DemoSession) -> ArchivingResult:
    await know_the_doctor(scene, scene.email)
    clock = scene.app.clock
    begun = clock.monotonic()
    gmail = scene.outside.gmail
    grant = StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token)
    account, _ = await scene.app.take_in(grant, scene.who)
    seen: list[int] = []

    async def is_synced() -> SyncStatus | SoFar:
        status = await scene.read(lambda tx: status_of(tx, account, clock.now()))
        if status.watermark and (not seen or status.watermark > seen[-1]):
            seen.append(status.watermark)
        return status if status.phase == UP_TO_DATE else SoFar((status.watermark, status.counters.get("stored")))

    status = await scene.until(is_synced, "the first sync")
    took = clock.monotonic() - begun
    found = await scene.ask(SEARCH, query=MAIL_QUERY, limit=100)
    total = gmail.control.state().messages
    stored, hits = status.counters.get("stored", 0), found.messages
    return ArchivingResult(total, stored, status.bad, tuple(seen), took, len(hits), tuple(hits[:3]))


async def know_the_doctor(scene: DemoSession, mailbox: str) -> None:
    """Done before its mail comes: who is known decides what is urgent."""
    [doctor] = parse_addresses(DOCTOR)
    entry = BookEntry(doctor.canonical, doctor.display_name)
    now = scene.app.clock.now()
    await scene.write(lambda tx: contacts.import_entries(tx, [entry], ContactSource.MANUAL, now, mailbox=mailbox))
    await scene.write(lambda tx: contacts.export_contacts(tx, now))


def _day(moment: int) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}"


def _count(found: int) -> str:
    return f"{found} found" if found < 100 else "100 or more found"


_CAP_CENTS = 2
_ENDED = (BackfillStatus.COMPLETED, BackfillStatus.COST_CAPPED, BackfillStatus.ERROR, BackfillStatus.CANCELLED)


@dataclass(frozen=True)
class RecoveredMail:
    """One backfill, from its estimate to its end."""

    wanted: str
    estimate: Mapping[str, Any]
    job: BackfillJob
    spent: Micros
    most: Micros
    """That was ever spent and reserved together: a call is reserved at the most that it can cost."""

    @property
    def lines(self) -> tuple[str, ...]:
        estimated, job = self.estimate, self.job
        cost = format_dollars(Micros(estimated["cost_microdollars"] or 0))
        return (
            f"{self.wanted}, at most {format_dollars(job.cap)} a day",
            f"  estimated  {estimated['messages']:,} messages for {cost}",
            f"  {_word(job.status):<9}  {job.rows_processed:,} messages for {format_dollars(self.spent)}",
        )


@dataclass(frozen=True)
class Recovery:
    selective: RecoveredMail
    capped: RecoveredMail

    @property
    def lines(self) -> tuple[str, ...]:
        most = format_dollars(self.capped.most)
        end = f"  with {most} spent or reserved, one more call might have passed the cap"
        return (*self.selective.lines, *self.capped.lines, end)


async def recover_old_mail(scene: DemoSession) -> Recovery:
    finance = _wanted(scene, 365, 500, "finance")
    all_mail = replace(_wanted(scene, 3_650, _CAP_CENTS), auto_resume=False)
    selective = await _begun(scene, "money matters of the last year", finance)
    capped = await _begun(scene, "all mail of ten years", all_mail)
    return Recovery(await selective.end(scene), await capped.end(scene))


def _wanted(scene: DemoSession, days: int, cap_cents: int, *categories: str) -> NewBackfill:
    last = END.date()
    return NewBackfill(
        connector_type="gmail",
        endpoint_identity=scene.email,
        date_from=last - timedelta(days=days),
        date_to=last,
        target_categories=categories,
        rate_limit_per_hour=100_000,
        daily_cost_cap_cents=cap_cents,
    )


@dataclass(frozen=True)
class _BegunRecovery:
    wanted: str
    estimate: Mapping[str, Any]
    job_id: str

    async def end(self, scene: DemoSession) -> RecoveredMail:
        """The job runs until it is over and every message is paid for."""
        most = [Micros(0)]

        async def has_ended() -> BackfillView | SoFar:
            view = await scene.app.backfill.show(self.job_id)
            most.append(view.today.total)
            if view.job.status in _ENDED and not view.today.reserved:
                return view
            return SoFar((view.job.rows_processed, view.job.rows_skipped, view.today.settled))

        view = await scene.until(has_ended, f"the backfill of {self.wanted}")
        return RecoveredMail(self.wanted, self.estimate, view.job, view.today.settled, max(most))


async def _begun(scene: DemoSession, wanted: str, new: NewBackfill) -> _BegunRecovery:
    """The person is shown the estimate, and agrees."""
    estimate = (await scene.app.estimator().estimate(new)).wire()
    created = await scene.app.backfill.create(DEMO_CALLER, replace(new, estimate=estimate))
    return _BegunRecovery(wanted, estimate, created.id)


def _word(status: BackfillStatus) -> str:
    return {BackfillStatus.COMPLETED: "brought", BackfillStatus.COST_CAPPED: "stopped"}.get(status, str(status))


EVIDENCE_QUERY = "porezu"
_CAP = 15


@dataclass(frozen=True)
class Followed:
    run: Run
    published: int
    kept: int
    found: int

    @property
    def lines(self) -> tuple[str, ...]:
        run = self.run
        return (
            f"the site published {self.published} documents; this run may take {run.max_urls}",
            f"{run.discovered_count} found in its sitemap, {self.kept} fetched and kept as evidence",
            f"{self.found} of them found for {EVIDENCE_QUERY!r} ('tax')",
        )


async def follow_a_web_source(scene: DemoSession) -> Followed:
    web = scene.app.web
    begun = await web.hand_over(scene.who, NewRun(sources=[SOURCE], mode=EndpointMode.SITEMAP, max_urls=_CAP))

    async def has_ended() -> Run | SoFar:
        run = await web.show(begun.id)
        return run if run.status in (RunStatus.COMPLETED, RunStatus.FAILED) else SoFar(run.counters)

    run = await scene.until(has_ended, "the web source to be walked")

    async def is_kept() -> int | SoFar:
        kept = await scene.read(_readable)
        return kept if kept >= run.queued_count else SoFar(kept)

    kept = await scene.until(is_kept, "the documents of the web source")
    hits = await scene.read(lambda tx: search(tx, EVIDENCE_QUERY, scene.app.clock.now(), limit=100))
    return Followed(run, len(scene.outside.site.site.gazette.documents), kept, len(hits))


def _readable(tx: Tx) -> int:
    return int(tx.execute(select(func.count()).select_from(evidence_texts)).scalar_one())
