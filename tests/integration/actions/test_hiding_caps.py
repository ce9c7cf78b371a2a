"""What hides mail without a person is capped by account and hour, at the moment it begins; then a person is asked."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Executable, select, update

from postroom import kill_switch
from postroom.actions import approvals, lifecycle, running, scheduling, undo
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.lifecycle import Action, NewAction
from postroom.db import Database, Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, hides
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import Origin, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.ids import new_id
from postroom.settings import SafetySettings
from tests.support.actions import A_TEST, ActionScene, make_account, make_message
from tests.support.dashboard_data import add_decision
from tests.support.databases import on_sqlite

pytestmark = pytest.mark.req("HW-6")


async def hide(scene: ActionScene, *names: str, **columns: Any) -> list[Action]:
    """The model wants each of these done to new mail; how they stand once the worker is idle."""
    ids = []
    for name in names:
        mail = await scene.message("INBOX", "UNREAD", "STARRED", "Label_7")
        if columns:
            changed = update(messages).where(messages.c.id == mail[1]).values(**columns)
            await scene.database.write(partial(_run, changed))
        ids += await add_decision(scene, mail, name)
    await scene.work()
    return [await scene.action(each) for each in ids]


def _run(statement: Executable, tx: Tx) -> None:
    tx.execute(statement)


def _order(new: NewAction, now: datetime, tx: Tx) -> str:
    return lifecycle.insert_action(tx, new, now)


def _take(action_id: str, now: datetime, safety: SafetySettings, tx: Tx) -> running.Taken:
    return running.take(tx, action_id, new_id(), now, safety)


def statuses(found: list[Action]) -> list[str]:
    return [str(each.status) for each in found]


@pytest.mark.parametrize("most", [0, 2])
async def test_over_the_cap_a_person_is_asked_and_told_why(scene: ActionScene, most: int) -> None:
    scene.safety = SafetySettings(hides_per_hour=most)
    found = await hide(scene, *["archive", "mark_read", "archive", "unstar"][: most + 2])
    assert sorted(statuses(found)) == ["approved_pending"] * 2 + ["completed"] * most
    asking = [each for each in found if each.status is S.APPROVED_PENDING]
    asked = asking[-1]
    [reason] = asked.reasons
    assert reason.startswith("2 messages were hidden" if most else "no message is hidden")
    assert "safety.hides_per_hour" in reason
    assert asked.expires_at == scene.clock.now() + timedelta(days=7)
    assert "INBOX" in (scene.labels(asked.gmail_id) or ())
    waiting = await scene.database.read(lambda tx: approvals.list_questions(tx))
    assert [each.action.id for each in waiting] == [each.id for each in asking]


async def test_what_a_person_approves_is_done_and_takes_nothing_from_the_cap(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=1)
    await hide(scene, "archive")
    [asked] = await hide(scene, "archive")
    await scene.database.write(lambda tx: approvals.answer(tx, scene.queue, asked.id, ApprovalVerdict.APPROVE, A_TEST))
    await scene.work()
    assert (await scene.action(asked.id)).status is S.COMPLETED
    assert len(await scene.database.read(lambda tx: tx.execute(select(hides)).all())) == 1


async def test_an_approval_is_taken_back_after_the_action_was_done_and_asked_anew_before(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=0)
    [early], [late] = await hide(scene, "archive"), await hide(scene, "archive")
    for asked in (early, late):
        approve = partial(approvals.answer, queue=scene.queue, action_id=asked.id)
        await scene.database.write(partial(approve, verdict=ApprovalVerdict.APPROVE, who=A_TEST))
    await scene.database.write(lambda tx: undo.take_back(tx, scene.queue, early.id, A_TEST))
    await scene.work()
    assert [(await scene.action(each.id)).status for each in (early, late)] == [S.APPROVED_PENDING, S.COMPLETED]
    assert "INBOX" in (scene.labels(early.gmail_id) or ())
    assert "INBOX" not in (scene.labels(late.gmail_id) or ())
    taken = await scene.database.write(lambda tx: undo.take_back(tx, scene.queue, late.id, A_TEST))
    await scene.work()
    assert taken == "is being undone"
    assert "INBOX" in (scene.labels(late.gmail_id) or ())


async def test_an_hour_later_there_is_room_again_and_not_before(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=1)
    assert statuses(await hide(scene, "archive")) == ["completed"]
    scene.clock.advance(3_599)
    assert statuses(await hide(scene, "archive")) == ["approved_pending"]
    scene.clock.advance(1)
    assert statuses(await hide(scene, "archive")) == ["completed"]


async def test_undoing_a_hide_gives_nothing_back_within_the_hour(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=1)
    [done] = await hide(scene, "archive")
    assert (await scene.undo(done.id)).status is S.COMPLETED
    assert statuses(await hide(scene, "archive")) == ["approved_pending"]


@on_sqlite
async def test_mail_of_a_backfill_is_counted_apart(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=1, backfill_hides_per_hour=2)
    old = await hide(scene, "archive", "archive", "archive", backfill_job_id=new_id())
    assert sorted(statuses(old)) == ["approved_pending", "completed", "completed"]
    [asked] = [each for each in old if each.status is S.APPROVED_PENDING]
    assert "from a backfill" in asked.reasons[0]
    assert sorted(statuses(await hide(scene, "archive", "archive"))) == ["approved_pending", "completed"]


@on_sqlite
async def test_what_hides_nothing_and_what_a_person_wants_are_not_counted(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=0)
    assert statuses(await hide(scene, "star")) == ["completed"]
    _, own = await scene.do("archive", "INBOX")
    assert own.status is S.COMPLETED


@on_sqlite
@pytest.mark.parametrize("type", ["archive", "snooze", "mark_read", "trash", "apply_label", "remove_label"])
async def test_every_way_of_hiding_counts_by_what_it_comes_to(scene: ActionScene, type: str) -> None:
    scene.safety = SafetySettings(hides_per_hour=0, dangerous_actions="")
    parameters = {
        "snooze": {"amount": 1, "units": "hours"},
        "apply_label": {"label": "CATEGORY_PROMOTIONS"},
        "remove_label": {"label": "inbox"},
    }.get(type)
    gmail_id, message_id = await scene.message("INBOX")
    new = NewAction(scene.account.id, gmail_id, parse_action(type, parameters), Origin.MODEL, "model x", message_id)

    def order(tx: Tx) -> str:
        action_id = lifecycle.insert_action(tx, new, scene.clock.now())
        scheduling.enqueue(tx, scene.queue, lifecycle.get_action(tx, action_id), scene.clock.now())
        return action_id

    action_id = await scene.database.write(order)
    await scene.work()
    assert (await scene.action(action_id)).status is S.APPROVED_PENDING


async def test_the_owners_rules_are_not_capped(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=0)
    gmail_id, message_id = await scene.message("INBOX")
    ids = await add_decision(scene, (gmail_id, message_id), "archive")
    await scene.database.write(lambda tx: tx.execute(update(actions).values(origin="rule")))
    await scene.work()
    assert (await scene.action(ids[0])).status is S.COMPLETED


async def test_an_action_that_asks_lets_the_next_on_its_message_begin(scene: ActionScene) -> None:
    scene.safety = SafetySettings(hides_per_hour=0)
    mail = await scene.message("INBOX")
    [asks] = await add_decision(scene, mail, "archive")
    own = await scene.want(mail[0], "star")
    await scene.work()
    assert (await scene.action(asks)).status is S.APPROVED_PENDING
    assert (await scene.action(own)).status is S.COMPLETED


async def test_while_the_model_is_off_whatever_it_wanted_asks(scene: ActionScene) -> None:
    mail = await scene.message("INBOX")
    ids = await add_decision(scene, mail, "star")
    await scene.database.write(lambda tx: kill_switch.turn_model(tx, False, A_TEST, scene.clock.now()))
    await scene.work()
    found = await scene.action(ids[0])
    assert found.status is S.APPROVED_PENDING
    assert "the model is switched off by a test" in found.reasons[0]
    await scene.database.write(lambda tx: approvals.answer(tx, scene.queue, found.id, ApprovalVerdict.APPROVE, A_TEST))
    await scene.work()
    assert (await scene.action(found.id)).status is S.COMPLETED


# ---- whatever the order, however many at once

CAP = 4
STEPS = st.lists(st.tuples(st.integers(0, 2_400), st.integers(1, 7)), min_size=2, max_size=5)


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, lanes=st.lists(st.booleans(), min_size=1, max_size=5))
async def test_in_no_hour_are_more_hidden_than_the_cap_however_many_begin_at_once(
    database: Database, clock: ManualClock, steps: list[tuple[int, int]], lanes: list[bool]
) -> None:
    safety = SafetySettings(hides_per_hour=CAP, backfill_hides_per_hour=CAP - 1)
    address = f"{new_id()}@example.org"
    account = await make_account(database, clock, address, "http://127.0.0.1:1")
    job, began, number = new_id(), list[tuple[datetime, bool]](), 0
    for seconds, many in steps:
        clock.advance(seconds)
        waiting = []
        for _ in range(many):
            number += 1
            old = lanes[number % len(lanes)]
            message_id = await make_message(
                database, clock, account, f"{number:x}", backfill_job_id=job if old else None
            )
            new = NewAction(account.id, f"{number:x}", parse_action("archive"), Origin.MODEL, "model x", message_id)
            waiting.append((await database.write(partial(_order, new, clock.now())), old))
        at = clock.now()
        taken = await asyncio.gather(*(database.write(partial(_take, each, at, safety)) for each, _ in waiting))
        began += [(clock.now(), old) for got, (_, old) in zip(taken, waiting, strict=True) if isinstance(got, Action)]
        lately = [old for begun, old in began if begun > at - timedelta(hours=1)]
        room = {old: lately.count(old) for old in (True, False)}
        assert room[False] <= CAP
        assert room[True] <= CAP - 1
        left = [old for got, (_, old) in zip(taken, waiting, strict=True) if not isinstance(got, Action)]
        assert all(room[old] == (CAP - 1 if old else CAP) for old in left), "asked although there was room"
