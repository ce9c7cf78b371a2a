"""A Gmail account that was read by the API is read by IMAP from now on, and stays one account (IM-6)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, update

from postroom.accounts.account import Account, Provider, get_account
from postroom.accounts.account_jobs import job_of
from postroom.accounts.history import Duty, HistoryLeaseLost, claim_reader, move_cursor
from postroom.actions import requests, undo
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.audit import Actor
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs as queued
from postroom.db.tables.triage import actions, outbound, rules
from postroom.domain import jobs
from postroom.domain.actions import ActionType, parse_action
from postroom.domain.clock import SystemClock
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import new_id
from postroom.mailboxes.gmail.methods import ProfileName
from postroom.mailboxes.ports import PriorityLane
from postroom.queue.worker import Worker
from postroom.settings import DatabaseSettings, RecurringSettings, Settings, SyncSettings
from postroom.sim.gmail.server import GmailSim, running_sim
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support.gmail_imap import GmailImap, GmailMessage, gmail_imap
from tests.support.logins import logged_in
from tests.support.mail import OWNER, letter, mailbox

ME = Actor("dashboard", "the owner")
ASKED = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off", archiver="off")
UNLIMITED = SyncSettings(rps_start=1_000, rps_max=1_000)
RULE = {"name": "Receipts", "condition": {"subject_contains": "Receipt"}, "actions": ["apply_label=Archive"]}
_SYSTEM = {"INBOX": r"\Inbox", "SENT": r"\Sent", "IMPORTANT": r"\Important", "TRASH": r"\Trash", "SPAM": r"\Spam"}
NEW = 0x7FF0000000000001


@dataclass
class Switched:
    app: App
    worker: Worker
    sim: GmailSim
    account: Account

    async def work(self, *job_types: str) -> None:
        if job_types:
            await self.app.queue.enqueue(*(job_of(each, self.account) for each in job_types))
        await self.worker.run()
        assert await self.rows(select(queued.c.type, queued.c.last_error).where(queued.c.last_error.is_not(None))) == []

    async def rows(self, query: Any) -> list[Any]:
        return await self.app.database.read(lambda tx: list(tx.execute(query)))

    async def want(self, message_id: str, kind: ActionType, **parameters: Any) -> str:
        wanted, queue = parse_action(kind, parameters), self.app.queue
        action_id = await self.app.database.write(
            lambda tx: requests.request_action(tx, queue, requests.message_named(tx, message_id), wanted, ME)
        )
        await self.work()
        return action_id

    async def undo(self, action_id: str) -> None:
        await self.app.database.write(lambda tx: undo.request_undo(tx, self.app.queue, action_id, ME))
        await self.work()

    async def labels(self) -> dict[str, str]:
        """The owner's labels, by name."""
        await self.app.sync_labels(self.account)
        async with self.app.mailboxes.mailbox(self.account, PriorityLane.LIVE) as box:
            return {label.name: label.id for label in await box.labels() if not label.is_system}

    async def switch(self, server: GmailImap) -> list[str]:
        self.account, remarks = await self.app.take_in(server.login(), ME)
        return remarks

    def as_imap_has_it(self) -> list[GmailMessage]:
        """Every message of the stand-in for the API, as Gmail's IMAP server would show it."""
        found = []
        for each in sorted(self.sim.control.truth(hashes=False), key=lambda shown: int(str(shown["internal_date"]))):
            names = self.sim.control.labels_of(str(each["id"]))
            labels = {_SYSTEM.get(name, name) for name in names if not name.startswith("CATEGORY_")}
            flags = set() if "UNREAD" in names else {r"\Seen"}
            labels -= {"UNREAD", "STARRED"}
            when = datetime.fromtimestamp(int(str(each["internal_date"])) / 1_000, UTC)
            raw = self.sim.control.raw(str(each["id"]))
            found.append(GmailMessage(int(str(each["id"]), 16), raw, labels, flags, received=when))
        return found

    async def archived(self) -> list[str]:
        with self.app.archive.backend.reader() as reader:
            return sorted(each.gmail_id for portion in reader.all_ids(OWNER) for each in portion)


@asynccontextmanager
async def by_api(home: Path, url: str) -> AsyncIterator[Switched]:
    """An account with a rule, a label and mail in the archive and in the inbox of triage, read by Gmail's API."""
    home.mkdir(mode=0o700)
    settings = Settings(home=home, database=DatabaseSettings(url=url), recurring=ASKED, sync=UNLIMITED)
    async with AsyncExitStack() as stack:
        sim = await stack.enter_async_context(running_sim(mailbox(3, Label_7="Archive")))
        app = await stack.enter_async_context(open_app(settings))
        _, grant = await logged_in(sim, home, SystemClock())
        account, _ = await app.take_in(grant, ME, ProfileName.LEGACY)
        worker = await stack.enter_async_context(open_worker(app, until_idle=True))
        story = Switched(app, worker, sim, account)
        await story.work(jobs.HISTORY_SYNC.name)
        await story.work(jobs.SYNC.name)
        draft = parse_draft(RULE)
        await app.database.write(lambda tx: add_rule(tx, draft, ME, app.clock.now()))
        yield story


@pytest.mark.req("IM-6")
async def test_an_account_goes_on_by_imap_where_the_api_left_off(tmp_path: Path, database_url: str) -> None:
    async with by_api(tmp_path / "home", database_url) as story:
        labels = frozenset({"INBOX", "UNREAD", "CATEGORY_PERSONAL"})
        receipt = story.sim.control.deliver(letter("Receipt 1"), labels)
        lunch = story.sim.control.deliver(letter("Lunch"), labels)
        await story.work(jobs.HISTORY_SYNC.name)
        archive = await story.want(lunch, ActionType.ARCHIVE)
        trash = await story.want(receipt, ActionType.TRASH)
        [labelled] = await story.rows(
            select(actions.c.id).where(actions.c.gmail_id == receipt, actions.c.type == "apply_label")
        )
        known = await story.labels()
        before, account_id = await story.archived(), story.account.id
        async with gmail_imap(story.as_imap_has_it(), shown=["Archive"]) as server:
            [remark] = await story.switch(server)
            assert "by IMAP from now on" in remark
            assert (story.account.id, story.account.provider) == (account_id, Provider.IMAP)

            # Labels keep the API's ids, also one that is called like another server's archive, and rules stay on.
            assert await story.labels() == known
            assert [row.enabled for row in await story.rows(select(rules.c.enabled))] == [True]

            # What was done by the API is taken back by IMAP.
            async def labels_of(number: str) -> set[str]:
                return next(each.labels for each in server.messages if f"{each.number:x}" == number)

            assert await labels_of(receipt) == {r"\Trash", "Archive"}
            await story.undo(trash)
            assert await labels_of(receipt) == {r"\Inbox", "Archive"}
            await story.undo(labelled.id)
            await story.undo(archive)
            assert await labels_of(receipt) == await labels_of(lunch) == {r"\Inbox"}

            # New mail comes once, and what is known is not read again.
            server.add(GmailMessage(NEW, letter("Receipt 2"), {r"\Inbox"}, received=story.app.clock.now()))
            server.heard.clear()
            for job in (jobs.HISTORY_SYNC, jobs.HISTORY_SYNC, jobs.SYNC):
                await story.work(job.name)
            assert await story.archived() == sorted([*before, f"{NEW:x}"])
            read = [words for words in server.heard if "BODY.PEEK[]" in words]
            assert len(read) == 1, "only what is new is read"
            assert await labels_of(f"{NEW:x}") == {r"\Inbox", "Archive"}, "the rule labels it with the same label"
            counted = select(func.count()).select_from(messages).group_by(messages.c.external_event_id)
            assert {each[0] for each in await story.rows(counted)} == {1}

            # Its owner may log in again, and the API is refused with what to do.
            assert await story.switch(server) == []
            _, grant = await logged_in(story.sim, tmp_path / "home", SystemClock())
            with pytest.raises(BadInput, match="is read by IMAP"):
                await story.app.take_in(grant, ME)


@pytest.mark.req("IM-6")
async def test_whoever_reads_by_the_api_has_to_stop(tmp_path: Path) -> None:
    async with by_api(tmp_path / "home", f"sqlite:///{tmp_path}/x.db") as story:
        now = story.app.clock.now()
        old = await story.app.database.write(lambda tx: claim_reader(tx, story.account.id, "an old reader", now))
        async with gmail_imap(story.as_imap_has_it(), shown=["Archive"]) as server:
            await story.switch(server)
            with pytest.raises(HistoryLeaseLost):
                await story.app.database.write(lambda tx: move_cursor(tx, old, "99", now))
            await story.work(jobs.HISTORY_SYNC.name)
        assert old.duty is Duty.CHANGES


@pytest.mark.req("IM-6")
async def test_what_would_not_be_the_same_mailbox_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with by_api(tmp_path / "home", f"sqlite:///{tmp_path}/x.db") as story:

        async def refused(words: str, error: type[Exception] = BadInput, **server_is: Any) -> None:
            server_is = {"messages": story.as_imap_has_it(), "shown": ["Archive"], **server_is}
            async with gmail_imap(**server_is) as server:
                with pytest.raises(error, match=words):
                    await story.switch(server)
            account = await story.app.database.read(lambda tx: get_account(tx, OWNER))
            assert replace(account, updated_at=story.account.updated_at) == story.account
            assert story.app.grants.find(OWNER) is not None
            assert story.app.grants.imap.find(OWNER) is None

        await refused("not Gmail's own server", capabilities="IMAP4rev1 UIDPLUS CONDSTORE")
        await refused("does not show All Mail", hidden={"[Gmail]/All Mail"})
        await refused("does not show Spam and Bin", hidden={"[Gmail]/Spam", "[Gmail]/Trash"})
        await refused("does not show the labels Archive", shown=[])
        await refused("none of the last 3 messages", messages=[GmailMessage(NEW, letter("Other"), {r"\Inbox"})])

        now, write = story.app.clock.now(), story.app.database.write
        wanted = _action(story.account.id, (await story.archived())[0], now)
        await write(lambda tx: tx.execute(actions.insert().values(**wanted)).rowcount)
        sending = {"action_id": wanted["id"], "state": "sending", "created_at": now, "updated_at": now}
        await write(lambda tx: tx.execute(outbound.insert().values(**sending)).rowcount)
        await refused("is being sent", Retryable)
        await write(lambda tx: tx.execute(update(outbound).values(state="sent")).rowcount)
        async with gmail_imap(story.as_imap_has_it(), shown=["Archive"]) as server:
            await story.switch(server)
        assert story.account.provider is Provider.IMAP


def _action(account_id: str, gmail_id: str, now: datetime) -> dict[str, Any]:
    named = {"id": new_id(), "account_id": account_id, "gmail_id": gmail_id, "origin": "person", "type": "reply"}
    return {**named, "status": "executing", "wanted_by": "me", "created_at": now, "updated_at": now}
