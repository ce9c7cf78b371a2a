"""The product on an IMAP account, as the worker runs it, against Dovecot: triage, actions and their undo, snoozes,
approvals, backfill, searches on demand, and the archiver."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from postroom.accounts.account import Account
from postroom.accounts.account_jobs import job_of
from postroom.actions import approvals, requests, undo
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.snoozes import SnoozeState, find_snooze, wake_now
from postroom.app import App, open_app
from postroom.app.worker import open_worker
from postroom.archive.certificates import RemovalResult
from postroom.audit import Actor
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs as queued
from postroom.db.tables.triage import actions, decisions
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus, ActionType, parse_action
from postroom.domain.roles import Caller, Role
from postroom.domain.terms import BackfillStatus
from postroom.mailboxes.errors import CallRefused
from postroom.mailboxes.imap.connection import ImapConnection
from postroom.mailboxes.imap.places import digest
from postroom.mailboxes.imap.reading import BytesReader
from postroom.queue import NewJob
from postroom.queue.worker import Worker
from postroom.settings import ArchiverSettings, BackfillSettings, DatabaseSettings, RecurringSettings, Settings
from postroom.switchboard.backfill.terms import NewBackfill
from postroom.sync.removal import KeepReason
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support.dovecot import Dovecot, append, dovecot
from tests.support.imap import crlf
from tests.support.mail import OWNER, letter

ME = Actor("dashboard", "the owner")
ASKED = RecurringSettings(live="off", sync="off", labels="off", bad_messages="off", sentinel="off", archiver="off")
"""Nothing runs by itself: a test starts each job."""
RULES: tuple[dict[str, Any], ...] = (
    {"name": "Receipts", "condition": {"subject_contains": "Receipt"}, "actions": ["apply_label=Paid"]},
    {"name": "Digests", "condition": {"subject_contains": "Digest"}, "actions": ["archive"]},
    {"name": "Prizes", "condition": {"subject_contains": "Prize"}, "actions": ["trash"]},
)
OLD = datetime(2021, 3, 1, 12, tzinfo=UTC)


def mail(subject: str) -> bytes:
    return crlf(letter(subject, headers={"Message-ID": f"<{subject.replace(' ', '.').lower()}@x.example>"}))


@dataclass
class ImapStory:
    app: App
    server: Dovecot
    worker: Worker
    account: Account

    async def work(self, *job_types: str) -> None:
        """Do these jobs of the account and whatever follows from them. None may fail."""
        if job_types:
            await self.app.queue.enqueue(*(job_of(each, self.account) for each in job_types))
        await self.worker.run()
        troubles = await self.rows(select(queued.c.type, queued.c.last_error).where(queued.c.last_error.is_not(None)))
        assert troubles == []

    async def result_of(self, job_type: str) -> Any:
        [row] = await self.rows(select(queued.c.result_json).where(queued.c.type == job_type))
        return json.loads(row.result_json)

    async def rows(self, query: Any) -> list[Any]:
        return await self.app.database.read(lambda tx: list(tx.execute(query)))

    def deliver(self, *subjects: str, received: datetime | None = None, folder: str = "INBOX") -> list[str]:
        """They arrive at the server; their ids here."""
        with self.server.client() as client:
            for number, subject in enumerate(subjects):
                when = None if received is None else int(received.timestamp()) + number
                append(client, mail(subject), folder, received=when)
        return [digest(mail(subject)) for subject in subjects]

    def folders_of(self, subject: str) -> dict[str, set[str]]:
        """Where another client finds a message, and with which flags."""
        found: dict[str, set[str]] = {}
        with self.server.client() as client:
            for line in client.list()[1]:
                assert isinstance(line, bytes)
                if b"Noselect" in line:
                    continue
                name = line.decode().split(' "/" ')[1].strip('"')
                client.select(f'"{name}"', readonly=True)
                hits = client.search(None, "HEADER", "Subject", f'"{subject}"')[1][0].split()
                assert len(hits) <= 1, "a message lies twice in one folder"
                for number in hits:
                    flags = client.fetch(number.decode(), "(FLAGS)")[1][0]
                    assert isinstance(flags, bytes)
                    found[name] = {flag for flag in (r"\Seen", r"\Flagged") if flag in flags.decode()}
        return found

    async def want(self, message_id: str, kind: ActionType, **parameters: Any) -> str:
        """A person wants this done; the id of the action, which is done when this returns."""
        wanted, queue = parse_action(kind, parameters), self.app.queue
        action_id = await self.app.database.write(
            lambda tx: requests.request_action(tx, queue, requests.message_named(tx, message_id), wanted, ME)
        )
        await self.work()
        assert await self.status(action_id) == ActionStatus.COMPLETED
        return action_id

    async def undo(self, action_id: str) -> None:
        undo_id = await self.app.database.write(lambda tx: undo.request_undo(tx, self.app.queue, action_id, ME))
        await self.work()
        assert await self.status(undo_id) == ActionStatus.COMPLETED

    async def status(self, action_id: str) -> str:
        [row] = await self.rows(select(actions.c.status).where(actions.c.id == action_id))
        return str(row.status)

    async def actions_of(self, message_id: str) -> list[tuple[str, str, str]]:
        """What became of a message: action, status, and the action's id."""
        query = select(actions).where(actions.c.gmail_id == message_id).order_by(actions.c.created_at)
        return [(row.type, row.status, row.id) for row in await self.rows(query)]


@asynccontextmanager
async def imap_story(home: Path, url: str, **groups: Any) -> AsyncIterator[ImapStory]:
    """An account that is synced, and whose live mail is followed from now on."""
    home.mkdir(mode=0o700)
    settings = Settings(home=home, database=DatabaseSettings(url=url), recurring=ASKED, **groups)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(dovecot())
        app = await stack.enter_async_context(open_app(settings))
        account, oddities = await app.take_in(server.login(), ME)
        assert oddities == []
        worker = await stack.enter_async_context(open_worker(app, until_idle=True))
        story = ImapStory(app, server, worker, account)
        await story.work(jobs.HISTORY_SYNC.name)
        for rule in RULES:
            draft = parse_draft(rule)
            await app.database.write(lambda tx, draft=draft: add_rule(tx, draft, ME, app.clock.now()))  # type: ignore[misc]
        yield story


@pytest.mark.req("IM-5")
async def test_rules_decide_new_mail_and_what_they_did_is_undone(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url) as story:
        receipt, digest_id, other = story.deliver("Receipt 1", "Digest 1", "Lunch 1")
        await story.work(jobs.HISTORY_SYNC.name)
        assert story.folders_of("Receipt 1") == {"INBOX": set(), "Paid": set()}
        assert story.folders_of("Digest 1") == {"Archive": set()}
        assert story.folders_of("Lunch 1") == {"INBOX": set()}
        rows = await story.rows(select(messages.c.external_event_id).where(messages.c.account_id == story.account.id))
        assert {row.external_event_id for row in rows} == {receipt, digest_id, other}
        [(kind, status, action_id)] = await story.actions_of(digest_id)
        assert (kind, status) == ("archive", ActionStatus.COMPLETED)
        await story.undo(action_id)
        assert story.folders_of("Digest 1") == {"INBOX": set()}
        [(_, _, label_id)] = await story.actions_of(receipt)
        await story.undo(label_id)
        assert story.folders_of("Receipt 1") == {"INBOX": set()}
        await story.work(jobs.HISTORY_SYNC.name, jobs.SYNC.name)
        assert len(await story.rows(select(decisions))) == 3, "moving a message brings no new mail"
        assert story.folders_of("Digest 1") == {"INBOX": set()}


@pytest.mark.req("IM-5")
async def test_a_person_marks_trashes_and_snoozes_and_takes_it_back(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url) as story:
        [message_id] = story.deliver("Lunch 2")
        await story.work(jobs.HISTORY_SYNC.name)
        star = await story.want(message_id, ActionType.STAR)
        read = await story.want(message_id, ActionType.MARK_READ)
        assert story.folders_of("Lunch 2") == {"INBOX": {r"\Seen", r"\Flagged"}}
        trash = await story.want(message_id, ActionType.TRASH)
        assert story.folders_of("Lunch 2") == {"Trash": {r"\Seen", r"\Flagged"}}
        for each in (trash, read, star):
            await story.undo(each)
        assert story.folders_of("Lunch 2") == {"INBOX": set()}

        snooze = await story.want(message_id, ActionType.SNOOZE, amount=2, units="hours")
        assert story.folders_of("Lunch 2") == {"Postroom/Snoozed": set()}
        await story.undo(snooze)
        assert story.folders_of("Lunch 2") == {"INBOX": set()}

        snooze = await story.want(message_id, ActionType.SNOOZE, amount=2, units="hours")
        await story.work(jobs.HISTORY_SYNC.name)
        assert story.folders_of("Lunch 2") == {"Postroom/Snoozed": set()}
        await story.app.database.write(lambda tx: wake_now(tx, story.app.queue, snooze, ME))
        await story.work()
        found = await story.app.database.read(lambda tx: find_snooze(tx, snooze))
        assert found is not None
        assert found.state is SnoozeState.WOKEN
        assert story.folders_of("Lunch 2") == {"INBOX": set()}


@pytest.mark.req("IM-5")
async def test_a_snoozed_message_that_its_owner_brings_back_no_longer_waits(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url) as story:
        [message_id] = story.deliver("Lunch 3")
        await story.work(jobs.HISTORY_SYNC.name)
        snooze = await story.want(message_id, ActionType.SNOOZE, amount=2, units="hours")
        with story.server.client() as client:
            client.select('"Postroom/Snoozed"')
            client.copy("1", "INBOX")
            client.store("1", "+FLAGS", r"(\Deleted)")
            client.expunge()
        await story.work(jobs.HISTORY_SYNC.name)
        found = await story.app.database.read(lambda tx: find_snooze(tx, snooze))
        assert found is not None
        assert found.state is SnoozeState.CANCELED
        assert story.folders_of("Lunch 3") == {"INBOX": set()}


@pytest.mark.req("IM-5")
async def test_what_a_rule_may_not_do_alone_waits_for_approval(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url) as story:
        yes, no = story.deliver("Prize 1", "Prize 2")
        await story.work(jobs.HISTORY_SYNC.name)
        asked = {
            each.action.gmail_id: each.action.id for each in await story.app.database.read(approvals.list_questions)
        }
        assert asked.keys() == {yes, no}
        assert story.folders_of("Prize 1") == {"INBOX": set()}
        for message_id, verdict in ((yes, ApprovalVerdict.APPROVE), (no, ApprovalVerdict.REJECT)):
            action_id = asked[message_id]
            await story.app.database.write(
                lambda tx, action_id=action_id, verdict=verdict: approvals.answer(  # type: ignore[misc]
                    tx, story.app.queue, action_id, verdict, ME
                )
            )
        await story.work()
        assert story.folders_of("Prize 1") == {"Trash": set()}
        assert story.folders_of("Prize 2") == {"INBOX": set()}
        await story.undo(asked[yes])
        assert story.folders_of("Prize 1") == {"INBOX": set()}


@pytest.mark.req("IM-5")
async def test_a_backfill_and_a_search_on_demand_bring_old_mail(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url, backfill=BackfillSettings(enabled=True)) as story:
        inside = story.deliver("Receipt 10", "Digest 10", "Walk 10", received=OLD)
        outside = story.deliver("Walk 11", received=OLD + timedelta(days=400))
        story.deliver("Zyzzyva 12", received=OLD - timedelta(days=400))
        await story.work(jobs.SYNC.name)
        owner = Caller(Role.DASHBOARD, "the owner", is_proved=True)
        new = NewBackfill("gmail", story.account.email, date(2021, 2, 1), date(2021, 4, 1), uses_model=False)
        job = await story.app.backfill.create(owner, new)
        await story.work(jobs.BACKFILL.name)
        assert (await story.app.backfill.show(job.id)).job.status is BackfillStatus.COMPLETED
        found = await story.rows(select(messages.c.external_event_id, messages.c.backfill_job_id))
        assert {row.external_event_id for row in found} == set(inside)
        assert story.folders_of("Receipt 10") == {"INBOX": set(), "Paid": set()}
        assert story.folders_of("Digest 10") == {"Archive": set()}

        payload = {"account_id": story.account.id, "query": "subject:zyzzyva OR subject:walk", "max_results": 10}
        await story.app.queue.enqueue(NewJob(jobs.ON_DEMAND.name, payload))
        await story.work()
        asked = await story.result_of(jobs.ON_DEMAND.name)
        assert (asked["ingested"], asked["duplicates"]) == (2, 1)
        assert set(outside) <= set(asked["gmail_ids"])


@pytest.mark.req("IM-5")
async def test_a_backfill_reads_what_no_sync_has_archived(tmp_path: Path, database_url: str) -> None:
    async with imap_story(tmp_path / "home", database_url, backfill=BackfillSettings(enabled=True)) as story:
        inside = story.deliver("Walk 20", "Walk 21", received=OLD)
        owner = Caller(Role.DASHBOARD, "the owner", is_proved=True)
        new = NewBackfill("gmail", story.account.email, date(2021, 2, 1), date(2021, 4, 1), uses_model=False)
        job = await story.app.backfill.create(owner, new)
        await story.work(jobs.BACKFILL.name)
        assert (await story.app.backfill.show(job.id)).job.status is BackfillStatus.COMPLETED
        found = await story.rows(select(messages.c.external_event_id))
        assert {row.external_event_id for row in found} == set(inside)


@pytest.mark.req("IM-5", "SY-10")
async def test_the_archiver_removes_what_it_has_certified_and_nothing_else(tmp_path: Path, database_url: str) -> None:
    archiver = ArchiverSettings(enabled=True, action="delete", keep_days=30, keep_labels="STARRED, Keep")
    async with imap_story(tmp_path / "home", database_url, archiver=archiver) as story:
        gone, kept, starred, young = "Walk 30", "Walk 31", "Walk 32", "Walk 33"
        [gone_id, kept_id, starred_id] = story.deliver(gone, kept, starred, received=OLD)
        story.deliver(young)
        with story.server.client() as client:
            client.create("Keep")
            client.select("INBOX")
            client.copy("2", "Keep")
            client.store("3", "+FLAGS", r"(\Flagged)")
        await story.work(jobs.SYNC.name)
        await story.work(jobs.ARCHIVE.name)
        assert (await story.result_of(jobs.ARCHIVE.name))["removed"] == 1
        assert story.folders_of(gone) == {}
        assert story.folders_of(kept) == {"INBOX": set(), "Keep": set()}
        assert story.folders_of(starred) == {"INBOX": {r"\Flagged"}}
        assert story.folders_of(young) == {"INBOX": set()}
        [certificate] = story.app.archive.backend.ledger(OWNER).certificates(limit=10)
        assert certificate.proof.gmail_id == certificate.proof.sha256 == gone_id
        assert certificate.result is RemovalResult.REMOVED
        assert {kept_id, starred_id}.isdisjoint({certificate.proof.gmail_id})
        with story.app.archive.backend.reader() as reader:
            found = reader.find_many(OWNER, [gone_id])[gone_id]
            assert reader.raw_of(found) == mail(gone)


@pytest.mark.req("IM-3", "IM-5")
async def test_after_a_uidvalidity_reset_nothing_is_certified_before_its_bytes_are_read_again(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archiver = ArchiverSettings(enabled=True, action="trash", keep_days=30)
    async with imap_story(tmp_path / "home", database_url, archiver=archiver) as story:
        ids = story.deliver("Walk 40", "Walk 41", received=OLD)
        await story.work(jobs.SYNC.name)
        story.server.reset_uidvalidity()
        ledger, read = story.app.archive.backend.ledger(OWNER), BytesReader._together

        async def unreadable(self: BytesReader, connection: ImapConnection, uids: Iterable[int], item: bytes) -> Any:
            raise CallRefused("cannot be read", status=0, reason="no")

        with monkeypatch.context() as broken:
            broken.setattr(BytesReader, "_together", unreadable)
            await story.work(jobs.ARCHIVE.name)
        result = await story.result_of(jobs.ARCHIVE.name)
        assert (result["removed"], result["stays"]) == (0, {str(KeepReason.NOT_CONFIRMED): 2})
        assert ledger.certificates() == []
        assert story.folders_of("Walk 40") == {"INBOX": set()}

        again: set[int] = set()

        async def counted(self: BytesReader, connection: ImapConnection, uids: Iterable[int], item: bytes) -> Any:
            assert ledger.certificates() == [], "they are read before they are certified"
            wanted = list(uids)
            again.update(wanted)
            return await read(self, connection, wanted, item)

        monkeypatch.setattr(BytesReader, "_together", counted)
        await story.work(jobs.ARCHIVE.name)
        assert (await story.result_of(jobs.ARCHIVE.name))["removed"] == 2
        assert (len(again), {each.proof.gmail_id for each in ledger.certificates()}) == (2, set(ids))
        assert story.folders_of("Walk 40") == {"Trash": set()}
