"""A rule on past mail: capped, resumable, in the lane of history, and undone as one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from postroom.actions import undo
from postroom.actions.requests import find_target, request_action
from postroom.actions.scheduling import ActionIntake
from postroom.app.owner_tools.rule_tools import undo_application
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.db import Database, Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.jobs import ACTION, CATALOGUE, RULES_APPLY, UNDO_MANY
from postroom.queue import JobQueue, QueueName
from postroom.settings import SafetySettings
from postroom.sim.gmail.faults import GmailFault
from postroom.triage.rules import applying
from postroom.triage.rules.applying import ApplicationState, PastMail, RuleApplication, RuleApplier
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support.actions import A_TEST, ActionScene, action_scene, rows_of
from tests.support.mail import letter
from tests.support.queues import run_until_idle

pytestmark = pytest.mark.req("JB-15", "JB-19")


@dataclass
class PastMailScene:
    scene: ActionScene
    archive: FileArchive

    async def old_mail(self, count: int, sender: str = "shop@shop.example", **more: Any) -> list[str]:
        """Mail in the mailbox and in the archive that was never taken in, the oldest first."""
        ids, mails = [], []
        for number in range(count):
            raw = letter(f"Offer {number}", sender=sender, headers={"Message-ID": f"<{sender}.{number}@x>"})
            gmail_id = self.scene.sim.control.deliver(raw, frozenset({"INBOX"}))
            received = self.scene.clock.now() - timedelta(days=100 - number)
            labels = frozenset({"INBOX"})
            mails.append(IncomingMail(raw, Provenance.API, gmail_id, gmail_id, labels, received))
            ids.append(gmail_id)
        with self.archive.writer("a test") as writer:
            writer.store(self.scene.account.email, mails)
        return ids

    async def rule(self, *wanted: str, name: str = "Shops") -> StoredRule:
        data = {"name": name, "condition": {"sender_domain": "shop.example"}, "actions": list(wanted or ["archive"])}
        now = self.scene.clock.now()
        return await self.scene.database.write(lambda tx: add_rule(tx, parse_draft(data), A_TEST, now))

    async def apply(self, rule: StoredRule, **mail: Any) -> str:
        wanted = PastMail(**mail)
        total, queue = wanted.count(self.archive), self.scene.queue
        begun = await self.scene.database.write(lambda tx: applying.begin(tx, queue, rule, wanted, total, A_TEST))
        return begun.id

    async def work(self, applier: Any = None) -> None:
        own = applier or RuleApplier(self.archive, ActionIntake(self.scene.queue, SafetySettings()))
        await run_until_idle(self.scene.queue, {**self.scene.handlers(), RULES_APPLY.name: own})

    async def application(self, application_id: str) -> RuleApplication:
        return await self.scene.database.read(lambda tx: applying.get_application(tx, application_id))

    def in_inbox(self, ids: list[str]) -> list[str]:
        return [each for each in ids if "INBOX" in (self.scene.labels(each) or ())]


@asynccontextmanager
async def past_mail(database: Database, clock: ManualClock, folder: Path) -> AsyncIterator[PastMailScene]:
    async with action_scene(database, clock) as scene:
        scene.queue = JobQueue(database, CATALOGUE, clock)
        yield PastMailScene(scene, FileArchive(folder / "archive"))


@pytest.fixture
async def past(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[PastMailScene]:
    async with past_mail(database, clock, tmp_path) as opened:
        yield opened


async def test_a_rule_acts_on_archived_mail_that_is_still_in_the_mailbox_and_on_no_other(past: PastMailScene) -> None:
    offers, others = await past.old_mail(5), await past.old_mail(3, "ann@friends.example")
    with past.archive.writer("a test") as writer:
        writer.mark_deleted(past.scene.account.email, [offers[0]], past.scene.clock.now())
    application_id = await past.apply(await past.rule())
    await past.work()
    found = await past.application(application_id)
    assert (found.state, found.total, found.looked_at) == (ApplicationState.COMPLETED, 8, 8)
    assert (found.acted_on, found.left_alone) == (4, 1)
    assert past.in_inbox(offers[1:]) == []
    assert past.in_inbox(others) == others
    rows = await rows_of(past.scene.database, actions)
    assert {row.subject for row in rows} == {f"Offer {number}" for number in range(1, 5)}
    lanes = select(jobs.c.queue_name).where(jobs.c.type.in_((ACTION.name, RULES_APPLY.name)))
    found_lanes = await past.scene.database.read(lambda tx: set(tx.execute(lanes).scalars()))
    assert found_lanes == {QueueName.HISTORY}


async def test_a_search_chooses_the_mail_and_the_cap_ends_it_until_it_goes_on(past: PastMailScene) -> None:
    offers = await past.old_mail(6)
    application_id = await past.apply(await past.rule(), query="-subject:5", cap=2)
    await past.work()
    found = await past.application(application_id)
    assert (found.state, found.acted_on, found.total) == (ApplicationState.CAPPED, 2, 5)
    assert past.in_inbox(offers) == [*offers[:3], offers[5]]  # newest first
    with pytest.raises(BadInput, match="must be above 2"):
        await past.scene.database.write(lambda tx: applying.resume(tx, past.scene.queue, application_id, 2, A_TEST))
    await past.scene.database.write(lambda tx: applying.resume(tx, past.scene.queue, application_id, 100, A_TEST))
    await past.work()
    found = await past.application(application_id)
    assert (found.state, found.acted_on, found.looked_at) == (ApplicationState.COMPLETED, 5, 5)
    assert past.in_inbox(offers) == [offers[5]]
    assert len(await rows_of(past.scene.database, actions)) == 5


async def test_it_is_undone_as_one_and_can_then_be_applied_again(past: PastMailScene) -> None:
    offers = await past.old_mail(3)
    rule = await past.rule("archive", "star")
    first = await past.apply(rule)
    await past.work()
    assert past.in_inbox(offers) == []
    again = await past.apply(rule)
    await past.work()
    assert (await past.application(again)).left_alone == 3
    queue = past.scene.queue
    await past.scene.database.write(lambda tx: undo_application(tx, queue, first, A_TEST))
    await past.work()
    assert past.in_inbox(offers) == offers
    assert not any("STARRED" in (past.scene.labels(each) or ()) for each in offers)
    third = await past.apply(rule)
    await past.work()
    assert (await past.application(third)).acted_on == 3
    assert past.in_inbox(offers) == []


async def test_an_undo_cancels_what_has_not_begun(past: PastMailScene) -> None:
    offers = await past.old_mail(3)
    application_id = await past.apply(await past.rule())
    applier = RuleApplier(past.archive, ActionIntake(past.scene.queue, SafetySettings()))
    await run_until_idle(past.scene.queue, {RULES_APPLY.name: applier, ACTION.name: _later})
    queue = past.scene.queue
    _, canceled = await past.scene.database.write(lambda tx: undo_application(tx, queue, application_id, A_TEST))
    assert canceled == 3
    await past.work()
    assert past.in_inbox(offers) == offers
    assert {row.status for row in await rows_of(past.scene.database, actions)} == {ActionStatus.CANCELED}


async def test_an_undo_of_many_is_no_long_transaction(past: PastMailScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undo, "_AT_ONCE", 2)
    offers = await past.old_mail(5)
    application_id = await past.apply(await past.rule())
    applier = RuleApplier(past.archive, ActionIntake(past.scene.queue, SafetySettings()))
    await run_until_idle(past.scene.queue, {RULES_APPLY.name: applier, ACTION.name: _later})
    queue, database = past.scene.queue, past.scene.database
    _, canceled = await database.write(lambda tx: undo_application(tx, queue, application_id, A_TEST))
    assert canceled == 5
    assert [row.status for row in await rows_of(database, actions)].count(ActionStatus.CANCELED) == 2
    await past.work()
    assert past.in_inbox(offers) == offers
    assert {row.status for row in await rows_of(database, actions)} == {ActionStatus.CANCELED}


async def test_an_undo_also_takes_back_what_was_at_work_when_it_was_asked_for(past: PastMailScene) -> None:
    offers = await past.old_mail(2)
    application_id = await past.apply(await past.rule())
    rule = past.scene.fail("messages.modify", GmailFault(kind="error", code=503, reason="backendError"))
    await past.work()
    assert {row.status for row in await rows_of(past.scene.database, actions)} == {ActionStatus.EXECUTING}
    queue = past.scene.queue
    await past.scene.database.write(lambda tx: undo_application(tx, queue, application_id, A_TEST))
    await past.work()
    past.scene.sim.control.clear_faults(rule)
    past.scene.clock.advance(60)
    await past.work()
    past.scene.clock.advance(60)
    await past.work()
    assert past.in_inbox(offers) == offers
    assert (await past.application(application_id)).state is ApplicationState.UNDONE
    with pytest.raises(BadInput, match="is undone"):
        await past.scene.database.write(lambda tx: applying.resume(tx, queue, application_id, None, A_TEST))


async def test_what_ends_while_an_undo_looks_for_it_is_looked_for_again(
    past: PastMailScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await past.old_mail(2)
    application_id = await past.apply(await past.rule())
    past.scene.fail("messages.modify", GmailFault(kind="error", code=503, reason="backendError"))
    await past.work()
    ask = undo._ask

    def ends_just_after(tx: Tx, **given: Any) -> Any:
        found = ask(tx, **given)
        tx.execute(update(actions).values(status=ActionStatus.COMPLETED, finished_at=past.scene.clock.now()))
        return found

    monkeypatch.setattr(undo, "_ask", ends_just_after)
    queue = past.scene.queue
    await past.scene.database.write(lambda tx: undo_application(tx, queue, application_id, A_TEST))
    await past.work()
    [job] = [row for row in await rows_of(past.scene.database, jobs) if row.type == UNDO_MANY.name]
    assert (job.state, job.not_before) == ("queued", past.scene.clock.now() + timedelta(seconds=20))


async def _later(context: Any) -> None:
    raise Retryable("not now", retry_after=timedelta(hours=1))


async def test_a_crash_between_pages_orders_nothing_twice(past: PastMailScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(applying, "_PAGE", 2)
    offers = await past.old_mail(5)
    application_id = await past.apply(await past.rule())
    intake = ActionIntake(past.scene.queue, SafetySettings())

    class Dying:
        calls = 0

        def accept(self, tx: Any, order: Any) -> list[str]:
            self.calls += 1
            if self.calls >= 4:
                raise Retryable("the database went away")
            return intake.accept(tx, order)

    await past.work(RuleApplier(past.archive, Dying()))
    assert (await past.application(application_id)).acted_on == 2
    past.scene.clock.advance(600)
    await past.work()
    found = await past.application(application_id)
    assert (found.state, found.acted_on, found.looked_at) == (ApplicationState.COMPLETED, 5, 5)
    assert len(await rows_of(past.scene.database, actions)) == 5
    assert past.in_inbox(offers) == []


async def test_one_that_was_stopped_does_no_more(past: PastMailScene) -> None:
    await past.old_mail(3)
    application_id = await past.apply(await past.rule())
    await past.scene.database.write(lambda tx: applying.stop(tx, past.scene.queue, application_id, A_TEST))
    await past.work()
    found = await past.application(application_id)
    assert (found.state, found.acted_on) == (ApplicationState.STOPPED, 0)


async def test_a_rule_that_sends_mail_and_one_under_way_are_refused(past: PastMailScene) -> None:
    replies = {"type": "auto_reply", "body": "Hello."}
    data = {"name": "Replies", "condition": {"sender_domain": "shop.example"}, "actions": [replies]}
    now = past.scene.clock.now()
    sends = await past.scene.database.write(lambda tx: add_rule(tx, parse_draft(data), A_TEST, now))
    with pytest.raises(BadInput, match="sends mail"):
        await past.apply(sends)
    rule = await past.rule()
    await past.apply(rule)
    with pytest.raises(BadInput, match="being applied already"):
        await past.apply(rule)


async def test_a_dry_run_counts_and_changes_nothing(past: PastMailScene) -> None:
    offers = await past.old_mail(4)
    rule, now = await past.rule(), past.scene.clock.now()
    shown: list[int] = []
    found = await applying.preview(past.scene.database, past.archive, rule, PastMail(), now, shown.append)
    assert (found.looked_at, found.can_act, sum(shown)) == (4, 4, 4)
    await past.work()
    assert past.in_inbox(offers) == offers


@pytest.mark.parametrize("action", ["archive", "snooze"])
async def test_a_person_acts_on_mail_that_was_only_archived(past: PastMailScene, action: str) -> None:
    [gmail_id] = await past.old_mail(1)
    target = await find_target(past.scene.database, past.archive, gmail_id)
    assert target.message_id is None
    wanted = parse_action(action, {"amount": 1, "units": "hours"} if action == "snooze" else None)
    queue = past.scene.queue
    action_id = await past.scene.database.write(lambda tx: request_action(tx, queue, target, wanted, A_TEST))
    await past.work()
    assert (await past.scene.action(action_id)).status is ActionStatus.COMPLETED
    assert past.in_inbox([gmail_id]) == []
    if action == "snooze":
        past.scene.clock.advance(3_700)
        await past.work()
        assert past.in_inbox([gmail_id]) == [gmail_id]


async def test_mail_that_left_the_mailbox_or_was_never_in_one_is_refused_with_the_reason(past: PastMailScene) -> None:
    [gmail_id] = await past.old_mail(1)
    with past.archive.writer("a test") as writer:
        writer.mark_deleted(past.scene.account.email, [gmail_id], past.scene.clock.now())
        stored = writer.store("other@example.org", [IncomingMail(letter("Old"), Provenance.IMPORT)])
    with pytest.raises(BadInput, match="deleted from the mailbox"):
        await find_target(past.scene.database, past.archive, gmail_id)
    with pytest.raises(BadInput, match="not connected"):
        await find_target(past.scene.database, past.archive, stored[0].key)
