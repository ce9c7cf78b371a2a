"""An archive, and a mailbox at the stand-in that mail is put back into; what that truly holds afterwards judges."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.actions.restore import runs
from postroom.actions.restore.items import RestoreItem
from postroom.actions.restore.restorer import RestoreHandler
from postroom.actions.restore.runs import RestoreOrder, RestoreProgress, RestoreRun
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.audit import Actor
from postroom.db import Database
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import LOGIN_NOTIFY, RESTORE
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.queue import Handler, JobCatalogue, JobQueue
from postroom.settings import RestoreSettings
from postroom.sim.gmail.faults import FaultRule, GmailFault
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.sim.gmail.sources import ListedMail, ListSource
from tests.support.actions import watched
from tests.support.gmail_sim import client_of
from tests.support.mail import OWNER, START_MS, letter
from tests.support.queues import count_jobs, run_until_idle

WHO = Actor("dashboard", "a test")
LABELS: tuple[set[str], ...] = (
    {"INBOX", "UNREAD"},
    {"Work/Plans"},
    {"INBOX", "STARRED"},
    {"Réceipts", "IMPORTANT"},
    set(),
)


def sent_at(number: int) -> datetime:
    return datetime.fromtimestamp(START_MS // 1_000 + number * 3_600, UTC)


def archived(number: int, **more: Any) -> IncomingMail:
    """Every third begins a conversation of three; every seventh has no Message-ID."""
    headers = {"Date": format_datetime(sent_at(number))}
    if number % 7 != 6:
        headers["Message-ID"] = f"<{number}@x.example>"
    if first := number % 3:
        headers["References"] = f"<{number - first}@x.example>"
    raw = letter(f"Letter number{number}", f"The word is body{number}.\n", headers=headers)
    given: dict[str, Any] = {
        "raw": raw.replace(b"\n", b"\r\n"),
        "provenance": Provenance.API,
        "gmail_id": f"{0x1500_0000_0000_0000 + number:016x}",
        "thread_id": f"{0x1400_0000_0000_0000 + number // 3:016x}",
        "labels": frozenset(LABELS[number % len(LABELS)]),
        "received": sent_at(number),
    }
    return IncomingMail(**given | more)


def store(root: Path, mails: Iterable[IncomingMail], email: str = OWNER) -> None:
    with FileArchiveWriter(root, purpose="a test") as archive:
        archive.store(email, list(mails))


def sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


@dataclass(frozen=True)
class TrueMail:
    """A message as the mailbox truly has it."""

    id: str
    sha256: str
    date: datetime
    labels: frozenset[str]
    thread_id: str


def truth_of(sim: GmailSim) -> list[TrueMail]:
    return [
        TrueMail(
            str(mail["id"]),
            str(mail["sha256"]),
            datetime.fromtimestamp(int(str(mail["internal_date"])) / 1_000, UTC),
            sim.control.labels_of(str(mail["id"])),
            str(mail["thread_id"]),
        )
        for mail in sim.control.truth()
    ]


def assert_put_back(sim: GmailSim, mails: Sequence[IncomingMail]) -> None:
    """Each is there once, with its bytes, date and labels, and conversations are whole."""
    there = truth_of(sim)
    assert Counter(each.sha256 for each in there) == Counter(sha256(mail.raw) for mail in mails)
    by_hash = {each.sha256: each for each in there}
    threads: dict[str | None, set[str]] = {}
    for mail in mails:
        found = by_hash[sha256(mail.raw)]
        assert (found.date, found.labels) == (mail.received, mail.labels)
        threads.setdefault(mail.thread_id, set()).add(found.thread_id)
    assert all(len(found) == 1 for found in threads.values())


class _OneTarget:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    async def of(self, account: Account) -> GmailMailbox:
        return GmailMailbox(self._client)


@dataclass
class RestoreScene:
    """Time stands still until it is moved."""

    database: Database
    clock: ManualClock
    sim: GmailSim
    client: GmailClient
    account: Account
    root: Path
    settings: RestoreSettings = field(default_factory=RestoreSettings)

    def __post_init__(self) -> None:
        self.queue = JobQueue(self.database, JobCatalogue([RESTORE, LOGIN_NOTIFY]), self.clock)
        self.archive = FileArchive(self.root)

    def store(self, mails: Iterable[IncomingMail], email: str = OWNER) -> None:
        store(self.root, mails, email)

    def handlers(self) -> Mapping[str, Handler]:
        handler = RestoreHandler(self.archive, _OneTarget(self.client), self.settings)
        return watched(self.database, self.clock, {RESTORE.name: handler})

    async def begin(self, **order: Any) -> RestoreRun:
        wanted = RestoreOrder.of(**{"account": OWNER, **order})
        return await self.database.write(lambda tx: runs.begin(tx, self.queue, wanted, WHO))

    async def work(self, minutes: int = 240) -> None:
        """Until every retry is over."""
        for _ in range(minutes):
            await run_until_idle(self.queue, self.handlers())
            if not await count_jobs(self.database, state="queued"):
                return
            self.clock.advance(60)

    async def restore(self, **order: Any) -> RestoreProgress:
        run = await self.begin(**order)
        await self.work()
        return await self.progress(run.id)

    async def progress(self, run_id: str) -> RestoreProgress:
        return await self.database.read(lambda tx: runs.progress_of(tx, runs.get_run(tx, run_id)))

    async def items(self, run_id: str) -> list[RestoreItem]:
        return await self.database.read(lambda tx: list(runs.all_items(tx, run_id)))

    async def change(self, what: Any, run_id: str) -> RestoreRun:
        changed: RestoreRun = await self.database.write(lambda tx: what(tx, self.queue, run_id, WHO))
        return changed

    def fail(self, method: str, fault: GmailFault, **rule: Any) -> None:
        self.sim.control.add_fault(FaultRule(fault=fault, method=method, **rule))

    def truth(self) -> list[TrueMail]:
        return truth_of(self.sim)


def at_target(mails: Iterable[IncomingMail], label_ids: frozenset[str] = frozenset({"INBOX"})) -> ListSource:
    """A mailbox that has these already, received a minute after the archive's date."""
    listed = [
        ListedMail(mail.raw, int(((mail.received or sent_at(0)) + timedelta(minutes=1)).timestamp() * 1_000), label_ids)
        for mail in mails
    ]
    return ListSource(listed, email=OWNER)


@asynccontextmanager
async def restore_scene(
    database: Database, clock: ManualClock, root: Path, source: ListSource | None = None
) -> AsyncIterator[RestoreScene]:
    mailbox = source or ListSource([], email=OWNER)
    async with running_sim(mailbox) as sim, client_of(sim) as client:
        account = await database.write(lambda tx: add_account(tx, NewAccount(OWNER, sim.url), clock.now()))
        yield RestoreScene(database, clock, sim, client, account, root)
