"""The whole product against its stand-ins (mail, history, rules, a model, manual actions, a web source), and the
invariants that hold whatever happens to it.

In one shape it is `postroom up` on SQLite; in the other several processes on PostgreSQL that share no disk but the
settings.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, and_, func, select, update

from postroom.accounts.account import NewAccount, add_account
from postroom.actions import requests
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.db.tables.access import audit_log
from postroom.db.tables.accounts import history_cursors, sync_states
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_spend, ingest_inbox, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, decisions, model_calls, model_reservations
from postroom.db.tables.web import backfill_runs, discovered_items, domain_leases, evidence
from postroom.domain import jobs as names
from postroom.domain.actions import ActionStatus, ActionType, parse_action
from postroom.domain.clock import SystemClock
from postroom.domain.errors import Retryable
from postroom.domain.jobs import CATALOGUE
from postroom.domain.money import ReservationState
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.queue import JobQueue, JobState, NewJob
from postroom.triage.records import LOST, STARTED
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from postroom.vault import Vault
from tests.support.commands import PostroomProcess, command
from tests.support.databases import PostgresServer
from tests.support.deployment import StandIn, model_variables, stand_in
from tests.support.web_sources import sources_file, write_sources

T = TypeVar("T")
OWNER = Actor("cli", "owner")
_MOST_CONNECTIONS = 20
"""That a pool may hold, each of which is found dead once."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
_LONGEST_CALL = timedelta(seconds=90)
"""`model.timeout_s` and what is added to it: past it no call may hold money."""
_UPKEEP_S = 30.0
_OPEN = model_reservations.c.state == ReservationState.RESERVED
ONE_OFF = (names.CLASSIFY.name, names.ACTION.name, names.UNDO.name, "outbound.send", "web.fetch", "web.backfill")
"""What is enqueued for one thing and is over when that is done; the rest recurs for ever."""
QUICK = {
    "BACKFILL_ENABLED": "true",
    "POSTROOM_MODEL__DAILY_CEILING_CENTS": "100000",  # so that only the job's own cap can stop it
    "POSTROOM_RECURRING__LIVE": "every 1s",
    "POSTROOM_RECURRING__SYNC": "every 3s",
    "POSTROOM_RECURRING__BACKFILL": "every 1s",
    "POSTROOM_SWITCHBOARD__ARCHIVE_WAIT_S": "60",
    "POSTROOM_SYNC__RPS_MAX": "500",
    "POSTROOM_SYNC__RPS_START": "500",
    "POSTROOM_SYNC__SETTLE_S": "1",
    "POSTROOM_WEB__MIN_DELAY_MS": "0",
    "POSTROOM_WEB__MAX_DELAY_MS": "0",
    "POSTROOM_WEB__FETCHES_PER_MINUTE": "6000",
    "POSTROOM_WORKER__LEASE_S": "5",
    "POSTROOM_WORKER__POLL_S": "0.5",
}
RULES: tuple[dict[str, Any], ...] = (
    {"name": "Receipts", "condition": {"subject_contains": "Receipt"}, "actions": ["apply_label=Paid"]},
    {"name": "Digests", "condition": {"subject_contains": "Digest"}, "actions": ["archive"]},
)


class Shape(StrEnum):
    ONE_PROCESS = "one process on SQLite"
    MANY_PROCESSES = "many processes on PostgreSQL"


PROCESSES: dict[Shape, dict[str, tuple[str, ...]]] = {
    Shape.ONE_PROCESS: {"up": ("up", "--json")},
    Shape.MANY_PROCESSES: {
        "switchboard": ("switchboard",),
        "worker 1": ("worker",),
        "worker 2": ("worker",),
        "worker 3": ("worker",),
    },
}


class Mail(StrEnum):
    """What a new message is about, and so what becomes of it."""

    RECEIPT = "Receipt"
    DIGEST = "Digest"
    QUESTION = "Question"


@dataclass
class WholeProduct:
    home: Path
    variables: dict[str, str]
    gmail: StandIn
    model: StandIn
    site: StandIn
    database: Database
    server: PostgresServer | None
    processes: dict[str, PostroomProcess]
    documents: int
    delivered: dict[str, Mail] = field(default_factory=dict)
    forwarded: set[str] = field(default_factory=set)
    at_first: frozenset[str] = frozenset()
    """The mail that was there before anything began."""
    backfill_id: str = ""

    async def types(self, *arguments: str) -> Any:
        """A command, as a person gives it."""
        done = await command(self.home, *arguments, "--json", **self.variables)
        assert done.code == 0, done.stderr
        return done.json

    async def begin(self, cap_cents: int) -> None:
        """Everything that there is to do from the start is asked for; then the processes start."""
        self.at_first = frozenset(mail["id"] for mail in await self.gmail.truth())
        await self._settle_in()
        await self.start()
        days = ("--all-mail", "--from", "2016-01-01", "--to", "2025-12-31")
        limits = ("--rate", "1000000", "--cap-cents", str(cap_cents))
        created = await self.types("backfill", "create", "--account", self.gmail.email, *days, *limits, "--yes")
        self.backfill_id = created["job_id"]
        await self.types("web", "backfill", "--mode", "sitemap", "--queue")

    async def _settle_in(self) -> None:
        gmail = self.gmail
        grant = StaticGrant(email=gmail.email, api_base=gmail.url, access_token=gmail.token)
        GrantStore(Vault(self.home)).save(grant)
        write_sources(self.home, sources_file(self.site.url, url=f"{self.site.url}/sitemap.xml"))
        now = SystemClock().now()

        def write(tx: Tx) -> None:
            for rule in RULES:
                add_rule(tx, parse_draft(rule), OWNER, now)
            add_account(tx, NewAccount(gmail.email, gmail.url), now)

        await self.write(write)

    async def start(self) -> None:
        """Whatever does not run."""
        for process in self.processes.values():
            if not process.is_running:
                await process.start()
                if process.arguments[0] != "worker":
                    await process.ready()

    async def deliver(self, kind: Mail) -> None:
        gmail_id = await self.gmail.deliver(f"{kind} number {len(self.delivered)}")
        self.delivered[gmail_id] = kind

    async def forward(self, gmail_id: str) -> None:
        """The owner wants this message sent on, if it is here yet."""
        if gmail_id in self.forwarded:
            return
        found = await self.rows(select(messages).where(messages.c.external_event_id == gmail_id))
        if not found:
            return
        queue = JobQueue(self.database, CATALOGUE, SystemClock())
        wanted = parse_action(ActionType.FORWARD, {"to": ["accounts@friends.example"]})
        await self.write(
            lambda tx: requests.request_action(tx, queue, requests.message_named(tx, found[0].id), wanted, OWNER)
        )
        self.forwarded.add(gmail_id)

    async def rows(self, query: Select[Any]) -> list[Any]:
        return await self.read(lambda tx: list(tx.execute(query)))

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        """A database that was restarted is asked again: the connections from before are gone."""
        return await _patiently(lambda: self.database.read(transaction))

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await _patiently(lambda: self.database.write(transaction))

    async def let_leases_run_out(self) -> None:
        """Expire the leases, as if their holders had died."""
        backfills = BACKFILL_JOBS[self.database.dialect]

        def write(tx: Tx) -> None:
            for table in (history_cursors, backfills):
                held = table.c.lease_expires_at.is_not(None)
                tx.execute(update(table).where(held).values(lease_expires_at=LONG_AGO))
            tx.execute(update(domain_leases).values(expires_at=LONG_AGO))
            running = backfill_runs.c.status == "RUNNING"
            tx.execute(update(backfill_runs).where(running).values(heartbeat_at=LONG_AGO))

        await self.write(write)

    async def unfinished(self) -> list[str]:
        """What there is still to do, in words."""
        backfills = BACKFILL_JOBS[self.database.dialect]
        undecided = (
            select(func.count())
            .select_from(messages.outerjoin(decisions, decisions.c.message_id == messages.c.id))
            .where(decisions.c.id.is_(None), messages.c.direction == "inbound")
        )
        arrived = messages.c.external_event_id.in_(list(self.delivered))
        open_job = and_(jobs.c.type.in_(ONE_OFF), jobs.c.state.in_((JobState.QUEUED, JobState.RUNNING)))
        counts = {
            "messages without a decision": undecided,
            "messages on their way in": select(len(self.delivered) - func.count()).where(arrived),
            "jobs": select(func.count()).where(open_job),
            "backfill jobs": select(func.count()).where(backfills.c.status != "completed"),
            "web runs": select(func.count()).where(backfill_runs.c.status != "COMPLETED"),
            "pages": select(func.count()).where(discovered_items.c.status == "PENDING"),
            "actions": select(func.count()).where(
                actions.c.status.not_in((ActionStatus.COMPLETED, ActionStatus.APPROVED_PENDING))
            ),
            "walks": select(1 - func.count()).where(sync_states.c.walked_at.is_not(None)),
        }
        found = await self.read(lambda tx: {what: tx.execute(query).scalar() for what, query in counts.items()})
        return [f"{number} {what}" for what, number in found.items() if number]

    async def make_due(self) -> None:
        """As if the pauses before another attempt were over."""
        waiting = and_(jobs.c.type.in_(ONE_OFF), jobs.c.state == JobState.QUEUED, jobs.c.not_before.is_not(None))
        await self.write(lambda tx: tx.execute(update(jobs).where(waiting).values(not_before=LONG_AGO)))

    async def retry_failed(self) -> None:
        """What a person does with what gave up while nothing worked. Where it goes on by itself, that is quicker, and
        the person is refused."""
        failed = await self.rows(select(jobs.c.id).where(jobs.c.state == JobState.FAILED))
        stopped = await self.rows(select(backfill_runs.c.id).where(backfill_runs.c.status == "FAILED"))
        for (job_id,) in failed:
            await command(self.home, "jobs", "retry", job_id, **self.variables)
        for (run_id,) in stopped:
            await command(self.home, "web", "resume", run_id, **self.variables)

    async def settle(self) -> None:
        """All troubles are over; wait until nothing is left to do. The test's time limit is the only deadline."""
        for stand in (self.gmail, self.model):
            await stand.control("faults/clear")
        await self.start()
        await self.let_leases_run_out()
        while await self.unfinished():
            await self.retry_failed()
            await self.make_due()
            await self.start()
            await asyncio.sleep(0.5)
        await self.let_lost_calls_expire()

    async def let_lost_calls_expire(self) -> None:
        """A call whose process was killed holds its money until its deadline. As if that had passed: the product's
        upkeep has to settle it. A call whose end is recorded, or whose deadline is too far ahead, is not helped."""
        query = select(model_reservations).join(model_calls, model_calls.c.id == model_reservations.c.call_id)
        endless = await self.rows(query.where(_OPEN, model_calls.c.outcome.in_((STARTED, LOST))))
        lost = [row.call_id for row in endless if row.deadline - row.reserved_at <= _LONGEST_CALL]
        if not lost:
            return
        mine = model_reservations.c.call_id.in_(lost)
        await self.write(lambda tx: tx.execute(update(model_reservations).where(_OPEN, mine).values(deadline=LONG_AGO)))
        queue = JobQueue(self.database, CATALOGUE, SystemClock())
        await self.write(lambda tx: queue.add(tx, NewJob(names.BACKFILL_UPKEEP.name)))
        patience = asyncio.get_running_loop().time() + _UPKEEP_S
        while await self.rows(select(model_reservations).where(_OPEN, mine)):
            if asyncio.get_running_loop().time() > patience:
                return  # the invariants tell
            await asyncio.sleep(0.2)

    async def end(self) -> list[str]:
        """Stop each process, which should end well; of those that did not, how, and what they said last. One that was
        started just now is stopped once it listens."""
        for process in self.processes.values():
            if process.arguments[0] == "worker":
                await process.logged("worker.started")
        ends = {name: await process.end() for name, process in reversed(self.processes.items())}
        return [f"{name} ended with {code}: {log[-2_000:]}" for name, (code, log) in ends.items() if code]

    async def kill(self) -> None:
        for process in self.processes.values():
            await process.kill()


@asynccontextmanager
async def whole_product(
    path: Path, shape: Shape, server: PostgresServer | None = None, *, url: str | None = None, mails: int, pages: int
) -> AsyncIterator[WholeProduct]:
    """The stand-ins run, and nothing else does yet."""
    home = path / "home"
    home.mkdir(parents=True)
    async with AsyncExitStack() as stack:
        gmail = await stack.enter_async_context(stand_in(path / "gmail", "gmail", "--messages", str(mails)))
        model = await stack.enter_async_context(stand_in(path / "model", "model"))
        site = await stack.enter_async_context(stand_in(path / "site", "site", "--documents", str(pages)))
        database = await connect(url or f"sqlite:///{home / 'postroom.db'}")
        stack.push_async_callback(database.close)
        variables = QUICK | model_variables(model) | {"POSTROOM_SWITCHBOARD__PORT": str(free_port())}
        if url is not None:
            variables |= {"POSTROOM_DATABASE__URL": url, "POSTROOM_ARCHIVE__STORE": "database"}
        processes = {
            name: PostroomProcess(*arguments, home=home, variables=variables)
            for name, arguments in PROCESSES[shape].items()
        }
        product = WholeProduct(home, variables, gmail, model, site, database, server, processes, pages)
        stack.push_async_callback(product.kill)
        yield product


async def _patiently(attempt: Callable[[], Awaitable[T]]) -> T:
    for _ in range(_MOST_CONNECTIONS):
        try:
            return await attempt()
        except Retryable:
            await asyncio.sleep(0.2)
    return await attempt()


def free_port() -> int:
    """A process that is started again is to be found where it was."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Observations:
    """Looks again and again while things go wrong; what may only grow never shrinks, and no cap is passed."""

    product: WholeProduct
    watermark: int = 0
    audited: int = 0
    looks: int = 0

    async def look(self) -> None:
        self.looks += 1
        for row in await self.product.rows(select(backfill_spend)):
            spent = row.reserved_microdollars + row.settled_microdollars
            assert spent <= await self._cap(row.job_id), "the day's budget was passed"
        [(watermark,)] = await self.product.rows(select(func.coalesce(func.max(sync_states.c.watermark), 0)))
        [(audited,)] = await self.product.rows(select(func.count()).select_from(audit_log))
        assert watermark >= self.watermark, "the watermark went back"
        assert audited >= self.audited, "the audit log lost entries"
        self.watermark, self.audited = watermark, audited

    async def _cap(self, job_id: str) -> int:
        table = BACKFILL_JOBS[self.product.database.dialect]
        [(cents,)] = await self.product.rows(select(table.c.daily_cost_cap_cents).where(table.c.id == job_id))
        return int(cents) * 10_000


async def broken_invariants(product: WholeProduct) -> list[str]:
    """Every promise that does not hold, in words; to be asked when all is done."""
    truth = {mail["id"]: mail for mail in await product.gmail.truth()}
    return [
        *await _mail_is_taken_in_once(product),
        *await _everything_is_decided_once(product),
        *_labels_are_as_decided(product, truth),
        *await _letters_went_out_once(product, truth),
        *await _money_agrees(product),
        *await _pages_are_kept_once(product),
        *await _jobs_are_over(product),
    ]


async def _mail_is_taken_in_once(product: WholeProduct) -> Iterator[str]:
    rows = await product.rows(select(messages.c.external_event_id, messages.c.idempotency_key))
    events = Counter(row.external_event_id for row in rows)
    [(inbox,)] = await product.rows(select(func.count()).select_from(ingest_inbox))
    problems = [f"{key} is there {times} times" for key, times in events.items() if times > 1]
    problems += [f"{key} was delivered and is not there" for key in product.delivered if key not in events]
    problems += [f"{inbox} inbox rows for {len(rows)} messages"] if inbox != len(rows) else []
    return iter(problems)


async def _everything_is_decided_once(product: WholeProduct) -> Iterator[str]:
    query = select(messages.c.external_event_id, decisions.c.source).join(
        decisions, decisions.c.message_id == messages.c.id
    )
    sources = {row.external_event_id: row.source for row in await product.rows(query)}
    by_rule, by_model = {"deterministic"}, {"llm", "none"}  # a model that talks nonsense twice leaves it to a person
    return (
        f"{key} ({kind}) was decided by {sources.get(key)}"
        for key, kind in product.delivered.items()
        if sources.get(key) not in (by_model if kind is Mail.QUESTION else by_rule)
    )


def _labels_are_as_decided(product: WholeProduct, truth: dict[str, dict[str, Any]]) -> Iterator[str]:
    for key, kind in product.delivered.items():
        labels = set(truth[key]["label_ids"])
        if kind is Mail.RECEIPT and not any(label.startswith("Label_") for label in labels):
            yield f"{key} should have its label, and has {sorted(labels)}"
        if kind is Mail.DIGEST and "INBOX" in labels:
            yield f"{key} should have left the inbox"


async def _letters_went_out_once(product: WholeProduct, truth: dict[str, dict[str, Any]]) -> list[str]:
    """Of the mail that is there since the start, none has this label."""
    forwards = await product.rows(select(actions).where(actions.c.type == ActionType.FORWARD))
    unsent = [row.gmail_id for row in forwards if row.status != ActionStatus.COMPLETED]
    sent = [mail for mail in truth.values() if "SENT" in mail["label_ids"] and mail["id"] not in product.at_first]
    problems = [f"{key} was not sent on" for key in unsent]
    if len(sent) != len(forwards) or len(forwards) != len(product.forwarded):
        problems.append(f"{len(sent)} letters for {len(product.forwarded)} wishes ({len(forwards)} recorded)")
    return problems


async def _money_agrees(product: WholeProduct) -> list[str]:
    table = BACKFILL_JOBS[product.database.dialect]
    [job] = await product.rows(select(table).where(table.c.id == product.backfill_id))
    mine = model_calls.c.backfill_job_id == product.backfill_id
    [(paid,)] = await product.rows(select(func.coalesce(func.sum(model_calls.c.cost_microdollars), 0)).where(mine))
    ledger = await product.rows(select(backfill_spend).where(backfill_spend.c.job_id == product.backfill_id))
    settled, reserved = (
        sum(row.settled_microdollars for row in ledger),
        sum(row.reserved_microdollars for row in ledger),
    )
    taken_in = await product.rows(select(func.count()).where(messages.c.backfill_job_id == product.backfill_id))
    problems = []
    if settled < paid:
        problems.append(f"{paid} micro-dollars were paid and {settled} settled")
    if reserved:
        problems.append(f"{reserved} micro-dollars are still reserved")
    problems += [
        f"the call {row.call_id} has no end" for row in await product.rows(select(model_reservations).where(_OPEN))
    ]
    if job.rows_processed < taken_in[0][0]:
        problems.append(f"the job counts {job.rows_processed}, and {taken_in[0][0]} messages came of it")
    return problems


async def _pages_are_kept_once(product: WholeProduct) -> list[str]:
    items = await product.rows(select(discovered_items.c.url, discovered_items.c.status, discovered_items.c.error))
    kept = Counter(url for (url,) in await product.rows(select(evidence.c.url)))
    problems = [f"{row.url} is {row.status}: {row.error}" for row in items if row.status == "FAILED"]
    problems += [f"{url} is kept {times} times" for url, times in kept.items() if times > 1]
    if len(items) < product.documents:
        problems.append(f"{len(items)} of {product.documents} pages were found")
    return problems


async def _jobs_are_over(product: WholeProduct) -> list[str]:
    failed = await product.rows(select(jobs.c.type, jobs.c.last_error).where(jobs.c.state == JobState.FAILED))
    return [f"a job {row.type} failed: {row.last_error}" for row in failed]
