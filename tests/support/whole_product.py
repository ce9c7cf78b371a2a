"""The whole product against its stand-ins: mail, history, rules, a model, things a person does, a web source.

In one shape it is `postroom up` on SQLite; in the other it is several processes on PostgreSQL with no disk in common
but the settings. Both are asked for the same, meet the same misfortunes, and are held to the same promises.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Select, and_, func, select, update

from postroom.accounts.store import NewAccount, add_account
from postroom.actions import desk
from postroom.app.jobs import CATALOGUE
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.db.tables.actions import actions
from postroom.db.tables.backfill import BACKFILL_JOBS
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.sync import history_cursors, sync_states
from postroom.db.tables.triage import decisions
from postroom.db.tables.web import backfill_runs, discovered_items, domain_leases
from postroom.domain import jobs as names
from postroom.domain.actions import ActionStatus, ActionType, parse_action
from postroom.domain.clock import SystemClock
from postroom.domain.errors import Retryable
from postroom.gmail.grants import GrantStore, StaticGrant
from postroom.queue import JobQueue, JobState
from postroom.triage.rules.model import parse_draft
from postroom.triage.rules.store import add_rule
from postroom.vault import Vault
from tests.support.databases import PostgresServer
from tests.support.processes import PostroomProcess, command
from tests.support.town import StandIn, model_variables, stand_in
from tests.support.web_sources import sources_file, write_sources

T = TypeVar("T")
OWNER = Actor("cli", "owner")
_MOST_CONNECTIONS = 20
"""That a pool may hold, each of which is found dead once."""
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
ONE_OFF = (names.CLASSIFY, names.ACTION, names.UNDO, "outbound.send", "web.fetch", "web.backfill")
"""What is enqueued for one thing and is over when that is done; the rest recurs for ever."""
QUICK = {
    "BACKFILL_ENABLED": "true",
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
        await self.write(lambda tx: desk.want(tx, queue, found[0], wanted, OWNER))
        self.forwarded.add(gmail_id)

    async def rows(self, query: Select[Any]) -> list[Any]:
        return await self.read(lambda tx: list(tx.execute(query)))

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        """A database that was restarted is asked again: the connections from before are gone."""
        return await _patiently(lambda: self.database.read(transaction))

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await _patiently(lambda: self.database.write(transaction))

    async def let_leases_run_out(self) -> None:
        """As if the time had passed: whoever held them is dead."""
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

    async def end(self) -> list[str]:
        """Told to end, each ends well; of those that did not, how, and what they said last. One that was started just
        now is told once it listens."""
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
