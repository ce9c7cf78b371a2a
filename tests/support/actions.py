"""A mailbox at the stand-in, a database that knows it, and the queue of its actions; and actions that wait for
approval.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from sqlalchemy import insert, select

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.accounts.account_jobs import LoginWatch
from postroom.accounts.enrolment import Enrolment
from postroom.accounts.mailbox_state import DeletedLabel
from postroom.actions import approvals, lifecycle, requests, snoozes, undo
from postroom.actions.approvals import ApprovalOutcome, ApprovalVerdict
from postroom.actions.discord.client import DiscordChannel
from postroom.actions.discord.notices import ApprovalNotifier, LoginNotifier
from postroom.actions.executor import ActionHandler, upkeep
from postroom.actions.label_changes import LabelFinder
from postroom.actions.lifecycle import Action
from postroom.actions.mailbox_changes import DisableRules, LabelListing, LabelsSyncHandler
from postroom.actions.scheduling import ActionIntake
from postroom.actions.snoozes import Snooze, SnoozeCheckHandler, UnsnoozeHandler
from postroom.actions.undo import UndoHandler, undo_many
from postroom.audit import Actor, AuditEntry, AuditFilter, list_entries
from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import approval_notices, decisions
from postroom.domain.actions import ActionOrder, Origin, Proposal, parse_action
from postroom.domain.clock import Clock, ManualClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import (
    ACTION,
    ACTIONS_UPKEEP,
    APPROVAL_NOTIFY,
    APPROVALS_EXPIRE,
    LABELS_SYNC,
    LOGIN_NOTIFY,
    SNOOZE_CHECK,
    UNDO,
    UNDO_MANY,
    UNSNOOZE,
)
from postroom.mailboxes.credentials import GrantStore
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.queue import Handler, JobCatalogue, JobQueue, JobType, KeyUse
from postroom.settings import GmailSettings, SafetySettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.triage import guidance
from postroom.triage.rules.store import follow_renamed_labels
from postroom.vault import Vault
from tests.support.gmail_sim import client_of
from tests.support.mail import letter, mailbox
from tests.support.queues import count_jobs, run_until_idle


async def make_account(database: Database, clock: Clock, email: str, api_base: str) -> Account:
    return await database.write(lambda tx: add_account(tx, NewAccount(email, api_base), clock.now()))


def watched(database: Database, clock: Clock, handlers: dict[str, Handler]) -> dict[str, Handler]:
    """As a worker has them: a refused login makes the jobs of its account wait, and orders `LOGIN_NOTIFY`, which the
    queue has to know. The vault is empty, and there is no Discord."""
    grants = GrantStore(Vault(Path("there is no such folder")))
    return LoginWatch(Enrolment(database, grants, clock)).watched(
        {**handlers, LOGIN_NOTIFY.name: LoginNotifier(None, None)}
    )


async def make_message(database: Database, clock: Clock, account: Account, gmail_id: str, **more: Any) -> str:
    """A message as the Switchboard takes it in."""
    message_id, now = new_id(), clock.now()
    row = {
        "id": message_id,
        "account_id": account.id,
        "channel": "email",
        "provider": "gmail",
        "endpoint_identity": account.email,
        "external_event_id": gmail_id,
        "external_thread_id": gmail_id,
        "idempotency_key": f"gmail:{account.email}:{gmail_id}",
        "sender_identity": "ann@friends.example",
        "subject": "Hello",
        "normalized_text": "How are you?",
        "ingestion_tier": "full",
        "policy_tier": "default",
        "observed_at": now,
        "received_at": now,
        "accepted_at": now,
        **more,
    }
    await database.write(lambda tx: tx.execute(messages.insert().values(row)))
    return message_id


async def make_decision(database: Database, clock: Clock, message_id: str, account_id: str) -> str:
    decision_id = new_id()
    row = {
        "id": decision_id,
        "message_id": message_id,
        "account_id": account_id,
        "source": "deterministic",
        "action": "archive",
        "reason": "a test",
        "created_at": clock.now(),
    }
    await database.write(lambda tx: tx.execute(decisions.insert().values(row)))
    return decision_id


async def action_by_id(database: Database, action_id: str) -> Action:
    return await database.read(lambda tx: lifecycle.get_action(tx, action_id))


async def rows_of(database: Database, table: Any) -> list[Any]:
    return list(await database.read(lambda tx: tx.execute(select(table)).all()))


class _OneMailbox:
    """Implements `Mailboxes` for tests: the account's one client."""

    def __init__(self, client: GmailClient) -> None:
        self.client = client

    async def of(self, account: Account) -> GmailMailbox:
        return GmailMailbox(self.client)


def no_rules(tx: Tx, account_id: str, label: DeletedLabel, now: datetime) -> Sequence[str]:
    return []


@dataclass
class ActionScene:
    """An account at the stand-in with all handlers of actions; time stands still until it is moved."""

    database: Database
    clock: ManualClock
    sim: GmailSim
    client: GmailClient
    account: Account
    disable_rules: DisableRules = no_rules

    def __post_init__(self) -> None:
        sending = JobType("outbound.send", KeyUse.REPEATABLE)
        asking = JobType("approval.notify", KeyUse.REPEATABLE)
        catalogue = JobCatalogue(
            [
                ACTION,
                UNSNOOZE,
                UNDO,
                UNDO_MANY,
                LABELS_SYNC,
                SNOOZE_CHECK,
                ACTIONS_UPKEEP,
                LOGIN_NOTIFY,
                sending,
                asking,
            ]
        )
        self.queue = JobQueue(self.database, catalogue, self.clock)
        self.settings = GmailSettings()
        self.safety = SafetySettings()

    def handlers(self) -> dict[str, Handler]:
        mailboxes, labels = _OneMailbox(self.client), LabelFinder(self.database, self.clock)
        handlers: dict[str, Handler] = {
            ACTION.name: ActionHandler(mailboxes, labels, self.settings, self.safety),
            UNSNOOZE.name: UnsnoozeHandler(mailboxes, labels, self.settings),
            SNOOZE_CHECK.name: SnoozeCheckHandler(mailboxes),
            UNDO.name: UndoHandler(mailboxes),
            UNDO_MANY.name: undo_many,
            LABELS_SYNC.name: LabelsSyncHandler(
                mailboxes,
                LabelListing(
                    lambda *given: self.disable_rules(*given), follow_renamed_labels, guidance.model_rules_naming
                ),
            ),
            ACTIONS_UPKEEP.name: upkeep,
        }
        return watched(self.database, self.clock, handlers)

    async def log_in(self) -> None:
        """The owner renews the login."""
        await make_account(self.database, self.clock, self.account.email, self.account.api_base)

    async def work(self) -> None:
        await run_until_idle(self.queue, self.handlers())

    async def work_through(self, hours: int = 12) -> None:
        """Until every retry is over."""
        for _ in range(hours * 4):
            await self.work()
            if not await count_jobs(self.database, state="queued"):
                return
            self.clock.advance(900)

    def deliver(self, *labels: str) -> str:
        return self.sim.control.deliver(letter(), frozenset(labels))

    def labels(self, gmail_id: str) -> AbstractSet[str] | None:
        """As they truly are; None if the message is gone."""
        found = {str(each["id"]): each["label_ids"] for each in self.sim.control.truth(hashes=False)}
        labels = found.get(gmail_id)
        return None if labels is None else frozenset(cast("list[str]", labels))

    async def message(self, *labels: str) -> tuple[str, str]:
        """New mail in the mailbox and here: Gmail's id and ours."""
        gmail_id = self.deliver(*labels)
        return gmail_id, await make_message(self.database, self.clock, self.account, gmail_id)

    async def want(self, gmail_id: str, name: str, **parameters: Any) -> str:
        """A person wants this done; the id of the action."""
        wanted = parse_action(name, parameters)

        def run(tx: Tx) -> str:
            return requests.request_action(tx, self.queue, requests.message_named(tx, gmail_id), wanted, A_TEST)

        return await self.database.write(run)

    async def do(self, name: str, *labels: str, **parameters: Any) -> tuple[str, Action]:
        """The whole of one action on new mail with these labels."""
        gmail_id, _ = await self.message(*labels)
        action_id = await self.want(gmail_id, name, **parameters)
        await self.work()
        return gmail_id, await self.action(action_id)

    async def undo(self, action_id: str) -> Action:
        undo_id = await self.ask_to_undo(action_id)
        await self.work()
        return await self.action(undo_id)

    async def ask_to_undo(self, action_id: str) -> str:
        return await self.database.write(lambda tx: undo.request_undo(tx, self.queue, action_id, A_TEST))

    async def retry(self, action_id: str) -> None:
        await self.database.write(lambda tx: requests.retry_action(tx, self.queue, action_id, A_TEST))

    async def action(self, action_id: str) -> Action:
        return await action_by_id(self.database, action_id)

    async def snooze(self, action_id: str) -> Snooze:
        found = await self.database.read(lambda tx: snoozes.find_snooze(tx, action_id))
        assert found is not None
        return found

    def fail(self, method: str, fault: GmailFault, *, times: int | None = None) -> int:
        return self.sim.control.add_fault(FaultRule(fault=fault, method=method, times=times))


A_TEST = Actor("dashboard", "a test")


@asynccontextmanager
async def action_scene(database: Database, clock: ManualClock, **labels: str) -> AsyncIterator[ActionScene]:
    async with running_sim(mailbox(0, **labels)) as sim, client_of(sim) as client:
        account = await make_account(database, clock, sim.email, sim.url)
        yield ActionScene(database, clock, sim, client, account)


ANA = Actor("dashboard", "cli ana")
BEN = Actor("dashboard", "cli ben")
APPROVAL_JOBS = JobCatalogue([ACTION, APPROVAL_NOTIFY, APPROVALS_EXPIRE])
APPROVAL_OWNER = "owner@example.com"


class PendingApprovals:
    def __init__(self, database: Database, clock: Clock) -> None:
        self.database, self.clock = database, clock
        self.queue = JobQueue(database, APPROVAL_JOBS, clock)
        self.intake = ActionIntake(self.queue, SafetySettings())

    async def ask(self, kind: str = "trash", parameters: Any = None, **columns: Any) -> str:
        """One action that waits for approval; its id."""
        return await self.database.write(lambda tx: self._ask(tx, kind, parameters, columns))

    def _ask(self, tx: Tx, kind: str, parameters: Any, columns: dict[str, Any]) -> str:
        now, message_id, decision_id, gmail_id = self.clock.now(), new_id(), new_id(), new_id()
        account = add_account(tx, NewAccount(APPROVAL_OWNER, "http://127.0.0.1:1"), now)
        row = {
            "id": message_id,
            "account_id": account.id,
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": APPROVAL_OWNER,
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
        order = ActionOrder(
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

    async def answer(
        self, action_id: str, verdict: ApprovalVerdict, who: Actor = ANA, note: str | None = None
    ) -> ApprovalOutcome:
        return await self.database.write(
            lambda tx: approvals.answer(tx, self.queue, action_id, verdict, who, note=note)
        )

    async def take_back(self, action_id: str) -> str:
        return await self.database.write(lambda tx: undo.take_back(tx, self.queue, action_id, ANA))

    async def notify(self, channel: DiscordChannel | None) -> None:
        await run_until_idle(
            self.queue,
            {
                APPROVAL_NOTIFY.name: ApprovalNotifier(channel),
                APPROVALS_EXPIRE.name: approvals.ApprovalUpkeep(has_channel=channel is not None),
            },
        )

    async def action(self, action_id: str) -> Action:
        return await self.database.read(lambda tx: lifecycle.get_action(tx, action_id))

    async def jobs_of(self, job_type: str) -> list[str]:
        """The states of all jobs of a type."""
        query = select(jobs.c.state).where(jobs.c.type == job_type).order_by(jobs.c.seq)
        return await self.database.read(lambda tx: list(tx.execute(query).scalars()))

    async def notice(self, action_id: str) -> tuple[str | None, str] | None:
        query = select(approval_notices).where(approval_notices.c.action_id == action_id)
        row = await self.database.read(lambda tx: tx.execute(query).one_or_none())
        return None if row is None else (row.external_message_id, row.state)

    async def audited(self, action_id: str) -> list[AuditEntry]:
        page = await self.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=action_id)))
        return page.entries
