"""Snoozed mail comes back: its wake-up stands before it is hidden, and neither haste nor change loses it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from postroom.actions import snoozes as waking
from postroom.actions.snoozes import SnoozeState
from postroom.db.tables.access import audit_log
from postroom.db.tables.queue import job_steps, jobs
from postroom.db.tables.triage import snoozes
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTIONS_UPKEEP
from postroom.queue import CancelOutcome, NewJob
from postroom.settings import GmailSettings
from postroom.sim.gmail.faults import GmailFault
from tests.support.actions import A_TEST, ActionScene, rows_of
from tests.support.databases import on_sqlite
from tests.support.queues import record_of

TWO_HOURS = {"amount": 2, "units": "hours"}
BROKEN = GmailFault(kind="error", code=503)
MEANWHILE = {
    "deleted": None,
    "label taken off": {"INBOX"},
    "label gone": {"INBOX"},
    "in the inbox": {"INBOX"},
    "trashed": {"TRASH"},
}
"""What can happen to a sleeping message, and its labels after it was woken."""


async def label_id(scene: ActionScene) -> str:
    return {label.name: label.id for label in await scene.client.list_labels()}["Postroom/Snoozed"]


@pytest.mark.req("JB-13", "JB-7")
async def test_a_snoozed_message_is_hidden_until_its_time(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", "UNREAD", **TWO_HOURS)
    label, until = await label_id(scene), scene.clock.now() + timedelta(hours=2)
    assert scene.labels(gmail_id) == {"UNREAD", label}
    snooze = await scene.snooze(action.id)
    assert (snooze.until, snooze.label_id, snooze.state) == (until, label, SnoozeState.WAITING)
    wake = await record_of(scene.queue, snooze.job_id)
    assert wake.key == f"unsnooze.gmail:{scene.account.id}:{action.id}"
    assert wake.payload == {
        "account_id": scene.account.id,
        "message_id": action.message_id,
        "action_id": action.id,
        "snooze_label_id": label,
    }
    assert action.undo_hint == {
        "action": "snooze",
        "inverse_action": "unsnooze",
        "inverse_parameters": {
            "cancel_unsnooze_job_id": wake.id,
            "add_labels": ["INBOX"],
            "remove_labels": [label],
        },
        "irreversible": False,
        "snooze_until": until.isoformat(),
        "snooze_label": "Postroom/Snoozed",
        "snooze_label_id": label,
        "unsnooze_job_id": wake.id,
    }
    scene.clock.advance(2 * 3_600 - 1)
    await scene.work()
    assert scene.labels(gmail_id) == {"UNREAD", label}
    scene.clock.advance(1)
    await scene.work()
    assert scene.labels(gmail_id) == {"UNREAD", "INBOX"}
    assert (await scene.snooze(action.id)).state is SnoozeState.WOKEN


@pytest.mark.req("JB-13")
async def test_the_wake_up_stands_before_the_mail_is_hidden(scene: ActionScene) -> None:
    fault = scene.fail("messages.modify", BROKEN)
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    assert (action.status, scene.labels(gmail_id)) == (S.EXECUTING, {"INBOX"})
    wake = await record_of(scene.queue, (await scene.snooze(action.id)).job_id)
    assert wake.not_before == scene.clock.now() + timedelta(hours=2)
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(60)
    await scene.work()
    assert (await scene.action(action.id)).status is S.COMPLETED
    assert len(await rows_of(scene.database, snoozes)) == 1, "the second try found the wake-up of the first"


@on_sqlite
async def test_a_snooze_whose_answer_was_lost_wakes_even_though_it_failed(scene: ActionScene) -> None:
    scene.fail("messages.modify", GmailFault(kind="error", code=503, after_effect=True))
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "snooze", amount=9, units="days")
    for _ in range(20):
        await scene.work()
        scene.clock.advance(3_600)
    assert (await scene.action(action_id)).status is S.FAILED
    assert "INBOX" not in (scene.labels(gmail_id) or ())
    scene.sim.control.clear_faults()
    scene.clock.advance(9 * 86_400)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


@on_sqlite
async def test_a_snooze_that_never_took_hold_brings_nothing_back(scene: ActionScene) -> None:
    scene.fail("messages.modify", GmailFault(kind="error", code=403, reason="domainPolicy"))
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    assert action.status is S.FAILED
    scene.sim.control.clear_faults()
    await scene.client.modify_message(gmail_id, remove=["INBOX"])
    scene.clock.advance(3 * 3_600)
    await scene.work()
    assert scene.labels(gmail_id) == frozenset(), "its owner archived it, and so it stays"


@on_sqlite
async def test_a_time_in_the_past_wakes_at_once(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    past = scene.clock.now() - timedelta(days=3)
    action_id = await scene.want(gmail_id, "snooze", until=past.isoformat())
    await scene.work()
    scene.clock.advance(10)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}
    assert (await scene.snooze(action_id)).state is SnoozeState.WOKEN
    assert (await scene.action(action_id)).status is S.COMPLETED


@on_sqlite
async def test_a_wake_up_that_comes_before_the_hiding_waits_for_it(scene: ActionScene) -> None:
    fault = scene.fail("messages.modify", BROKEN)
    gmail_id, action = await scene.do("snooze", "INBOX", amount=1, units="minutes")
    scene.clock.advance(60)
    await scene.work()
    assert (await scene.snooze(action.id)).state is SnoozeState.WAITING
    scene.sim.control.clear_faults(fault)
    await scene.work_through()
    assert scene.labels(gmail_id) == {"INBOX"}
    assert (await scene.snooze(action.id)).state is SnoozeState.WOKEN


@pytest.mark.req("JB-13")
async def test_waking_takes_things_as_they_are(scene: ActionScene) -> None:
    asleep = {case: await scene.do("snooze", "INBOX", **TWO_HOURS) for case in MEANWHILE}
    label, client = await label_id(scene), scene.client
    ids = {case: gmail_id for case, (gmail_id, _) in asleep.items()}
    await client.delete_message(ids["deleted"])
    await client.modify_message(ids["label taken off"], remove=[label])
    await client.modify_message(ids["in the inbox"], add=["INBOX"])
    await client.trash_message(ids["trashed"])
    scene.sim.control.delete_label(label)
    scene.clock.advance(2 * 3_600)
    await scene.work()
    for case, (gmail_id, action) in asleep.items():
        snooze = await scene.snooze(action.id)
        assert (await record_of(scene.queue, snooze.job_id)).state == "completed", case
        assert snooze.state is SnoozeState.WOKEN, case
        assert scene.labels(gmail_id) == MEANWHILE[case], case


@on_sqlite
async def test_the_label_of_the_settings_serves_where_the_job_names_none(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    job_id = (await scene.snooze(action.id)).job_id
    payload = f'{{"account_id":"{scene.account.id}","action_id":"{action.id}"}}'
    await scene.database.write(
        lambda tx: tx.execute(jobs.update().where(jobs.c.id == job_id).values(payload_json=payload))
    )
    scene.clock.advance(2 * 3_600)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


@pytest.mark.req("JB-13")
async def test_a_snooze_can_be_moved_and_ended(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    tomorrow = scene.clock.now() + timedelta(days=1)
    await scene.database.write(lambda tx: waking.reschedule(tx, scene.queue, action.id, tomorrow, A_TEST))
    scene.clock.advance(3 * 3_600)
    await scene.work()
    assert "INBOX" not in (scene.labels(gmail_id) or ())
    assert ((await scene.action(action.id)).undo_hint or {})["snooze_until"] == tomorrow.isoformat()
    await scene.database.write(lambda tx: waking.wake_now(tx, scene.queue, action.id, A_TEST))
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}
    audited = [row.action for row in await rows_of(scene.database, audit_log)]
    assert audited[1:] == ["snooze.reschedule", "snooze.wake"]
    with pytest.raises(BadInput, match="is over: woken"):
        await scene.database.write(lambda tx: waking.wake_now(tx, scene.queue, action.id, A_TEST))
    with pytest.raises(NotFound, match="not a snooze"):
        await scene.database.write(lambda tx: waking.wake_now(tx, scene.queue, new_id(), A_TEST))


@pytest.mark.req("JB-15")
async def test_a_snooze_is_undone_whatever_became_of_its_wake_up(scene: ActionScene) -> None:
    for outcome in CancelOutcome:
        gmail_id, action = await scene.do("snooze", "INBOX", "UNREAD", **TWO_HOURS)
        if outcome is CancelOutcome.NOT_RUNNING:
            scene.clock.advance(2 * 3_600)
            await scene.work()
        elif outcome is CancelOutcome.JOB_NOT_FOUND:
            await forget_job(scene, (await scene.snooze(action.id)).job_id)
        assert (await scene.undo(action.id)).status is S.COMPLETED
        assert scene.labels(gmail_id) == {"INBOX", "UNREAD"}
        steps = [step for step in await rows_of(scene.database, job_steps) if step.name == "cancel_unsnooze"]
        assert max(steps, key=lambda step: str(step.id)).result_json == f'{{"outcome": "{outcome}"}}'
        await scene.client.modify_message(gmail_id, remove=["INBOX"])
        scene.clock.advance(5 * 3_600)
        await scene.work()
        assert scene.labels(gmail_id) == {"UNREAD"}, "nothing wakes it any more"


async def forget_job(scene: ActionScene, job_id: str) -> None:
    await scene.database.write(lambda tx: tx.execute(jobs.delete().where(jobs.c.id == job_id)))


@on_sqlite
async def test_two_snoozes_at_once_make_one_label(scene: ActionScene) -> None:
    ids = [(await scene.message("INBOX"))[0] for _ in range(6)]
    for gmail_id in ids:
        await scene.want(gmail_id, "snooze", **TWO_HOURS)
    await scene.work()
    named = [label.id for label in await scene.client.list_labels() if label.name == "Postroom/Snoozed"]
    assert len(named) == 1
    assert all(scene.labels(each) == set(named) for each in ids)


@on_sqlite
async def test_a_failed_snooze_that_is_tried_again_gets_a_wake_up_of_its_own(scene: ActionScene) -> None:
    scene.fail("messages.modify", GmailFault(kind="error", code=403, reason="domainPolicy"))
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    scene.clock.advance(3 * 3_600)
    await scene.work()
    scene.sim.control.clear_faults()
    await scene.retry(action.id)
    await scene.work()
    assert "INBOX" not in (scene.labels(gmail_id) or ())
    scene.clock.advance(2 * 3_600)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


async def test_a_message_follows_its_newest_snooze(scene: ActionScene) -> None:
    gmail_id, first = await scene.do("snooze", "INBOX", **TWO_HOURS)
    second = await scene.want(gmail_id, "snooze", amount=2, units="days")
    await scene.work()
    assert (await scene.snooze(first.id)).state is SnoozeState.CANCELED
    scene.clock.advance(86_400)
    await scene.work()
    assert scene.labels(gmail_id) == {await label_id(scene)}, "not woken by the first"
    assert (await scene.undo(second)).status is S.COMPLETED
    assert scene.labels(gmail_id) == {"INBOX"}, "never left asleep without a wake-up"


@pytest.mark.req("JB-13", "JB-15")
@on_sqlite
async def test_an_undo_that_fails_leaves_the_wake_up_standing(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    fault = scene.fail("messages.modify", GmailFault(kind="error", code=403, reason="domainPolicy"))
    assert (await scene.undo(action.id)).status is S.FAILED
    assert (await scene.snooze(action.id)).state is SnoozeState.WAITING
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(2 * 3_600)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


@pytest.mark.req("JB-13")
@on_sqlite
async def test_a_snooze_that_is_tried_again_does_not_wake_at_its_first_time(scene: ActionScene) -> None:
    fault = scene.fail("messages.modify", GmailFault(kind="error", code=403, reason="domainPolicy"))
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(3_600)
    await scene.retry(action.id)
    await scene.work()
    scene.clock.advance(3_600)
    await scene.work()
    assert scene.labels(gmail_id) == {await label_id(scene)}
    scene.clock.advance(3_600)
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}


@pytest.mark.req("JB-13", "JB-15")
@on_sqlite
async def test_the_undo_of_a_snooze_whose_first_try_had_hidden_the_mail_brings_it_back(scene: ActionScene) -> None:
    fault = scene.fail("messages.modify", GmailFault(kind="error", code=503, after_effect=True))
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "snooze", amount=9, units="days")
    await scene.work_through(8)
    assert (await scene.action(action_id)).status is S.FAILED
    scene.sim.control.clear_faults(fault)
    await scene.retry(action_id)
    await scene.work()
    assert (await scene.action(action_id)).status is S.COMPLETED
    assert (await scene.undo(action_id)).status is S.COMPLETED
    assert scene.labels(gmail_id) == {"INBOX"}


@pytest.mark.req("JB-13")
@on_sqlite
async def test_a_snooze_that_fails_brings_back_what_the_one_before_it_had_hidden(scene: ActionScene) -> None:
    gmail_id, _ = await scene.do("snooze", "INBOX", **TWO_HOURS)
    scene.settings = GmailSettings(snooze_label="Asleep")
    fault = scene.fail("messages.modify", GmailFault(kind="error", code=403, reason="domainPolicy"))
    second = await scene.want(gmail_id, "snooze", amount=1, units="days")
    await scene.work()
    assert (await scene.action(second)).status is S.FAILED
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(86_400)
    await scene.work()
    assert "INBOX" in (scene.labels(gmail_id) or ())


@pytest.mark.req("JB-13", "JB-15")
async def test_undoing_a_snooze_that_a_later_one_replaced_is_refused_and_shows_nothing(scene: ActionScene) -> None:
    gmail_id, first = await scene.do("snooze", "INBOX", **TWO_HOURS)
    second = await scene.want(gmail_id, "snooze", amount=5, units="hours")
    await scene.work()
    hidden = scene.labels(gmail_id)
    with pytest.raises(BadInput, match="a later snooze replaced it; undo that one instead"):
        await scene.ask_to_undo(first.id)
    await scene.work()
    assert scene.labels(gmail_id) == hidden
    await scene.undo(second)
    assert "INBOX" in (scene.labels(gmail_id) or ())


@pytest.mark.req("JB-13")
async def test_a_wake_up_that_was_cancelled_brings_the_message_back(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", **TWO_HOURS)
    snooze = await scene.snooze(action.id)
    await scene.queue.cancel(snooze.job_id)
    await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name, {}))
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}
    assert (await scene.snooze(action.id)).state is SnoozeState.WOKEN
