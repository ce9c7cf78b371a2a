"""Actions that wait for a person, and the jobs about them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select

from postroom.accounts.store import NewAccount, add_account
from postroom.actions import approvals, store
from postroom.actions.approvals import EXPIRE, Answer, Verdict
from postroom.actions.discord.client import DiscordChannel
from postroom.actions.discord.notify import NOTIFY, ApprovalNotifier
from postroom.actions.intake import Intake
from postroom.actions.jobs import ACTION
from postroom.actions.store import Action
from postroom.audit import Actor, AuditFilter, Entry, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.actions import approval_notices
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import decisions
from postroom.domain.actions import Order, Origin, Proposal, parse_action
from postroom.domain.clock import Clock
from postroom.domain.ids import new_id
from postroom.queue import Catalogue, JobQueue
from postroom.settings import SafetySettings
from tests.support.workers import run_until_idle

ANA = Actor("dashboard", "cli ana")
BEN = Actor("dashboard", "cli ben")
CATALOGUE = Catalogue([ACTION, NOTIFY, EXPIRE])
OWNER = "owner@example.com"


class Questions:
    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self.clock = database, clock
        self.queue = JobQueue(database, CATALOGUE, clock)
        self.intake = Intake(self.queue, SafetySettings())

    async def ask(self, kind: str = "trash", parameters: Any = None, **columns: Any) -> str:
        """One action that waits for approval; its id."""
        return await self.database.write(lambda tx: self._ask(tx, kind, parameters, columns))

    def _ask(self, tx: Tx, kind: str, parameters: Any, columns: dict[str, Any]) -> str:
        now, message_id, decision_id, gmail_id = self.clock.now(), new_id(), new_id(), new_id()
        account = add_account(tx, NewAccount(OWNER, "http://127.0.0.1:1"), now)
        row = {
            "id": message_id,
            "account_id": account.id,
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": OWNER,
            "external_event_id": gmail_id,
            "external_thread_id": gmail_id,
            "idempotency_key": gmail_id,
            "sender_identity": "ann@friends.example",
            "sender_name": "Ann",
            "subject": "Dinner?",
            "ingestion_tier": "full",
            "policy_tier": "default",
            "observed_at": now,
            "received_at": now,
            "accepted_at": now,
        }
        tx.execute(insert(messages).values(**(row | columns)))
        decided = {"id": decision_id, "message_id": message_id, "account_id": account.id, "source": "llm"}
        tx.execute(insert(decisions).values(**decided, action=kind, reason="x", created_at=now))
        reasons = (f"{kind} is dangerous", "the model is only 60 % sure")
        order = Order(
            account_id=account.id,
            message_id=message_id,
            gmail_id=gmail_id,
            thread_id=gmail_id,
            decision_id=decision_id,
            origin=Origin.MODEL,
            wanted_by="model small",
            proposals=(Proposal(parse_action(kind, parameters), reasons),),
        )
        return self.intake.accept(tx, order)[0]

    async def answer(self, action_id: str, verdict: Verdict, who: Actor = ANA, note: str | None = None) -> Answer:
        return await self.database.write(
            lambda tx: approvals.answer(tx, self.queue, action_id, verdict, who, note=note)
        )

    async def notify(self, channel: DiscordChannel | None) -> None:
        await run_until_idle(self.queue, {NOTIFY.name: ApprovalNotifier(channel), EXPIRE.name: approvals.expire})

    async def action(self, action_id: str) -> Action:
        return await self.database.read(lambda tx: store.get(tx, action_id))

    async def jobs_of(self, job_type: str) -> list[str]:
        """The states of all jobs of a type."""
        query = select(jobs.c.state).where(jobs.c.type == job_type).order_by(jobs.c.seq)
        return await self.database.read(lambda tx: list(tx.execute(query).scalars()))

    async def notice(self, action_id: str) -> tuple[str | None, str] | None:
        query = select(approval_notices).where(approval_notices.c.action_id == action_id)
        row = await self.database.read(lambda tx: tx.execute(query).one_or_none())
        return None if row is None else (row.external_message_id, row.state)

    async def audited(self, action_id: str) -> list[Entry]:
        page = await self.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=action_id)))
        return page.entries
