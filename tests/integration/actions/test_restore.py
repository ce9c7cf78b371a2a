"""Mail put back from the archive into a mailbox: exactly once, proved by reading it back, and undone as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from postroom import kill_switch
from postroom.accounts.account import NewAccount, add_account
from postroom.actions.restore import runs
from postroom.actions.restore.items import certificate_of
from postroom.actions.restore.runs import RestoreOrder, RunState
from postroom.archive.shards.file_archive import FileArchive
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Database
from postroom.db.tables.queue import jobs
from postroom.db.tables.restores import restore_runs
from postroom.domain.actions import ItemState
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.methods import READ
from postroom.mailboxes.protocol import MailboxChange, Move
from postroom.settings import RestoreSettings
from postroom.sim.gmail import oauth
from postroom.sim.gmail.faults import GmailFault
from tests.support.gmail_sim import FixedToken, client_of
from tests.support.mail import OWNER
from tests.support.restores import (
    WHO,
    RestoreScene,
    archived,
    assert_put_back,
    at_target,
    restore_scene,
    sent_at,
    sha256,
    store,
)


@pytest.fixture
async def scene(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[RestoreScene]:
    async with restore_scene(database, clock, tmp_path / "archive") as opened:
        yield opened


@pytest.mark.req("IM-8", "IM-9")
async def test_mail_is_put_back_with_its_bytes_date_flags_labels_and_conversations(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(45)]
    scene.store(mails)
    done = await scene.restore()
    assert done.run.state is RunState.COMPLETED
    assert done.counts == {ItemState.VERIFIED: 45}
    assert_put_back(scene.sim, mails)
    certificate = done.run.certificate
    assert certificate is not None
    assert (certificate["verified"], certificate["failed"], certificate["threads_split"]) == (45, 0, 0)
    assert certificate["bytes"] == sum(len(mail.raw) for mail in mails)
    assert set(certificate["differences"].values()) == {0}
    items = await scene.items(done.run.id)
    assert certificate_of(items, scene.clock.now())["digest"] == certificate["digest"]
    assert {item.sha256 for item in items} == {sha256(mail.raw) for mail in mails}


@pytest.mark.req("IM-8")
async def test_what_is_there_already_is_found_and_left_alone(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    mails = [archived(number, labels=frozenset({"INBOX"})) for number in range(30)]
    there = mails[::2]
    async with restore_scene(database, clock, tmp_path / "archive", at_target(there)) as scene:
        scene.store(mails)
        before = {each.id for each in scene.truth()}
        done = await scene.restore()
        with_id = sum(number % 7 != 6 for number in range(0, 30, 2))
        without = 15 - with_id  # no Message-ID, and received at another time than the archive says
        assert done.counts == {ItemState.ALREADY_THERE: with_id, ItemState.VERIFIED: 15 + without}
        assert before <= {each.id for each in scene.truth()}
        again = await scene.restore()
        assert again.counts == {ItemState.ALREADY_THERE: 30}
        assert done.run.certificate is not None
        assert done.run.certificate["differences"]["date"] == with_id


@pytest.mark.req("IM-8")
async def test_mail_in_the_trash_is_taken_out_instead_of_added_again(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(4)]
    scene.store(mails)
    first = await scene.restore()
    mailbox = GmailMailbox(scene.client)
    ids = [str(item.target_id) for item in await scene.items(first.run.id)]
    await mailbox.modify(ids, MailboxChange(move=Move.TRASH))
    done = await scene.restore()
    assert done.counts == {ItemState.VERIFIED: 4}
    assert_put_back(scene.sim, mails)
    await scene.change(runs.undo, done.run.id)
    await scene.work()
    assert all("TRASH" in each.labels for each in scene.truth())


@pytest.mark.req("IM-8")
async def test_undo_moves_exactly_what_was_added_to_the_trash(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    mails = [archived(number) for number in range(24)]
    there = [mail for number, mail in enumerate(mails) if number % 7 != 6][:6]
    async with restore_scene(database, clock, tmp_path / "archive", at_target(there)) as scene:
        scene.store(mails)
        done = await scene.restore()
        await scene.change(runs.undo, done.run.id)
        await scene.work()
        undone = await scene.progress(done.run.id)
        assert undone.run.state is RunState.UNDONE
        assert undone.counts == {ItemState.ALREADY_THERE: 6, ItemState.TRASHED: 18}
        kept = [each for each in scene.truth() if "TRASH" not in each.labels]
        assert {each.sha256 for each in kept} == {sha256(mail.raw) for mail in there}
        with pytest.raises(BadInput, match="nothing to undo"):
            await scene.change(runs.undo, done.run.id)


@pytest.mark.req("IM-8")
async def test_an_answer_that_is_lost_after_the_append_adds_nothing_twice(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(40)]
    scene.store(mails)
    scene.fail("messages.insert", GmailFault(kind="drop", after_effect=True), probability=0.2, seed=3, times=8)
    scene.fail("messages.insert", GmailFault(kind="error", code=500, after_effect=True), skip=3, times=3)
    done = await scene.restore()
    assert done.run.state is RunState.COMPLETED
    assert_put_back(scene.sim, mails)


@pytest.mark.req("IM-8")
async def test_after_a_forgotten_history_the_message_is_found_by_its_message_id(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(3)]
    scene.store(mails)
    scene.fail("messages.insert", GmailFault(kind="drop", after_effect=True), times=1)
    scene.fail("history.list", GmailFault(kind="error", code=404, reason="notFound"), times=1)
    done = await scene.restore()
    assert done.run.state is RunState.COMPLETED
    assert_put_back(scene.sim, mails)


@pytest.mark.req("IM-10")
async def test_a_throttled_mailbox_is_given_time(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(30)]
    scene.store(mails)
    slow = GmailFault(kind="error", code=429, reason="rateLimitExceeded", retry_after_s=90)
    scene.fail("messages.insert", slow, skip=7, times=2)
    scene.fail("messages.get", GmailFault(kind="error", code=503), probability=0.05, seed=5, times=5)
    done = await scene.restore()
    assert done.run.state is RunState.COMPLETED
    assert_put_back(scene.sim, mails)


@pytest.mark.req("IM-8")
async def test_a_missing_permission_is_said_with_the_remedy(scene: RestoreScene) -> None:
    scene.store([archived(0)])
    only_reading = scene.sim.control.new_token(frozenset({oauth.READONLY}))
    async with client_of(scene.sim, credentials=FixedToken(only_reading)) as scene.client:
        done = await scene.restore()
    assert done.run.state is RunState.FAILED
    assert "Log in again" in str(done.run.reason)
    assert not scene.truth()
    known = NewAccount(OWNER, scene.sim.url, scopes=frozenset({READ}))
    await scene.database.write(lambda tx: add_account(tx, known, scene.clock.now()))
    with pytest.raises(NotAllowed, match=r"gmail\.insert"):
        await scene.begin()


@pytest.mark.req("IM-8")
async def test_a_refused_message_fails_alone_and_can_be_tried_again(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(10)]
    scene.store(mails)
    scene.fail("messages.insert", GmailFault(kind="error", code=413, reason="uploadTooLarge"), skip=4, times=2)
    done = await scene.restore(query="in:anywhere")
    failed = [item for item in await scene.items(done.run.id) if item.state is ItemState.FAILED]
    assert done.run.state is RunState.COMPLETED
    if failed:  # the first refusal may have been of the conversation, which is then left out
        assert all(item.detail for item in failed)
        await scene.change(runs.resume, done.run.id)
        await scene.work()
    assert Counter(each.sha256 for each in scene.truth()) == Counter(sha256(mail.raw) for mail in mails)


@pytest.mark.req("IM-9")
async def test_the_certificate_says_what_the_mailbox_does_not_keep(scene: RestoreScene) -> None:
    """Gmail dates mail by its Date header, and gives SENT only to mail from its own address."""
    late = archived(1, received=sent_at(5), labels=frozenset({"SENT", "Work/Plans"}))
    scene.store([late])
    done = await scene.restore()
    [item] = await scene.items(done.run.id)
    assert item.state is ItemState.VERIFIED
    assert item.differences == {"date": sent_at(1).isoformat(), "labels_missing": ["SENT"]}
    assert done.run.certificate is not None
    assert done.run.certificate["differences"]["date"] == 1


@pytest.mark.req("IM-9")
async def test_other_bytes_at_the_target_are_a_failure(scene: RestoreScene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.store([archived(0)])
    append = GmailMailbox.append

    async def changed(self: GmailMailbox, raw: bytes, *more: object) -> str:
        return await append(self, b"X-Scanned: yes\r\n" + raw, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(GmailMailbox, "append", changed)
    done = await scene.restore()
    [item] = await scene.items(done.run.id)
    assert (item.state, item.detail) == (ItemState.FAILED, "the mailbox gave back other bytes")
    assert done.run.certificate is not None
    assert done.run.certificate["failed"] == 1
    await scene.change(runs.undo, done.run.id)
    await scene.work()
    assert [each for each in scene.truth() if "TRASH" not in each.labels] == []


async def test_to_another_account_and_into_one_folder(scene: RestoreScene) -> None:
    other = "old@example.net"
    mails = [archived(number) for number in range(8)]
    scene.store(mails, other)
    done = await scene.restore(account=other, to_account=OWNER, folder="From old", query="number3 OR number4")
    assert done.counts == {ItemState.VERIFIED: 2}
    assert {each.labels for each in scene.truth()} == {frozenset({"From old", "IMPORTANT"}), frozenset({"From old"})}


async def test_removed_mail_in_the_trash_is_put_back_and_drafts_and_spam_are_not(scene: RestoreScene) -> None:
    labels = {0: {"TRASH"}, 1: {"DRAFT"}, 2: {"SPAM"}, 3: {"INBOX"}}
    mails = {number: archived(number, labels=frozenset(given)) for number, given in labels.items()}
    twice = archived(3, gmail_id="18aa", labels=frozenset({"INBOX"}))
    scene.store([*mails.values(), twice])
    plan = runs.plan(scene.archive, RestoreOrder.of(OWNER), scene.settings)
    assert (plan.messages, plan.left_out) == (2, 2)
    done = await scene.restore()
    assert done.run.left_out == 2
    found = {each.sha256: each.labels for each in scene.truth()}
    assert found == {sha256(mails[0].raw): frozenset(), sha256(mails[3].raw): frozenset({"INBOX"})}


@pytest.mark.req("IM-8")
async def test_more_than_the_cap_is_refused_in_words(scene: RestoreScene) -> None:
    scene.store([archived(number) for number in range(6)])
    scene.settings = RestoreSettings(max_messages=5)
    with pytest.raises(BadInput, match=r"query: finds more .* 5 messages .* restore\.max_messages"):
        runs.plan(scene.archive, RestoreOrder.of(OWNER), scene.settings)
    done = await scene.restore()  # mail that came meanwhile is found by the job
    assert done.run.state is RunState.FAILED
    assert "restore.max_messages" in str(done.run.reason)
    assert not scene.truth()


async def test_the_switch_holds_a_restore_up_and_a_stopped_one_goes_on(scene: RestoreScene) -> None:
    mails = [archived(number) for number in range(5)]
    scene.store(mails)
    await scene.database.write(lambda tx: kill_switch.turn_restore(tx, False, WHO, scene.clock.now()))
    run = await scene.begin()
    await scene.work(minutes=3)
    assert not scene.truth()
    await scene.change(runs.stop, run.id)
    await scene.database.write(lambda tx: kill_switch.turn_restore(tx, True, WHO, scene.clock.now()))
    await scene.work()
    assert (await scene.progress(run.id)).run.state is RunState.STOPPED
    await scene.change(runs.resume, run.id)
    await scene.work()
    assert_put_back(scene.sim, mails)
    entries = await scene.database.read(lambda tx: list_entries(tx, AuditFilter(subject_id=run.id)).entries)
    assert [each.action for each in entries] == ["restore.end", "restore.resume", "restore.stop", "restore.begin"]
    assert entries[0].after is not None
    assert entries[0].after["verified"] == 5


async def test_one_restore_at_a_time_and_a_proposal_waits_for_the_owner(scene: RestoreScene) -> None:
    scene.store([archived(0)])
    order = RestoreOrder.of(OWNER)
    proposed = await scene.database.write(lambda tx: runs.begin(tx, scene.queue, order, WHO, proposed="they asked"))
    other = await scene.database.write(lambda tx: runs.begin(tx, scene.queue, order, WHO, proposed="twice"))
    await scene.work()
    assert not scene.truth()
    await scene.change(runs.start, proposed.id)
    with pytest.raises(BadInput, match="being restored into already"):
        await scene.begin()
    with pytest.raises(BadInput, match="only one that is running"):
        await scene.change(runs.stop, other.id)
    await scene.work()
    assert len(scene.truth()) == 1
    assert (await scene.change(runs.reject, other.id)).state is RunState.REJECTED


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"account": "nobody"}, "account: 'nobody' is not an e-mail address"),
        ({"to_account": "who"}, "to_account: 'who' is not an e-mail address"),
        ({"query": "x" * 1_001}, "query: is longer"),
        ({"query": "frm:ann"}, "query: "),
        ({"folder": "  "}, "folder: must be a name"),
        ({"folder": "trash"}, "folder: trash is not a place"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        RestoreOrder.of(**{"account": OWNER, **given})


async def test_an_unknown_target_is_refused_and_changes_nothing(scene: RestoreScene) -> None:
    with pytest.raises(NotFound, match="to_account: there is no account"):
        await scene.begin(to_account="who@example.net")
    assert await scene.database.read(runs.list_runs) == []


async def test_a_message_that_the_archive_lost_fails_alone(scene: RestoreScene, tmp_path: Path) -> None:
    scene.store([archived(0), archived(1)])
    run = await scene.begin()
    found, after = runs.search_page(scene.archive, run.order, None)
    await scene.database.write(lambda tx: runs.add_items(tx, run, found, after, scene.clock.now()))
    store(tmp_path / "other", [archived(0)])
    scene.archive = FileArchive(tmp_path / "other")
    await scene.work()
    assert (await scene.progress(run.id)).counts == {ItemState.VERIFIED: 1, ItemState.FAILED: 1}
    [failed] = [item for item in await scene.items(run.id) if item.state is ItemState.FAILED]
    assert failed.detail == "it is no longer in the archive"
    assert len(scene.truth()) == 1


@pytest.mark.req("IM-8")
async def test_an_undo_in_the_middle_takes_back_what_was_added(
    scene: RestoreScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.store([archived(number) for number in range(30)])
    run = await scene.begin()
    append, appended = GmailMailbox.append, 0

    async def counted(self: GmailMailbox, *given: object) -> str:
        nonlocal appended
        appended += 1
        if appended == 5:
            await scene.change(runs.undo, run.id)
        return await append(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GmailMailbox, "append", counted)
    await scene.work()
    over = await scene.progress(run.id)
    assert over.run.state is RunState.UNDONE
    assert over.counts == {ItemState.TRASHED: 20, ItemState.PLANNED: 10}
    assert [each for each in scene.truth() if "TRASH" not in each.labels] == []


async def test_a_restore_whose_undo_was_cut_off_is_undone_and_does_not_go_on(scene: RestoreScene) -> None:
    scene.store([archived(number) for number in range(3)])
    run = (await scene.restore(query="in:anywhere")).run
    await scene.change(runs.undo, run.id)
    await scene.work()
    half_way = update(restore_runs).values(state=RunState.FAILED, reason="the mailbox was gone")
    await scene.database.write(lambda tx: tx.execute(half_way))
    assert not (await scene.progress(run.id)).can_go_on
    with pytest.raises(BadInput, match="its undo has begun"):
        await scene.change(runs.resume, run.id)
    await scene.change(runs.undo, run.id)
    await scene.work()
    assert (await scene.progress(run.id)).run.state is RunState.UNDONE


async def test_proposed_restores_of_one_assistant_are_few(scene: RestoreScene) -> None:
    scene.store([archived(0)])

    async def propose(who: Actor) -> None:
        order = RestoreOrder.of(OWNER)
        await scene.database.write(lambda tx: runs.begin(tx, scene.queue, order, who, proposed="again"))

    for _ in range(runs.MOST_PROPOSED):
        await propose(WHO)
    with pytest.raises(NotAllowed, match="need an answer first"):
        await propose(WHO)
    await propose(replace(WHO, name="another"))


async def test_a_run_whose_job_is_over_gets_it_again_and_a_cancelled_one_stops(scene: RestoreScene) -> None:
    """A worker that dies over a job counts as an attempt, and attempts are limited."""
    scene.store([archived(0)])
    run = await scene.begin()

    async def job_is(state: str) -> None:
        change = update(jobs).values(state=state, ready=False, finished_at=scene.clock.now())
        await scene.database.write(lambda tx: tx.execute(change))

    await job_is("failed")
    assert await scene.database.write(lambda tx: runs.revive(tx, scene.queue)) == 1
    assert await scene.database.write(lambda tx: runs.revive(tx, scene.queue)) == 0
    await job_is("canceled")
    assert await scene.database.write(lambda tx: runs.revive(tx, scene.queue)) == 1
    assert (await scene.progress(run.id)).run.state is RunState.STOPPED
    await scene.change(runs.resume, run.id)
    await scene.work()
    assert len(scene.truth()) == 1
