"""The passes of a connector between a Gmail stand-in and a real Switchboard, in one process and on one clock."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sqlalchemy import select

from postroom.connectors.passes import ConnectorContext, GmailPasses
from postroom.connectors.switchboard_client import SwitchboardAway
from postroom.contract.tool import A, R, Tools, ToolSignature
from postroom.db import Database, Tx
from postroom.db.tables.mail import BACKFILL_JOBS, messages
from postroom.db.tables.queue import jobs as queued
from postroom.domain.clock import ManualClock
from postroom.domain.roles import Caller, Role
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.settings import ConnectorSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource, MailboxSource
from postroom.switchboard.backfill import undecided
from postroom.switchboard.toolbox import Direct
from tests.support.gmail_sim import client_of
from tests.support.mail import OWNER, letter
from tests.support.switchboards import Bench, open_bench

NOW = datetime(2026, 6, 15, 8, 0, tzinfo=UTC)
MINUTE_MS = 60_000
_AWAY = timedelta(seconds=5)


def ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)


def listed(number: int, received_ms: int, labels: Iterable[str] = ("INBOX",), **letter_parts: Any) -> ListedMail:
    headers = {"Message-ID": f"<{number}@x.example>", **letter_parts.pop("headers", {})}
    raw = letter(letter_parts.pop("subject", f"Letter {number}"), headers=headers, **letter_parts)
    return ListedMail(raw, received_ms, label_ids=frozenset(labels))


def source_of(mails: Iterable[ListedMail]) -> ListSource:
    return ListSource(sorted(mails, key=lambda mail: mail.internal_date), email=OWNER)


class Losses:
    """What goes wrong between a connector and its Switchboard: calls that never arrive, and answers that are lost."""

    def __init__(self, seed: int, probability: float, on: frozenset[str] | None = None) -> None:
        self._dice = random.Random(seed)
        self._probability = probability
        self._on = on
        self.lost: list[str] = []
        self.before_call: Callable[[str, object], Any] | None = None
        self.answers_to_lose: dict[str, int] = {}
        """By tool: so many of its next calls are carried out and their answers lost."""

    def strikes(self, tool: str) -> bool:
        return (self._on is None or tool in self._on) and self._dice.random() < self._probability


@dataclass
class LossyTools:
    tools: Tools
    losses: Losses

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        name, losses = tool.name, self.losses
        if losses.before_call is not None:
            await losses.before_call(name, arguments)
        if losses.strikes(name):
            losses.lost.append(f"before {name}")
            raise SwitchboardAway("lost", retry_after=_AWAY)
        reply = await self.tools.call(tool, arguments)
        if losses.answers_to_lose.get(name):
            losses.answers_to_lose[name] -= 1
            raise SwitchboardAway("lost", retry_after=_AWAY)
        if losses.strikes(name):
            losses.lost.append(f"after {name}")
            raise SwitchboardAway("lost", retry_after=_AWAY)
        if losses.strikes(name):
            losses.lost.append(f"twice {name}")
            reply = await self.tools.call(tool, arguments)
        return reply


@dataclass
class ConnectorRig:
    sim: GmailSim
    bench: Bench
    client: GmailClient
    clock: ManualClock
    folder: Path
    config: ConnectorSettings
    losses: Losses | None = None
    passes: GmailPasses = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, name: str = "connector one") -> GmailPasses:
        """A new connector on the same folder, as after a crash."""
        tools = Direct(self.bench.toolbox, Caller(Role.CONNECTOR, name))
        self.passes = GmailPasses(
            ConnectorContext(
                identity=self.sim.email,
                tools=LossyTools(tools, self.losses) if self.losses else tools,
                mailbox=GmailMailbox(self.client),
                folder=self.folder,
                clock=self.clock,
                instance=name,
                config=self.config,
            )
        )
        return self.passes

    def deliver(self, subject: str = "New", labels: Iterable[str] = ("INBOX", "UNREAD"), **parts: Any) -> str:
        return self.sim.control.deliver(letter(subject, **parts), frozenset(labels), internal_date=ms(self.clock.now()))

    async def rows(self) -> dict[str, Any]:
        """What the Switchboard has taken in, by Gmail id."""
        found = await self.bench.database.read(lambda tx: tx.execute(select(messages)).all())
        return {row.external_event_id: row for row in found}

    async def queue(self) -> list[Any]:
        return await self.bench.database.read(
            lambda tx: list(tx.execute(select(queued).where(queued.c.type == "classify").order_by(queued.c.seq)))
        )

    async def calls(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """As the dashboard, of someone who has just given the passphrase."""
        async with self.bench.client(Role.DASHBOARD, is_proved=True) as call:
            return await call(tool, arguments)

    async def create_job(self, first: date, last: date, **more: Any) -> str:
        given = {
            "connector_type": "gmail",
            "endpoint_identity": self.sim.email,
            "target_categories": [],
            "date_from": first.isoformat(),
            "date_to": last.isoformat(),
            "rate_limit_per_hour": 100_000,
            "daily_cost_cap_cents": 100_000,
            **more,
        }
        return str((await self.calls("create_backfill_job", **given))["job_id"])

    async def job(self, job_id: str) -> Any:
        def read(tx: Tx) -> Any:
            jobs = BACKFILL_JOBS[tx.dialect]
            return tx.execute(select(jobs).where(jobs.c.id == job_id)).one()

        return await self.bench.database.read(read)


@asynccontextmanager
async def connector_rig(
    source: MailboxSource,
    database: Database,
    folder: Path,
    *,
    clock: ManualClock | None = None,
    losses: Losses | None = None,
    **config: Any,
) -> AsyncIterator[ConnectorRig]:
    clock = clock or ManualClock(NOW)
    async with AsyncExitStack() as stack:
        # No worker runs here: all mail counts as decided at once, so that no job waits for decisions.
        stack.enter_context(patch.object(undecided, "enter", lambda *given: None))
        sim = await stack.enter_async_context(running_sim(source, clock=clock))
        bench = await stack.enter_async_context(open_bench(database, folder, clock))
        await bench.account(sim.email)
        client = await stack.enter_async_context(client_of(sim, clock=clock))
        stage = ConnectorRig(sim, bench, client, clock, folder / "connector", ConnectorSettings(**config), losses)
        await stage.passes.presence.beat() if losses is None else None
        yield stage
