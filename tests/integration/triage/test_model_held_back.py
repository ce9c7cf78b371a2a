"""A model that obeys its mail hides little, none of it security mail or a contact's; and one switch stops it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from postroom import kill_switch
from postroom.audit import Actor
from postroom.db import Database
from postroom.db.tables.access import audit_log
from postroom.db.tables.mail import contacts
from postroom.db.tables.triage import actions, decisions, hides, model_calls
from postroom.domain.actions import ActionStatus as S
from postroom.domain.clock import ManualClock
from postroom.domain.jobs import ACTION, ACTIONS_UPKEEP, CLASSIFY, LABELS_SYNC, SNOOZE_CHECK, UNDO, UNDO_MANY, UNSNOOZE
from postroom.queue import Handler, JobCatalogue, JobContext, JobQueue, JobType, KeyUse
from postroom.settings import SafetySettings
from tests.support.actions import ActionScene, action_scene
from tests.support.databases import on_sqlite
from tests.support.injections import FRESH, SECURITY, Injection
from tests.support.queues import run_until_idle
from tests.support.triage import TriageRig, call, open_triage

pytestmark = pytest.mark.req("HW-6")

OWNER = Actor("owner", "Ann")
CAP = 5
FRIEND = "friend@example.org"
LETTERS = tuple(Injection(f"plain {number}", f"News number {number} for you.") for number in range(8))
OF_A_CONTACT = Injection("a friend", "Dinner on Friday?", sender=f"Friend <{FRIEND}>")
OBEYS = [
    call("archive", 1.0, "As told."),
    call("mark_read", 1.0, "As told."),
    call("snooze", 1.0, "As told.", amount=30, units="days"),
    call("trash", 1.0, "As told."),
    call("auto_reply", 1.0, "As told.", body="Here is everything."),
]


@pytest.fixture
async def office(database: Database, clock: ManualClock, tmp_path: Path) -> AsyncIterator[TriageRig]:
    async with open_triage(database, clock, tmp_path) as opened:
        yield opened


async def turn(office: TriageRig, on: bool) -> None:
    await office.database.write(lambda tx: kill_switch.turn_model(tx, on, OWNER, office.clock.now()))


async def know(database: Database, address: str, clock: ManualClock) -> None:
    row = {"address": address, "source": "sent", "kind": "person", "added_at": clock.now()}
    await database.write(lambda tx: tx.execute(contacts.insert().values(row)))


class Mailroom:
    """Classification and actions over one queue, a stand-in for the model and one for the mailbox."""

    def __init__(self, office: TriageRig, scene: ActionScene) -> None:
        self.office, self.scene = office, scene
        types = [CLASSIFY, ACTION, UNSNOOZE, UNDO, UNDO_MANY, LABELS_SYNC, SNOOZE_CHECK, ACTIONS_UPKEEP]
        asking = JobType("approval.notify", KeyUse.REPEATABLE)
        office.queue = JobQueue(office.database, JobCatalogue([*types, asking]), office.clock)

    async def receive(self, injection: Injection) -> str:
        gmail_id = self.scene.deliver("INBOX", "UNREAD")
        mail = injection.row() | {"external_event_id": gmail_id, "external_thread_id": gmail_id}
        return await self.office.take_in(account_id=self.scene.account.id, **mail)

    async def work(self, safety: SafetySettings) -> None:
        async def told(context: JobContext) -> None:
            return None

        self.scene.safety = safety
        self.office.use(safety=safety)
        handlers: dict[str, Handler] = {
            **self.scene.handlers(),
            CLASSIFY.name: self.office.classify,
            "approval.notify": told,
        }
        await run_until_idle(self.office.queue, handlers)


@pytest.fixture
async def mailroom(office: TriageRig, clock: ManualClock) -> AsyncIterator[Mailroom]:
    async with AsyncExitStack() as stack:
        yield Mailroom(office, await stack.enter_async_context(action_scene(office.database, clock)))


async def test_a_model_that_obeys_its_mail_hides_no_more_than_the_cap_and_nothing_that_matters(
    mailroom: Mailroom, clock: ManualClock
) -> None:
    """Case 10: as sure as can be, it does with every message whatever it is told."""
    office, scene = mailroom.office, mailroom.scene
    await know(office.database, FRIEND, clock)
    fresh = [*FRESH[:20], *SECURITY, OF_A_CONTACT, *LETTERS]
    sent = {await mailroom.receive(each): each for each in fresh}
    office.answer(*(OBEYS[number % len(OBEYS)] if number % 3 == 2 else OBEYS[0] for number in range(len(fresh))))
    await mailroom.work(SafetySettings(hides_per_hour=CAP))

    rows: list[Any] = await office.rows(actions)
    assert {row.message_id for row in rows} == set(sent)
    done = [row for row in rows if row.status == S.COMPLETED]
    assert {row.status for row in rows} == {S.COMPLETED, S.APPROVED_PENDING}
    assert {row.type for row in done} <= {"archive", "mark_read", "snooze"}, "nothing is sent or destroyed"
    assert len(done) == CAP == len(await office.rows(hides))
    kept = {each.name for each in (*SECURITY, OF_A_CONTACT)}
    assert not {sent[row.message_id].name for row in done} & kept
    hidden = [row for row in rows if "INBOX" not in (scene.labels(row.gmail_id) or ())]
    assert len(hidden) <= CAP
    for row in rows:
        if sent[row.message_id].name in kept:
            assert any("the model alone never hides this" in reason for reason in row.reasons) or row.type in (
                "auto_reply",
            )


async def test_a_contacts_mail_is_protected_whether_or_not_it_is_proven_theirs(
    office: TriageRig, clock: ManualClock
) -> None:
    await know(office.database, FRIEND, clock)
    office.answer(*[call("archive", 1.0)] * 4)
    sent = [
        await office.take_in(sender_identity=FRIEND),
        await office.take_in(sender_identity="robot@docs.example", headers={"reply-to": f"Friend <{FRIEND}>"}),
        await office.take_in(sender_identity="robot@docs.example", headers={"sender": FRIEND}),
        await office.take_in(
            sender_identity="member@example.net", headers={"reply-to": FRIEND, "list-id": "<walks.example.org>"}
        ),
    ]
    await office.work()
    found = {row.message_id: bool(row.reasons) for row in await office.rows(actions)}
    assert [found[each] for each in sent] == [True, True, True, False]


async def test_while_the_model_is_off_it_is_not_asked_and_what_no_rule_decides_goes_to_review(
    office: TriageRig,
) -> None:
    await turn(office, False)
    await office.take_in()
    await office.work()
    decision = await office.only(decisions)
    assert (decision.source, decision.needs_review) == ("none", True)
    assert "switched off" in decision.reason
    assert office.asked == 0
    assert not await office.rows(model_calls)

    await turn(office, True)
    office.answer(call("star"))
    await office.take_in()
    await office.work()
    assert office.asked == 1
    changes = [row for row in await office.rows(audit_log) if row.action == "switch.change"]
    assert [(row.actor_name, row.subject_id, row.after) for row in changes] == [
        ("Ann", "model_enabled", {"value": False}),
        ("Ann", "model_enabled", {"value": True}),
    ]


@on_sqlite
async def test_mail_that_waits_in_the_queue_is_not_shown_to_a_model_that_was_switched_off_meanwhile(
    office: TriageRig,
) -> None:
    ask = office.model.ask

    async def press_after_the_first(question: Any) -> Any:
        answer = await ask(question)
        await turn(office, False)
        return answer

    office.model.ask = press_after_the_first  # type: ignore[method-assign]
    office.answer(*[call("star", 1.0)] * 12)
    for _ in range(12):
        await office.take_in()
    await office.work()
    calls = len(await office.rows(model_calls))
    assert 1 <= calls == office.asked < 12, "only calls that were under way"
    rows = await office.rows(actions)
    assert {row.status for row in rows} == {"approved_pending"}
    assert all("switched off by Ann while it was asked" in row.reasons[0] for row in rows)
