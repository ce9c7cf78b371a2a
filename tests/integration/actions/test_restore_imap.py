"""Mail of a Gmail mailbox is put into an IMAP mailbox on a real server, so that its owner can leave with proof."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroom.accounts.account import Account
from postroom.actions.restore import runs
from postroom.actions.restore.restorer import RestoreHandler
from postroom.actions.restore.runs import RestoreOrder, RestoreProgress, RunState
from postroom.actions.restore.target import did_not_happen
from postroom.archive.messages import IncomingMail
from postroom.archive.shards.file_archive import FileArchive
from postroom.domain.actions import ItemState
from postroom.domain.clock import ManualClock
from postroom.domain.errors import PostroomError, Retryable
from postroom.domain.jobs import RESTORE
from postroom.mailboxes.errors import (
    CallRefused,
    LabelGone,
    LoginNeeded,
    MailboxThrottled,
    MailboxUnavailable,
    PermissionMissing,
)
from postroom.mailboxes.imap.connection import Answer, ImapConnection
from postroom.mailboxes.imap.mailbox import ImapMailbox
from postroom.mailboxes.protocol import RemoteMessage
from postroom.mailboxes.reader import sort_results
from postroom.queue import JobCatalogue, JobQueue
from postroom.settings import RestoreSettings
from postroom.switchboard.ingest import restored_among
from tests.support.imap import BARE, ImapRig, imap_rig
from tests.support.mail import OWNER
from tests.support.queues import run_until_idle
from tests.support.restores import WHO, archived, store


@dataclass(frozen=True)
class _Target:
    mailbox: ImapMailbox

    async def of(self, account: Account) -> ImapMailbox:
        return self.mailbox


@pytest.fixture(params=["", BARE], ids=["all extensions", "none"])
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ImapRig]:
    async with imap_rig(tmp_path, capability=request.param) as made:
        yield made


async def work(rig: ImapRig, root: Path, queue: JobQueue, **settings: Any) -> None:
    handler = RestoreHandler(FileArchive(root), _Target(rig.mailbox), RestoreSettings(**settings))
    await run_until_idle(queue, {RESTORE.name: handler})


async def restore(rig: ImapRig, root: Path, queue: JobQueue) -> RestoreProgress:
    order = RestoreOrder.of(account=OWNER, to_account=rig.account.email)
    run = await rig.database.write(lambda tx: runs.begin(tx, queue, order, WHO))
    await work(rig, root, queue)
    return await rig.database.read(lambda tx: runs.progress_of(tx, runs.get_run(tx, run.id)))


async def there(rig: ImapRig) -> list[RemoteMessage]:
    ids = [each async for page in rig.mailbox.list() for each in page.ids]
    return list(sort_results(await rig.mailbox.fetch(ids)).got)


async def details(rig: ImapRig, done: RestoreProgress) -> list[str]:
    """Why messages failed."""
    items = await rig.database.read(lambda tx: runs.items_in(tx, done.run.id, [ItemState.FAILED], 100))
    return [f"{item.key}: {item.detail}" for item in items]


def hashes(mails: list[IncomingMail]) -> Counter[str]:
    return Counter(hashlib.sha256(mail.raw).hexdigest() for mail in mails)


@pytest.mark.req("IM-8", "IM-9")
async def test_gmail_mail_is_put_into_an_imap_mailbox_once_with_bytes_dates_and_flags(
    rig: ImapRig, tmp_path: Path
) -> None:
    mails, root = [archived(number) for number in range(25)], tmp_path / "archive"
    store(root, mails)
    queue = JobQueue(rig.database, JobCatalogue([RESTORE]), rig.clock)
    rig.server.deliver(mails[3].raw)

    done = await restore(rig, root, queue)
    assert done.run.state is RunState.COMPLETED, done.run.reason
    assert done.counts == {ItemState.VERIFIED: 24, ItemState.ALREADY_THERE: 1}, await details(rig, done)
    found = {each.id: each for each in await there(rig)}
    assert Counter(found.keys()) == hashes(mails), "its id is the hash of its bytes"
    for mail in mails[:3] + mails[4:]:
        message = found[hashlib.sha256(mail.raw).hexdigest()]
        assert mail.labels is not None
        assert datetime.fromtimestamp((message.received_ms or 0) / 1_000, UTC) == mail.received
        for flag in ("UNREAD", "STARRED", "INBOX"):
            assert (flag in message.label_ids) == (flag in mail.labels), (flag, mail.labels, message.label_ids)

    again = await restore(rig, root, queue)
    assert again.counts == {ItemState.ALREADY_THERE: 25}
    assert len(await there(rig)) == 25

    await rig.database.write(lambda tx: runs.undo(tx, queue, done.run.id, WHO))
    await work(rig, root, queue)
    left = [each.id for each in await there(rig) if "TRASH" not in each.label_ids]
    assert left == [hashlib.sha256(mails[3].raw).hexdigest()]


@pytest.mark.req("IM-8")
@pytest.mark.parametrize(
    "problem",
    [
        MailboxUnavailable("The connection was lost"),
        MailboxThrottled("Too many connections"),
        CallRefused("The folder is full", status=0, reason="overquota"),
        Retryable("The database is busy"),
    ],
    ids=lambda problem: type(problem).__name__,
)
async def test_what_fails_after_the_append_leaves_nothing_that_an_undo_does_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: PostroomError
) -> None:
    async with imap_rig(tmp_path) as rig:
        mail = replace(archived(0), labels=frozenset({"INBOX", "Work/Plans"}))
        ordered = await order_restore(rig, tmp_path / "archive", [mail])
        failing = fail_after_append(monkeypatch, problem)
        done = await ordered.until_over()
        assert failing == []
        assert done.counts == {ItemState.VERIFIED: 1}, done.run.reason
        assert await labels_there(rig) == {"INBOX": 1, "Work/Plans": 1}, "also in the folder it is copied to"
        assert (await ordered.undo()).run.state is RunState.UNDONE
        assert all("TRASH" in each.label_ids for each in await there(rig))


@dataclass(frozen=True)
class _Ordered:
    rig: ImapRig
    root: Path
    queue: JobQueue
    clock: ManualClock
    run_id: str

    async def until_over(self) -> RestoreProgress:
        for _ in range(20):
            await work(self.rig, self.root, self.queue, settle_s=0)
            now = await self.rig.database.read(lambda tx: runs.progress_of(tx, runs.get_run(tx, self.run_id)))
            if now.run.state not in runs.AT_WORK:
                break
            self.clock.advance(60)
        return now

    async def undo(self) -> RestoreProgress:
        await self.rig.database.write(lambda tx: runs.undo(tx, self.queue, self.run_id, WHO))
        return await self.until_over()


async def order_restore(rig: ImapRig, root: Path, mails: list[IncomingMail], source: str = OWNER) -> _Ordered:
    store(root, mails, source)
    clock = ManualClock()
    queue = JobQueue(rig.database, JobCatalogue([RESTORE]), clock)
    order = RestoreOrder.of(account=source, to_account=rig.account.email)
    run = await rig.database.write(lambda tx: runs.begin(tx, queue, order, WHO))
    return _Ordered(rig, root, queue, clock, run.id)


async def labels_there(rig: ImapRig) -> Counter[str]:
    """How many messages have each label, without flags."""
    names = {label.id: label.name for label in await rig.mailbox.labels()}
    flags = {"UNREAD", "STARRED", "IMPORTANT"}
    return Counter(names.get(each, each) for mail in await there(rig) for each in mail.label_ids if each not in flags)


NO = CallRefused("No permission", status=0, reason="no")


def refuse(monkeypatch: pytest.MonkeyPatch, commands: set[bytes], about: str, refusal: PostroomError = NO) -> None:
    """The server says no to these commands where their arguments name this."""
    command = ImapConnection.command

    async def refusing(connection: ImapConnection, *parts: Any, **more: Any) -> Answer:
        if parts[0] in commands and any(about in str(part) for part in parts[1:]):
            raise refusal
        return await command(connection, *parts, **more)

    monkeypatch.setattr(ImapConnection, "command", refusing)


@pytest.mark.req("IM-8")
async def test_a_folder_that_cannot_be_made_fails_only_the_mail_that_goes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path) as rig:
        mails = [replace(archived(n), labels=frozenset({"INBOX"} if n % 3 else set())) for n in range(9)]
        refuse(monkeypatch, {b"CREATE"}, "Archive")
        ordered = await order_restore(rig, tmp_path / "archive", mails)
        done = await ordered.until_over()
        assert done.counts == {ItemState.VERIFIED: 6, ItemState.FAILED: 3}, await details(rig, done)
        assert len(await there(rig)) == 6


@pytest.mark.req("IM-8")
@pytest.mark.parametrize("refusal", [NO, PermissionMissing("No permission", reason="noperm"), LabelGone("No folder")])
async def test_a_refused_copy_keeps_no_other_mail_out_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: PostroomError
) -> None:
    async with imap_rig(tmp_path) as rig:
        folders = ("Closed", "Good", "Other")
        mails = [replace(archived(n), labels=frozenset({"INBOX", folders[n // 3]})) for n in range(9)]
        refuse(monkeypatch, {b"UID COPY"}, "Closed", refusal)
        done = await (await order_restore(rig, tmp_path / "archive", mails)).until_over()
        assert done.counts == {ItemState.VERIFIED: 9}
        assert await labels_there(rig) == {"INBOX": 9, "Good": 3, "Other": 3}


@pytest.mark.req("IM-8")
async def test_an_outage_after_a_refused_conversation_forgets_nothing_that_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with imap_rig(tmp_path) as rig:
        email, mails = rig.account.email, [archived(number) for number in range(9)]
        command, appended, is_down = ImapConnection.command, list[bytes](), [True]

        async def failing(connection: ImapConnection, *parts: Any, **more: Any) -> Answer:
            if is_down[0] and len(appended) == 3:
                raise MailboxUnavailable("The server is away")
            if parts[0] == b"APPEND":
                appended.append(parts[0])
                if len(appended) == 1:
                    raise CallRefused("Too large", status=0, reason="toobig")
            return await command(connection, *parts, **more)

        monkeypatch.setattr(ImapConnection, "command", failing)
        ordered = await order_restore(rig, tmp_path / "archive", mails, email)
        await work(rig, ordered.root, ordered.queue, settle_s=0)
        is_down[0] = False
        done = await ordered.until_over()
        assert done.counts == {ItemState.VERIFIED: 9}, await details(rig, done)
        await ordered.undo()
        assert all("TRASH" in each.label_ids for each in await there(rig)), "all of it was added by the restore"


@pytest.mark.req("IM-8", "IM-9")
async def test_mail_with_other_line_ends_is_known_when_the_mailbox_gives_it_back(tmp_path: Path) -> None:
    async with imap_rig(tmp_path) as rig:
        root, mail = tmp_path / "archive", archived(0)
        store(root, [replace(mail, raw=mail.raw.replace(b"\r\n", b"\n"))])
        queue = JobQueue(rig.database, JobCatalogue([RESTORE]), rig.clock)
        done = await restore(rig, root, queue)
        assert done.counts == {ItemState.VERIFIED: 1}
        [found] = await there(rig)
        row = {"id": "1", "account_id": rig.account.id, "backfill_job_id": None, "archive_sha256": found.id}
        assert await rig.database.read(lambda tx: restored_among(tx, [row])) == {"1"}


def fail_after_append(monkeypatch: pytest.MonkeyPatch, problem: PostroomError) -> list[PostroomError]:
    """The command after the first APPEND raises this; the list is empty once it has."""
    command, left, is_appended = ImapConnection.command, [problem], list[bool]()

    async def failing(connection: ImapConnection, *parts: Any, **more: Any) -> Answer:
        if left and is_appended:
            raise left.pop()
        answer = await command(connection, *parts, **more)
        is_appended.extend([True] if parts[0] == b"APPEND" else [])
        return answer

    monkeypatch.setattr(ImapConnection, "command", failing)
    return left


@pytest.mark.parametrize(
    ("error", "is_certain"),
    [
        (MailboxUnavailable("no"), True),
        (MailboxUnavailable("lost", may_have_happened=True), False),
        (LoginNeeded("no"), True),
        (Retryable("The database is busy"), False),
        (PostroomError("something else"), False),
    ],
)
def test_only_what_a_mailbox_refuses_has_certainly_not_happened(error: PostroomError, is_certain: bool) -> None:
    assert did_not_happen(error) is is_certain
