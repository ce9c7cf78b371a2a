"""A mailbox, a model and a home folder, in which a worker is killed at every step of what it was asked to do.

Each life has a database of its own and a message of its own, so that the kills of one never help the next.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, select

from postroom.accounts.store import Account, NewAccount, add_account
from postroom.actions.discord.sim.server import DiscordSim, running_discord
from postroom.app.installation import open_vault
from postroom.app.jobs import CATALOGUE
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.domain.clock import SystemClock
from postroom.domain.ids import new_id
from postroom.gmail.grants import GrantStore, StaticGrant
from postroom.gmail.sim.mime import headers_of
from postroom.gmail.sim.server import Sim, running_sim
from postroom.queue import JobQueue, JobState, NewJob
from postroom.settings import Settings
from postroom.triage.sim.server import ModelSim, running_model
from tests.support.databases import DatabaseFactory
from tests.support.models import INPUT_PRICE, OUTPUT_PRICE
from tests.support.mortality import MortalWorker
from tests.support.sim_mail import letter, mailbox

LATER_S = 3_600.0
"""Longer than any lease and any pause before another attempt."""
_MOST_LIVES = 5


@dataclass
class Scene:
    """One message in the mailbox, taken in by a fresh installation."""

    sim: Sim
    model: ModelSim
    discord: DiscordSim
    database: Database
    account: Account
    gmail_id: str
    message_id: str
    variables: dict[str, str]
    worker: MortalWorker
    missed: str | None = None
    """Mail that came while nobody looked."""

    @property
    def queue(self) -> JobQueue:
        return JobQueue(self.database, CATALOGUE, SystemClock())

    def labels(self) -> frozenset[str]:
        """As the mailbox has them; none if the message is gone."""
        return next((frozenset(mail["label_ids"]) for mail in self.mails() if mail["id"] == self.gmail_id), frozenset())

    def mails(self) -> list[dict[str, Any]]:
        return list(self.sim.control.truth(hashes=False))

    def letters_of(self, action_id: str) -> list[set[str]]:
        """The labels of every message in the mailbox that says it was written for this action."""
        wanted = ("x-postroom-action", action_id)
        return [
            set(mail["label_ids"])
            for mail in self.mails()
            if wanted in {(name.lower(), value) for name, value in headers_of(self.sim.control.raw(mail["id"]))}
        ]

    def questions_about(self, action_id: str) -> int:
        """How many messages in the channel ask about this action."""
        return sum(action_id in json.dumps(message) for message in self.discord.board.messages.values())

    async def work(self) -> None:
        """Let the worker do what there is to do, in peace."""
        await self.worker.live(self.variables)

    async def enqueue(self, *new: NewJob) -> None:
        await self.queue.enqueue(*new)

    async def rows(self, table: Table) -> list[Any]:
        return await self.database.read(lambda tx: list(tx.execute(select(table))))

    async def unfinished(self) -> list[str]:
        """Types of the jobs that are not done."""
        open_jobs = select(jobs.c.type).where(jobs.c.state.in_((JobState.QUEUED, JobState.RUNNING)))
        return await self.database.read(lambda tx: list(tx.execute(open_jobs).scalars()))

    async def failed(self) -> list[str]:
        query = select(jobs.c.type, func.coalesce(jobs.c.last_error, "")).where(jobs.c.state == JobState.FAILED)
        found = await self.database.read(lambda tx: list(tx.execute(query)))
        return [f"{job_type}: {error}" for job_type, error in found]


Doing = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """What is asked for, what must hold whenever the worker dies, and what must have come of it in the end."""

    name: str
    begin: Doing
    outcome: Doing
    always: Doing | None = None
    mail: Callable[[], bytes] = letter


@dataclass(frozen=True)
class MortalWorld:
    folder: Path
    sim: Sim
    model: ModelSim
    discord: DiscordSim
    worker: MortalWorker
    databases: DatabaseFactory

    @asynccontextmanager
    async def scene(self, scenario: Scenario) -> AsyncIterator[Scene]:
        url = self.databases.url()
        database = await connect(url)
        try:
            gmail_id = self.sim.control.deliver(scenario.mail())
            account, message_id = await database.write(lambda tx: self._take_in(tx, gmail_id))
            scene = Scene(
                self.sim,
                self.model,
                self.discord,
                database,
                account,
                gmail_id,
                message_id,
                self._variables(url),
                self.worker,
            )
            await scenario.begin(scene)
            yield scene
        finally:
            await database.close()

    async def sweep(self, scenario: Scenario, *, every: int = 1, first: int = 1) -> int:
        """Let the worker die at each step, go on as others would, and look; how many lives ended early."""
        async with self.scene(scenario) as scene:
            whole = await self.worker.live(scene.variables)
            await self._end(scenario, scene)
        kills = range(first, len(whole.steps) + 1, every)
        for step in kills:
            async with self.scene(scenario) as scene:
                await self.worker.live(scene.variables, die_at=step)
                if scenario.always is not None:
                    await scenario.always(scene)
                await self._end(scenario, scene)
        return len(kills)

    async def _end(self, scenario: Scenario, scene: Scene) -> None:
        """Work on as long as it takes, each time later than before, as others would after a crash."""
        for number in range(1, _MOST_LIVES + 1):
            if not await scene.unfinished():
                break
            await self.worker.live(scene.variables, ahead_s=number * LATER_S)
        assert await scene.unfinished() == []
        assert await scene.failed() == []
        await scenario.outcome(scene)

    def _take_in(self, tx: Tx, gmail_id: str) -> tuple[Account, str]:
        now = SystemClock().now()
        account = add_account(tx, NewAccount(self.sim.email, self.sim.url, None, frozenset()), now)
        message_id = new_id()
        row = {
            "id": message_id,
            "account_id": account.id,
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": account.email,
            "external_event_id": gmail_id,
            "external_thread_id": gmail_id,
            "idempotency_key": gmail_id,
            "sender_identity": "ann@friends.example",
            "subject": "Hello",
            "normalized_text": "How are you?",
            "headers": {"message-id": f"<{gmail_id}@friends.example>"},
            "labels": ["INBOX", "UNREAD"],
            "ingestion_tier": "full",
            "policy_tier": "default",
            "observed_at": now,
            "received_at": now - timedelta(minutes=1),
            "accepted_at": now,
        }
        tx.execute(messages.insert().values(row))
        return account, message_id

    def _variables(self, url: str) -> dict[str, str]:
        return {
            "POSTROOM_HOME": str(self.folder),
            "POSTROOM_DATABASE__URL": url,
            "POSTROOM_WORKER__CONCURRENCY": "1",
            **{f"POSTROOM_DISCORD__{name.upper()}": value for name, value in self.discord.settings("1").items()},
            "POSTROOM_MODEL__PROVIDER": "compatible",
            "POSTROOM_MODEL__NAME": "simulated-small",
            "POSTROOM_MODEL__BASE_URL": self.model.url,
            "POSTROOM_MODEL__API_KEY": self.model.token,
            "POSTROOM_MODEL__INPUT_PRICE": str(INPUT_PRICE),
            "POSTROOM_MODEL__OUTPUT_PRICE": str(OUTPUT_PRICE),
        }


@asynccontextmanager
async def mortal_world(folder: Path, worker: MortalWorker, databases: DatabaseFactory) -> AsyncIterator[MortalWorld]:
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(running_sim(mailbox(0)))
        model = await stack.enter_async_context(running_model())
        discord = await stack.enter_async_context(running_discord())
        GrantStore(open_vault(Settings(home=folder))).save(
            StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token)
        )
        yield MortalWorld(folder, sim, model, discord, worker, databases)
