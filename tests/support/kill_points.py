"""Kills a worker with SIGKILL after every step of what it was asked to do: each action, its undo, sending, waking,
classifying, filling a gap.

Each run has a database and a message of its own, so that no kill helps the next. The worker is `killed_worker.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Table, func, select

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.actions import requests, undo
from postroom.app.installation import open_vault
from postroom.audit import Actor
from postroom.db import Database, Tx, connect
from postroom.db.tables.accounts import history_cursors, history_gaps
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import action_links, actions, decisions, labels, snoozes
from postroom.domain import jobs as job_types
from postroom.domain.actions import ActionStatus, ActionType, parse_action
from postroom.domain.clock import SystemClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import CATALOGUE, HISTORY_SYNC
from postroom.mailboxes.credentials import GrantStore, StaticGrant
from postroom.queue import JobQueue, JobState, NewJob
from postroom.settings import Settings
from postroom.sim.discord import DiscordSim, running_discord
from postroom.sim.gmail.raw_mail import headers_of
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.model.server import ModelSim, running_model
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support.commands import environment
from tests.support.databases import DatabaseFactory
from tests.support.mail import letter, mailbox
from tests.support.triage import INPUT_PRICE, OUTPUT_PRICE


@dataclass(frozen=True)
class WorkerRun:
    """One run of the worker: all its steps, and whether it died at the last of them."""

    killed: bool
    steps: tuple[str, ...]


class KilledWorker:
    """Serves tests of any event loop, one after the other."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path) -> None:
        self._process = process
        self._log = folder / "mortal.log"

    async def live(self, variables: Mapping[str, str], *, die_at: int | None = None, ahead_s: float = 0.0) -> WorkerRun:
        """Work until nothing is left to do, or until the step of that number, counted from one."""
        order = {"variables": dict(variables), "die_at": die_at, "ahead_s": ahead_s, "log": str(self._log)}
        report = await asyncio.to_thread(self._ask, order)
        assert not report["failed"], self._log.read_text("utf-8")[-4_000:]
        return WorkerRun(report["killed"], tuple(report["steps"]))

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report


@contextmanager
def killed_worker(folder: Path) -> Iterator[KilledWorker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.killed_worker"],
        env=environment(folder, {"PYTHONPATH": os.pathsep.join(sys.path)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        yield KilledWorker(process, folder)
    finally:
        process.kill()
        process.communicate()


LATER_S = 3_600.0
"""Longer than any lease and any pause before another attempt."""
_MOST_RUNS = 5


@dataclass
class KillScene:
    """One message in the mailbox, taken in by a fresh installation."""

    sim: GmailSim
    model: ModelSim
    discord: DiscordSim
    database: Database
    account: Account
    gmail_id: str
    message_id: str
    variables: dict[str, str]
    worker: KilledWorker
    missed: str | None = None
    """Mail that came while no process was running."""

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


Doing = Callable[[KillScene], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """What is asked for, what must hold whenever the worker dies, and what must have come of it in the end."""

    name: str
    begin: Doing
    outcome: Doing
    always: Doing | None = None
    mail: Callable[[], bytes] = letter


@dataclass(frozen=True)
class KillPoints:
    folder: Path
    sim: GmailSim
    model: ModelSim
    discord: DiscordSim
    worker: KilledWorker
    databases: DatabaseFactory

    @asynccontextmanager
    async def scene(self, scenario: Scenario) -> AsyncIterator[KillScene]:
        url = self.databases.url()
        database = await connect(url)
        try:
            gmail_id = self.sim.control.deliver(scenario.mail())
            account, message_id = await database.write(lambda tx: self._take_in(tx, gmail_id))
            scene = KillScene(
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

    async def _end(self, scenario: Scenario, scene: KillScene) -> None:
        """Work on as long as it takes, each time later than before, as others would after a crash."""
        for number in range(1, _MOST_RUNS + 1):
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
async def kill_points(folder: Path, worker: KilledWorker, databases: DatabaseFactory) -> AsyncIterator[KillPoints]:
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(running_sim(mailbox(0)))
        model = await stack.enter_async_context(running_model())
        discord = await stack.enter_async_context(running_discord())
        GrantStore(open_vault(Settings(home=folder))).save(
            StaticGrant(email=sim.email, api_base=sim.url, access_token=sim.token)
        )
        yield KillPoints(folder, sim, model, discord, worker, databases)


OWNER = Actor("cli", "owner")
START = frozenset({"INBOX", "UNREAD"})
AN_HOUR_AND_A_HALF: dict[str, Any] = {"amount": 90, "units": "minutes"}
PARAMETERS: dict[ActionType, dict[str, Any]] = {
    ActionType.APPLY_LABEL: {"label": "Receipts"},
    ActionType.REMOVE_LABEL: {"label": "UNREAD"},
    ActionType.SNOOZE: AN_HOUR_AND_A_HALF,
    ActionType.FORWARD: {"to": ["accounts@friends.example"]},
    ActionType.AUTO_REPLY: {"body": "I am away until Monday."},
}
LABELS_AFTER: dict[ActionType, Callable[[frozenset[str]], frozenset[str]]] = {
    ActionType.ARCHIVE: lambda labels: labels - {"INBOX"},
    ActionType.REMOVE_LABEL: lambda labels: labels - {"UNREAD"},
    ActionType.MARK_READ: lambda labels: labels - {"UNREAD"},
    ActionType.MARK_UNREAD: lambda labels: labels | {"UNREAD"},
    ActionType.STAR: lambda labels: labels | {"STARRED"},
    ActionType.UNSTAR: lambda labels: labels - {"STARRED"},
    ActionType.TRASH: lambda labels: labels - {"INBOX"} | {"TRASH"},
    ActionType.RESTORE: lambda labels: labels,
    ActionType.DELETE: lambda labels: frozenset(),
    ActionType.SNOOZE: lambda labels: labels,  # it was away, and is back
}


def want(action: ActionType) -> Callable[[KillScene], Awaitable[None]]:
    async def begin(scene: KillScene) -> None:
        wanted = parse_action(action, PARAMETERS.get(action))

        def run(tx: Tx) -> None:
            requests.request_action(tx, scene.queue, requests.message_named(tx, scene.message_id), wanted, OWNER)

        await scene.database.write(run)

    return begin


def done(action: ActionType) -> Callable[[KillScene], Awaitable[None]]:
    async def outcome(scene: KillScene) -> None:
        [row] = await scene.rows(actions)
        assert (row.status, row.error) == (ActionStatus.COMPLETED, None)
        assert row.undo_hint is not None
        assert row.pre_image is None or set(row.pre_image["labels"]) == START
        if action is ActionType.APPLY_LABEL:
            assert len(scene.labels() - START) == 1
        else:
            assert scene.labels() == LABELS_AFTER[action](START)

    return outcome


async def hidden_means_waiting(scene: KillScene) -> None:
    """A message that a snooze has taken out of the inbox has a job that will bring it back."""
    if "INBOX" in scene.labels():
        return
    [snooze] = await scene.rows(snoozes)
    assert snooze.state == "waiting"
    assert job_types.UNSNOOZE.name in await scene.unfinished()


def undone(action: ActionType) -> Scenario:
    """The action is done in peace; what is killed is its undo."""

    async def begin(scene: KillScene) -> None:
        await want(action)(scene)
        await scene.work()
        [row] = await scene.rows(actions)
        await scene.database.write(lambda tx: undo.request_undo(tx, scene.queue, row.id, OWNER))

    async def outcome(scene: KillScene) -> None:
        assert scene.labels() == START
        assert [row.status for row in await scene.rows(actions)] == [ActionStatus.COMPLETED] * 2
        assert len(await scene.rows(action_links)) == 1
        assert all(row.state == "canceled" for row in await scene.rows(snoozes))

    return Scenario(f"undo of {action}", begin, outcome)


async def sent_once(scene: KillScene) -> None:
    [row] = await scene.rows(actions)
    assert (row.status, row.error) == (ActionStatus.COMPLETED, None)
    assert scene.letters_of(row.id) == [{"SENT"}]


async def never_sent_twice(scene: KillScene) -> None:
    [row] = await scene.rows(actions)
    assert sum("SENT" in labels for labels in scene.letters_of(row.id)) <= 1


async def judge(scene: KillScene) -> None:
    payload = {"account_id": scene.account.id, "message_id": scene.message_id}
    key = f"{job_types.CLASSIFY.name}:{scene.account.id}:{scene.message_id}"
    await scene.enqueue(NewJob(job_types.CLASSIFY.name, payload, key=key))


async def one_decision(scene: KillScene) -> None:
    assert len(await scene.rows(decisions)) == 1


async def no_action_without_a_decision(scene: KillScene) -> None:
    decided = {row.id for row in await scene.rows(decisions)}
    assert {row.decision_id for row in await scene.rows(actions)} <= decided
    assert len(decided) <= 1


def by_rule(*wanted: str) -> Callable[[KillScene], Awaitable[None]]:
    """Mail of the scene's sender has a rule; its message is judged."""

    async def begin(scene: KillScene) -> None:
        draft = parse_draft(
            {"name": "Friends", "condition": {"sender_domain": "friends.example"}, "actions": list(wanted)}
        )
        await scene.database.write(lambda tx: add_rule(tx, draft, OWNER, scene.queue.clock.now()))
        await judge(scene)

    return begin


async def labelled_and_archived(scene: KillScene) -> None:
    await one_decision(scene)
    assert [row.status for row in await scene.rows(actions)] == [ActionStatus.COMPLETED] * 2
    assert scene.labels() >= {"UNREAD"}
    assert len(scene.labels() - START) == 1
    assert "INBOX" not in scene.labels()


async def asked_once(scene: KillScene) -> None:
    [row] = await scene.rows(actions)
    assert row.status == ActionStatus.APPROVED_PENDING
    assert scene.questions_about(row.id) == 1
    assert scene.labels() == START


async def look_at_labels(scene: KillScene) -> None:
    payload = {"account_id": scene.account.id}
    await scene.enqueue(
        NewJob(job_types.LABELS_SYNC.name, payload, key=f"{job_types.LABELS_SYNC.name}:{scene.account.id}")
    )


async def labels_known(scene: KillScene) -> None:
    assert {"INBOX", "UNREAD", "TRASH"} <= {row.label_id for row in await scene.rows(labels)}


async def look_at_mailbox(scene: KillScene) -> None:
    payload = {"account_id": scene.account.id}
    await scene.enqueue(NewJob(HISTORY_SYNC.name, payload, key=f"{HISTORY_SYNC.name}:{scene.account.id}"))


async def forgotten_history(scene: KillScene) -> None:
    """Mail came after the last look, and Gmail no longer tells about it."""
    await look_at_mailbox(scene)
    await scene.work()
    scene.missed = scene.sim.control.deliver(letter("Missed"))
    scene.sim.control.expire_history()
    await look_at_mailbox(scene)


async def nothing_missed(scene: KillScene) -> None:
    assert [row.external_event_id for row in await scene.rows(messages)].count(scene.missed) == 1


async def cursor_only_past_what_is_in_or_owed(scene: KillScene) -> None:
    """Where the cursor has moved on, the mail is there or the gap is owed: the history would not tell of it again."""
    [cursor] = await scene.rows(history_cursors)
    start = int(cursor.history_id) if cursor.history_id else 0
    if start >= int(scene.sim.control.state().history_id) and not await scene.rows(history_gaps):
        await nothing_missed(scene)
