"""A mailbox from which mail is sent: the stand-in, an account, actions under way, and the job that sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from random import Random
from typing import Any

from sqlalchemy import insert, select, update

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.actions import lifecycle
from postroom.actions.lifecycle import Action, NewAction
from postroom.actions.outbound import record
from postroom.actions.outbound.letters import outbound_job
from postroom.actions.outbound.loop_guard import ACTION_HEADER
from postroom.actions.outbound.record import Outbound
from postroom.actions.outbound.sending import MailSender, Originals
from postroom.archive.shards.file_archive import FileArchive
from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, ActionType, Origin, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.domain.jobs import LOGIN_NOTIFY, OUTBOUND_SEND
from postroom.mail.parsing import ParsedMail, parse_mail
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox, GmailOutbox
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.mailboxes.ports import PriorityLane
from postroom.queue import JobCatalogue, JobQueue, JobState, NewJob
from postroom.queue.context import JobContext
from postroom.queue.inspection import JobRecord
from postroom.queue.worker import Worker
from postroom.settings import WorkerSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from tests.support.actions import make_account, watched
from tests.support.crashes import CrashingDatabase, CrashingNetwork, CrashPoint, Killed
from tests.support.gmail_sim import UNHURRIED, EagerClock, FixedToken
from tests.support.mail import OWNER, letter, mailbox
from tests.support.queues import claim, record_of

SENDING_JOBS = JobCatalogue([OUTBOUND_SEND, LOGIN_NOTIFY])
REPLY: dict[str, Any] = {"body": "I am away until Monday."}
FORWARD: dict[str, Any] = {"to": ["books@accounting.example"], "note": "For the books."}


class _Clients:
    """What `AccountMailboxes` is to the product."""

    def __init__(self, sim: GmailSim, reaper: CrashPoint, stack: AsyncExitStack) -> None:
        self._sim, self._reaper, self._stack = sim, reaper, stack
        self._client: GmailClient | None = None

    async def of(self, account: Account) -> GmailMailbox:
        return GmailMailbox(await self._connected())

    async def outbox(self, account: Account) -> GmailOutbox:
        return GmailOutbox(await self._connected())

    async def _connected(self) -> GmailClient:
        if self._client is None:
            clock = EagerClock()
            connecting = connected(
                FixedToken(self._sim.token),
                limiter_for(None, clock, tuning=UNHURRIED, dice=Random(1)),
                clock,
                config=TransportConfig(api_base=self._sim.url),
                lane=PriorityLane.USER_ACTION,
                http_transport=CrashingNetwork(self._reaper),
            )
            self._client = await self._stack.enter_async_context(connecting)
        return self._client


class Outbox:
    def __init__(
        self, database: Database, clock: ManualClock, sim: GmailSim, account: Account, stack: AsyncExitStack
    ) -> None:
        self.database, self.clock, self.sim, self.account = database, clock, sim, account
        self._stack = stack
        self._clients = _Clients(sim, CrashPoint(), stack)
        self.archive: FileArchive | None = None
        self._mails = 0

    # What comes in, and what is wanted

    async def receive(self, raw: bytes | None = None, labels: tuple[str, ...] = ("INBOX",)) -> str:
        """A message arrives and is taken in; its id here."""
        self._mails += 1
        sender = f"Ann <ann{self._mails}@friends.example>"
        raw = raw or letter(
            f"Letter {self._mails}", sender=sender, headers={"Message-ID": f"<{self._mails}@f.example>"}
        )
        gmail_id = self.sim.control.deliver(raw, frozenset(labels))
        thread_id = next(str(each["thread_id"]) for each in self.sim.control.truth() if each["id"] == gmail_id)
        message_id, now = new_id(), self.clock.now()
        row = {
            "id": message_id,
            "account_id": self.account.id,
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": OWNER,
            "external_event_id": gmail_id,
            "external_thread_id": thread_id,
            "idempotency_key": f"gmail:{OWNER}:{gmail_id}",
            "sender_identity": "ann@friends.example",
            "subject": parse_mail(raw).subject,
            "labels": list(labels),
            "ingestion_tier": "full",
            "policy_tier": "default",
            "observed_at": now,
            "received_at": now,
            "accepted_at": now,
        }
        await self.database.write(lambda tx: tx.execute(insert(messages).values(**row)) and None)
        return message_id

    async def want(
        self,
        kind: ActionType,
        parameters: Mapping[str, Any],
        message_id: str,
        origin: Origin = Origin.RULE,
        **payload: Any,
    ) -> str:
        """An action that its executor has just handed over; its id. `payload` is added to the job's own."""

        def write(tx: Tx) -> str:
            row = tx.execute(select(messages).where(messages.c.id == message_id)).one()
            new = NewAction(
                account_id=self.account.id,
                gmail_id=row.external_event_id,
                wanted=parse_action(kind, parameters),
                origin=origin,
                wanted_by=f"{origin} Test",
                message_id=message_id,
                thread_id=row.external_thread_id,
                status=ActionStatus.EXECUTING,
            )
            action_id = lifecycle.insert_action(tx, new, self.clock.now())
            self.queue().add(tx, self._job(lifecycle.get_action(tx, action_id), payload))
            return action_id

        return await self.database.write(write)

    async def reply_to(self, raw: bytes | None = None, **payload: Any) -> str:
        return await self.want(ActionType.AUTO_REPLY, REPLY, await self.receive(raw), **payload)

    async def forward(self, raw: bytes | None = None, **payload: Any) -> str:
        return await self.want(ActionType.FORWARD, FORWARD, await self.receive(raw), **payload)

    async def try_again(self, action_id: str) -> None:
        """What a person's retry and then the executor do."""

        def write(tx: Tx) -> None:
            tx.execute(update(actions).where(actions.c.id == action_id).values(status=ActionStatus.EXECUTING))
            self.queue().add(tx, self._job(lifecycle.get_action(tx, action_id), {}))

        await self.database.write(write)

    def _job(self, action: Action, payload: Mapping[str, Any]) -> NewJob:
        job = outbound_job(
            account_id=action.account_id,
            action_id=action.id,
            action_type=action.type,
            message_id=action.message_id,
            thread_id=action.thread_id,
        )
        return NewJob(job.type, {**job.payload, **payload}, key=job.key)

    # Work

    def queue(self, reaper: CrashPoint | None = None) -> JobQueue:
        database = self.database if reaper is None else CrashingDatabase(self.database, reaper)
        return JobQueue(database, SENDING_JOBS, self.clock)

    def sender(self, reaper: CrashPoint | None = None) -> MailSender:
        clients = self._clients if reaper is None else _Clients(self.sim, reaper, self._stack)
        return MailSender(clients, Originals(self.archive))

    async def work(self, hours: int = 4) -> None:
        """A worker serves until all is done, retries included, or for so many hours."""
        for _ in range(hours * 3):
            settings = WorkerSettings(concurrency=4, poll_s=30)
            handlers = watched(self.database, self.clock, {OUTBOUND_SEND.name: self.sender()})
            await Worker(self.queue(), handlers, settings, random=Random(0), until_idle=True).run()
            if not await self._unfinished():
                return
            self.clock.advance(1_200)

    async def log_in(self) -> None:
        """The owner renews the login."""
        await make_account(self.database, self.clock, self.account.email, self.account.api_base)

    async def _unfinished(self) -> bool:
        query = select(jobs.c.id).where(jobs.c.state.in_([JobState.QUEUED, JobState.RUNNING])).limit(1)
        return await self.database.read(lambda tx: tx.execute(query).first() is not None)

    async def die_at(self, point: int) -> bool:
        """A worker takes the job and dies at this point; False if it lived."""
        reaper = CrashPoint(strike_at=point)
        while not (claimed := await claim(self.queue(), worker=new_id())):
            self.clock.advance(600)
        try:
            await self.sender(reaper)(JobContext(self.queue(reaper), claimed[0]))
        except Killed:
            self.clock.advance(120)
            return True
        return False

    # The truth

    async def action(self, action_id: str) -> Action:
        return await self.database.read(lambda tx: lifecycle.get_action(tx, action_id))

    async def record(self, action_id: str) -> Outbound | None:
        return await self.database.read(lambda tx: record.find_record(tx, action_id))

    async def job(self, action_id: str) -> JobRecord:
        key = f"{OUTBOUND_SEND.name}:{self.account.id}:{action_id}"
        query = select(jobs.c.id).where(jobs.c.idempotency_key == key)
        return await record_of(self.queue(), await self.database.read(lambda tx: tx.execute(query).scalar_one()))

    def sent(self, action_id: str) -> list[ParsedMail]:
        return [parse_mail(raw) for raw in self._with_label("SENT", action_id)]

    def delivered(self, action_id: str) -> EmailMessage:
        """The one message that was sent, as the standard library reads it at the recipient."""
        (raw,) = self._with_label("SENT", action_id)
        message = message_from_bytes(raw, policy=policy.default)
        assert isinstance(message, EmailMessage)
        return message

    def drafts(self, action_id: str) -> list[ParsedMail]:
        return [parse_mail(raw) for raw in self._with_label("DRAFT", action_id)]

    def _with_label(self, label: str, action_id: str) -> list[bytes]:
        """All mail with this label that bears the action's mark, however many there are."""
        store = self.sim.control._box.store
        mails = [store.raw(mail.id) for _, mail in store.walk(None, None, None) if label in mail.label_ids]
        return [raw for raw in mails if f"{ACTION_HEADER}: {action_id}".encode() in raw]


@asynccontextmanager
async def outbox(database: Database, clock: ManualClock) -> AsyncIterator[Outbox]:
    async with running_sim(mailbox(3)) as sim, AsyncExitStack() as stack:
        new = NewAccount(OWNER, sim.url)
        account = await database.write(lambda tx: add_account(tx, new, clock.now()))
        yield Outbox(database, clock, sim, account, stack)
