"""Triage for tests: a model at the stand-in, the queue, rules and spend, and a service that accepts actions.

As a program it is a worker to be killed: `python -m tests.support.triage DATABASE_URL MODEL_URL KEY FOLDER`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlalchemy import select

from postroom.accounts.account import NewAccount, add_account
from postroom.actions.scheduling import ActionIntake
from postroom.db import Database, Tx, connect
from postroom.db.tables.mail import BACKFILL_JOBS, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import directions, labels
from postroom.domain.actions import parse_action
from postroom.domain.clock import Clock, ManualClock, SystemClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTION, APPROVAL_NOTIFY, CLASSIFY, LEARNING_FIT, LEARNING_VERDICTS
from postroom.domain.money import Micros
from postroom.queue import Handler, JobCatalogue, JobContext, JobQueue, JobState, JobType, NewJob, QueueName
from postroom.queue.worker import Worker
from postroom.settings import BackfillSettings, ModelSettings, SafetySettings, Settings, WorkerSettings
from postroom.sim.model.answers import ScriptedAnswer
from postroom.sim.model.server import ModelSim, running_model
from postroom.switchboard.backfill import ledger, undecided
from postroom.switchboard.backfill.job import find_job
from postroom.switchboard.spending import ModelBudget
from postroom.triage.classify import Classifier, ClassifierOptions
from postroom.triage.learning.owner_labels import take_verdicts
from postroom.triage.learning.service import LearnedTriage, fit
from postroom.triage.model import open_model
from postroom.triage.model_client import ModelClient
from postroom.triage.prompt import Briefing, MailToJudge, question_about
from postroom.triage.rules.engine import Match, RuleSet
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.rule import Rule, parse_draft, rule_of
from postroom.triage.rules.store import Version
from postroom.vault import Vault
from tests.support.queues import run_until_idle

INPUT_PRICE, OUTPUT_PRICE = Decimal("0.30"), Decimal("2.50")


def settings_for(sim: ModelSim, **changes: Any) -> ModelSettings:
    values: dict[str, Any] = {
        "provider": "compatible",
        "name": "simulated-small",
        "base_url": sim.url,
        "api_key": SecretStr(sim.token),
        "input_price": INPUT_PRICE,
        "output_price": OUTPUT_PRICE,
    }
    return ModelSettings(**(values | changes))


@asynccontextmanager
async def model_on(
    sim: ModelSim, folder: Path, clock: Clock | None = None, **changes: Any
) -> AsyncIterator[ModelClient]:
    async with open_model(settings_for(sim, **changes), Vault(folder), clock or SystemClock()) as model:
        assert model is not None
        yield model


@asynccontextmanager
async def simulated_model(folder: Path, seed: int = 0, **changes: Any) -> AsyncIterator[tuple[ModelSim, ModelClient]]:
    async with running_model(seed) as sim, model_on(sim, folder, **changes) as model:
        yield sim, model


TRIAGE_JOBS = JobCatalogue([CLASSIFY, ACTION, LEARNING_FIT, LEARNING_VERDICTS, JobType(APPROVAL_NOTIFY.name)])
ME = "me@example.org"


class HeldRules:
    """Rules that a test holds in its hand."""

    def __init__(self, clock: Clock, *rules: Rule) -> None:
        self._clock = clock
        self.rules = list(rules)

    def version(self, tx: Tx) -> Version:
        return 0, None, None

    async def match(self, facts: MessageFacts, version: Version | None = None) -> Match | None:
        return RuleSet(self.rules).first_match(facts, self._clock.now())


def rule(name: str, condition: dict[str, Any], *wanted: dict[str, Any], **more: Any) -> Rule:
    return rule_of(new_id(), parse_draft({"name": name, "condition": condition, "actions": list(wanted), **more}))


def classifier(
    queue: JobQueue,
    model: ModelClient | None,
    *rules: Rule,
    safety: SafetySettings | None = None,
    learned: LearnedTriage | None = None,
    **model_settings: Any,
) -> Classifier:
    safety = safety or SafetySettings()
    settings = ModelSettings(**model_settings)
    budget = ModelBudget(queue, Settings(model=settings, backfill=BackfillSettings(enabled=True)))
    ways = ClassifierOptions(settings, safety)
    return Classifier(HeldRules(queue.clock, *rules), model, budget, ActionIntake(queue, safety), ways, learned)


def call(tool: str, confidence: float = 0.99, reason: str = "Read.", **arguments: Any) -> ScriptedAnswer:
    """The stand-in's call of a tool, at a round price."""
    given = {"confidence": confidence, "reason": reason, "needs_approval": False, **arguments}
    return ScriptedAnswer(tool=tool, arguments=given, input_tokens=1_000, output_tokens=100)


COST = 550
"""Of one such call."""


class TriageRig:
    def __init__(self, database: Database, clock: ManualClock, sim: ModelSim, model: ModelClient) -> None:
        self.database, self.clock, self.sim, self.model = database, clock, sim, model
        self.queue = JobQueue(database, TRIAGE_JOBS, clock)
        self.classify = classifier(self.queue, model)
        self.account_id: str | None = None

    def use(self, *rules: Rule, model: bool = True, **settings: Any) -> None:
        self.classify = classifier(self.queue, self.model if model else None, *rules, **settings)

    async def open_account(self) -> None:
        """Whose mail it is from now on."""
        new = NewAccount(email=ME, api_base="http://127.0.0.1:1")
        self.account_id = (await self.database.write(lambda tx: add_account(tx, new, self.clock.now()))).id

    async def label(self, name: str, description: str | None = None, *, available: bool = True) -> None:
        row = {"account_id": self.account_id, "label_id": f"Label_{name}", "name": name, "type": "user"}
        more = {"description": description, "available_to_classifier": available, "updated_at": self.clock.now()}
        await self.database.write(lambda tx: tx.execute(labels.insert().values(row | more)))

    async def direct(self, *texts: str) -> None:
        rows = [
            {"id": new_id(), "position": number, "text": text, "enabled": True, "updated_at": self.clock.now()}
            for number, text in enumerate(texts)
        ]
        await self.database.write(lambda tx: tx.execute(directions.insert(), rows))

    @property
    def budget(self) -> ModelBudget:
        return ModelBudget(self.queue, Settings(backfill=BackfillSettings(enabled=True)))

    def most(self, text: str = "Hello") -> Micros:
        """The most that the first question about a message of this text can cost."""
        mail = MailToJudge("anna@example.org", None, "Hello", text, self.clock.now(), {}, (), ())
        return self.model.most_for(question_about(mail, Briefing()))

    async def spend(self, job_id: str, amount: Micros) -> None:
        """Another call of the job cost this much."""

        def run(tx: Tx) -> None:
            now = self.clock.now()
            ledger.book(tx, find_job(tx, job_id, lock=True), now.date(), now, settled=amount)

        await self.database.write(run)

    async def backfill_job(self, cap_cents: int = 500, **more: Any) -> str:
        job_id, now = new_id(), self.clock.now()
        row = {
            "id": job_id,
            "connector_type": "gmail",
            "endpoint_identity": ME,
            "date_from": date(2026, 1, 1),
            "date_to": date(2026, 1, 31),
            "status": "active",
            "daily_cost_cap_cents": cap_cents,
            "created_at": now,
            "updated_at": now,
        } | more
        await self.database.write(lambda tx: tx.execute(BACKFILL_JOBS[tx.dialect].insert().values(row)))
        return job_id

    async def take_in(
        self,
        *,
        job_id: str | None = None,
        tier: str = "full",
        text: str = "Hello",
        **more: Any,
    ) -> str:
        """A message that waits to be judged."""
        message_id = await self.store(backfill_job_id=job_id, ingestion_tier=tier, normalized_text=text, **more)

        def run(tx: Tx) -> None:
            key = f"classify:{ME}:{message_id}"
            [queued] = self.queue.add(tx, NewJob("classify", {"message_id": message_id}, QueueName.HISTORY, key=key))
            if job_id is not None:
                undecided.enter(tx, [(message_id, job_id, queued.job_id)], self.clock.now())

        await self.database.write(run)
        return message_id

    async def store(self, **values: Any) -> str:
        row = self.row(**values)
        await self.database.write(lambda tx: tx.execute(messages.insert().values(row)))
        return str(row["id"])

    def row(self, **values: Any) -> dict[str, Any]:
        """Of a message."""
        message_id, now = new_id(), self.clock.now()
        row: dict[str, Any] = {
            "id": message_id,
            "account_id": self.account_id,
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": ME,
            "external_event_id": message_id,
            "idempotency_key": message_id,
            "sender_identity": "anna@example.org",
            "subject": "Hello",
            "ingestion_tier": "full",
            "policy_tier": "default",
            "observed_at": now,
            "received_at": now,
            "accepted_at": now,
        } | values
        if row["ingestion_tier"] == "metadata":
            row["normalized_text"] = None
        return row

    async def work(self) -> None:
        """Judge what waits; what was ordered is left as it is."""

        async def nothing(context: JobContext) -> None:
            return None

        handlers: dict[str, Handler] = {"classify": self.classify, ACTION.name: nothing, APPROVAL_NOTIFY.name: nothing}
        await run_until_idle(self.queue, handlers | {LEARNING_FIT.name: fit, LEARNING_VERDICTS.name: take_verdicts})

    async def rows(self, table: Any) -> list[Any]:
        found = await self.database.read(lambda tx: list(tx.execute(select(table))))
        return sorted(found, key=lambda row: getattr(row, "id", ""))

    async def only(self, table: Any) -> Any:
        [row] = await self.rows(table)
        return row

    async def job_states(self, job_type: str = "classify") -> list[JobState]:
        return [JobState(row.state) for row in await self.rows(jobs) if row.type == job_type]

    async def job_types(self) -> list[str]:
        return sorted(row.type for row in await self.rows(jobs) if row.type != "classify")

    @property
    def asked(self) -> int:
        return self.sim.responder.tally.requests

    def answer(self, *answers: ScriptedAnswer) -> None:
        self.sim.responder.stage.queue.extend(answers)


@asynccontextmanager
async def open_triage(database: Database, clock: ManualClock, folder: Path) -> AsyncIterator[TriageRig]:
    async with simulated_model(folder) as (sim, model):
        office = TriageRig(database, clock, sim, model)
        await office.open_account()
        yield office


def wanted(name: str, **parameters: Any) -> Any:
    return parse_action(name, parameters)


LEASE_S = 1.0


async def work(database_url: str, model_url: str, key: str, folder: Path) -> None:
    clock = SystemClock()
    settings = ModelSettings(
        provider="compatible",
        name="simulated-small",
        base_url=model_url,
        api_key=SecretStr(key),
        input_price=INPUT_PRICE,
        output_price=OUTPUT_PRICE,
    )
    database = await connect(database_url)
    try:
        async with open_model(settings, Vault(folder), clock) as model:
            queue = JobQueue(database, TRIAGE_JOBS, clock)
            handlers = {CLASSIFY.name: classifier(queue, model)}
            worker = Worker(queue, handlers, WorkerSettings(lease_s=LEASE_S), until_idle=True)
            await worker.run()
    finally:
        await database.close()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1], sys.argv[2], sys.argv[3], Path(sys.argv[4])))
