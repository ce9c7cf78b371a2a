"""What Gmail's refusals make of each job, at each of its calls; and jobs that were cut off, raced or sent twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import update

from postroom.accounts.account import AccountStatus, get_account, remove_account
from postroom.actions import snoozes as waking
from postroom.actions.executor import wake_overdue
from postroom.actions.running import GONE
from postroom.actions.snoozes import SnoozeState
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import snoozes
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import Fatal
from postroom.domain.ids import new_id
from postroom.domain.jobs import ACTIONS_UPKEEP
from postroom.mailboxes.gmail.client import GmailClient
from postroom.mailboxes.ports import PriorityLane
from postroom.queue import JobContext, NewJob
from postroom.sim.gmail.faults import GmailFault
from tests.support.actions import A_TEST, ActionScene, rows_of
from tests.support.databases import on_sqlite
from tests.support.queues import LEASE, claim, count_jobs, record_of, run_until_idle

LOGIN = GmailFault(kind="error", code=401, reason="authError", message="Invalid Credentials")
RATE = GmailFault(kind="error", code=403, reason="userRateLimitExceeded", domain="usageLimits")
FORBIDDEN = GmailFault(kind="error", code=403, reason="insufficientPermissions")
GONE_FAULT = GmailFault(kind="error", code=404, reason="notFound")
TOO_MANY = GmailFault(kind="error", code=429, reason="rateLimitExceeded", domain="usageLimits")
BROKEN = GmailFault(kind="error", code=503)
HOUR = timedelta(hours=1)
LATER = [RATE, TOO_MANY, BROKEN, GmailFault(kind="drop"), GmailFault(kind="malformed")]
NEVER = {FORBIDDEN: "needs the permission", GONE_FAULT: GONE}

CALLS: list[tuple[str, dict[str, Any], set[str], str]] = [
    ("archive", {}, {"INBOX"}, "messages.get"),
    ("archive", {}, {"INBOX"}, "messages.modify"),
    ("apply_label", {"label": "New"}, {"INBOX"}, "labels.list"),
    ("apply_label", {"label": "New"}, {"INBOX"}, "labels.create"),
    ("trash", {}, {"INBOX"}, "messages.trash"),
    ("restore", {}, {"TRASH"}, "messages.untrash"),
    ("delete", {}, {"INBOX"}, "messages.delete"),
    ("snooze", {"amount": 2, "units": "days"}, {"INBOX"}, "messages.modify"),
]
UNDOS: list[tuple[str, set[str], str]] = [
    ("archive", {"INBOX"}, "messages.get"),
    ("archive", {"INBOX"}, "messages.modify"),
    ("trash", {"INBOX"}, "messages.untrash"),
    ("trash", {"INBOX"}, "messages.modify"),
    ("restore", {"TRASH"}, "messages.trash"),
]


@on_sqlite
@pytest.mark.req("JB-7", "JB-12")
@pytest.mark.parametrize(("name", "parameters", "before", "method"), CALLS, ids=[f"{c[0]}-{c[3]}" for c in CALLS])
async def test_refusals_of_each_call_of_an_action(
    scene: ActionScene, name: str, parameters: dict[str, Any], before: set[str], method: str
) -> None:
    for number, (fault, words) in enumerate(NEVER.items()):
        given = _numbered(parameters, f"a{number}")
        rule = scene.fail(method, fault)
        gmail_id, action = await scene.do(name, *before, **given)
        scene.sim.control.clear_faults(rule)
        if not (fault is GONE_FAULT and method.startswith("labels.")):
            assert (action.status, words in (action.error or "")) == (S.FAILED, True), (fault, action.error)
            assert scene.labels(gmail_id) == before
    for number, fault in enumerate(LATER):
        given = _numbered(parameters, f"b{number}")
        rule = scene.fail(method, fault)
        _, action = await scene.do(name, *before, **given)
        assert action.status is S.EXECUTING, (fault, action.error)
        scene.sim.control.clear_faults(rule)
        scene.clock.advance(60)
        await scene.work()
        assert (await scene.action(action.id)).status is S.COMPLETED, fault


@pytest.mark.req("HW-7")
async def test_an_action_whose_login_is_refused_waits_for_a_new_login(scene: ActionScene) -> None:
    rule = scene.fail("messages.modify", LOGIN)
    gmail_id, action = await scene.do("archive", "INBOX")
    _, later = await scene.do("archive", "INBOX")
    scene.sim.control.clear_faults(rule)
    scene.clock.advance(61)
    await scene.work()
    waiting = [(await scene.action(each.id)).status for each in (action, later)]
    assert waiting == [S.EXECUTING, S.QUEUED], "the second is not even tried"
    account = await scene.database.read(lambda tx: get_account(tx, scene.account.email))
    assert account.status is AccountStatus.LOGIN_ENDED
    assert f"postroom account add gmail --email {account.email}" in (account.last_error or "")
    await scene.log_in()
    scene.clock.advance(61)
    await scene.work()
    assert [(await scene.action(each.id)).status for each in (action, later)] == [S.COMPLETED] * 2
    assert scene.labels(gmail_id) == set()


def _numbered(parameters: dict[str, Any], number: str) -> dict[str, Any]:
    """A label that is new each time."""
    return {**parameters, "label": f"New {number}"} if "label" in parameters else parameters


@on_sqlite
@pytest.mark.req("JB-7", "JB-15")
@pytest.mark.parametrize(("name", "before", "method"), UNDOS, ids=[f"{c[0]}-{c[2]}" for c in UNDOS])
async def test_refusals_of_each_call_of_an_undo(scene: ActionScene, name: str, before: set[str], method: str) -> None:
    for fault, words in NEVER.items():
        gmail_id, action = await scene.do(name, *before)
        rule = scene.fail(method, fault)
        undone = await scene.undo(action.id)
        assert (undone.status, words in (undone.error or "")) == (S.FAILED, True), (fault, undone.error)
        scene.sim.control.clear_faults(rule)
        again = await scene.undo(action.id)
        assert (again.id, again.status) == (undone.id, S.COMPLETED), "a failed undo can be tried again"
        assert scene.labels(gmail_id) == before
    for fault in LATER:
        gmail_id, action = await scene.do(name, *before)
        rule = scene.fail(method, fault)
        assert (await scene.undo(action.id)).status is S.EXECUTING
        scene.sim.control.clear_faults(rule)
        scene.clock.advance(60)
        await scene.work()
        assert scene.labels(gmail_id) == before, fault


@on_sqlite
@pytest.mark.req("JB-7", "JB-13")
@pytest.mark.parametrize("method", ["messages.get", "messages.modify"])
async def test_refusals_of_each_call_of_a_wake_up(scene: ActionScene, method: str) -> None:
    for fault in [GONE_FAULT, *LATER]:
        gmail_id, action = await scene.do("snooze", "INBOX", amount=1, units="days")
        scene.clock.advance(86_400)
        rule = scene.fail(method, fault)
        await scene.work()
        state = (await scene.snooze(action.id)).state
        scene.sim.control.clear_faults(rule)
        if fault is GONE_FAULT:
            assert state is SnoozeState.WOKEN, "nothing to bring back is success"
            continue
        assert state is SnoozeState.WAITING, fault
        scene.clock.advance(60)
        await scene.work()
        assert scene.labels(gmail_id) == {"INBOX"}, fault


@pytest.mark.req("JB-7", "JB-12", "JB-15")
@on_sqlite
async def test_when_every_attempt_fails_the_action_says_so_and_can_be_tried_again(scene: ActionScene) -> None:
    fault = scene.fail("messages.modify", BROKEN)
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "archive")
    await scene.work_through()
    action = await scene.action(action_id)
    assert action.status is S.FAILED
    assert "503" in (action.error or "")
    assert (await record_of(scene.queue, action.job_id or "")).state == "failed"
    scene.sim.control.clear_faults(fault)
    await scene.retry(action_id)
    await scene.work()
    assert (await scene.action(action_id)).status is S.COMPLETED
    scene.fail("messages.modify", BROKEN)
    undone = await scene.undo(action_id)
    await scene.work_through()
    assert (await scene.action(undone.id)).status is S.FAILED


class _CutOff:
    """A client whose process dies right after a call went through."""

    def __init__(self, client: GmailClient, method: str) -> None:
        self._client = client
        self._method = method

    def at(self, lane: PriorityLane) -> _CutOff:
        return _CutOff(self._client.at(lane), self._method)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if name != self._method:
            return found

        async def call(*given: Any, **more: Any) -> Any:
            await found(*given, **more)
            raise asyncio.CancelledError

        return call


CUTS: list[tuple[str, dict[str, Any], str]] = [
    ("archive", {}, "modify_message"),
    ("archive", {}, "get_message"),
    ("trash", {}, "trash_message"),
    ("delete", {}, "delete_message"),
    ("apply_label", {"label": "Fresh"}, "create_label"),
    ("snooze", {"amount": 3, "units": "days"}, "create_label"),
    ("snooze", {"amount": 3, "units": "days"}, "modify_message"),
]


@pytest.mark.req("JB-12", "JB-13", "JB-15")
@on_sqlite
async def test_a_run_that_was_cut_off_is_taken_up_with_its_first_pre_image(scene: ActionScene) -> None:
    whole = scene.client
    for name, parameters, method in CUTS:
        gmail_id, _ = await scene.message("INBOX", "UNREAD")
        action_id = await scene.want(gmail_id, name, **parameters)
        await _cut_off(scene, whole, method)
        scene.clock.advance(LEASE.total_seconds() + 1)
        await scene.work()
        action = await scene.action(action_id)
        assert action.status is S.COMPLETED, (name, method, action.error)
        assert (action.pre_image or {})["labels"] == ["INBOX", "UNREAD"], (name, method)
        if name == "delete":
            continue
        undo_id = await scene.ask_to_undo(action_id)
        await _cut_off(scene, whole, "untrash_message" if name == "trash" else "modify_message")
        scene.clock.advance(LEASE.total_seconds() + 1)
        await scene.work()
        assert (await scene.action(undo_id)).status is S.COMPLETED
        assert scene.labels(gmail_id) == {"INBOX", "UNREAD"}, (name, method)


async def _cut_off(scene: ActionScene, whole: GmailClient, method: str) -> None:
    """Run the one job that is ready until its process dies."""
    [job] = await claim(scene.queue)
    scene.client = _CutOff(whole, method)  # type: ignore[assignment]
    with pytest.raises(asyncio.CancelledError):
        await scene.handlers()[job.type](JobContext(scene.queue, job))
    scene.client = whole


@pytest.mark.req("JB-12")
async def test_two_workers_do_an_action_once(scene: ActionScene) -> None:
    ids = [(await scene.message("INBOX"))[0] for _ in range(10)]
    wanted = [await scene.want(each, name) for each in ids for name in ("star", "archive")]
    payloads = [{"account_id": scene.account.id, "action_id": each} for each in wanted]
    await scene.queue.enqueue(*(NewJob("action.gmail", payload, key=f"again:{new_id()}") for payload in payloads))
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(run_until_idle(scene.queue, scene.handlers()))
    await scene.work()
    assert [(await scene.action(each)).status for each in wanted] == [S.COMPLETED] * 20
    assert scene.sim.control.state().calls["messages.modify"] == 20
    assert all(scene.labels(each) == {"STARRED"} for each in ids)


@on_sqlite
async def test_a_job_about_another_accounts_action_is_refused(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "archive")
    payload = {"account_id": new_id(), "action_id": action_id}
    [job] = await scene.queue.enqueue(NewJob("action.gmail", payload, priority=10))
    [claimed] = await claim(scene.queue)
    assert claimed.id == job.job_id
    with pytest.raises(Fatal, match="another account"):
        await scene.handlers()["action.gmail"](JobContext(scene.queue, claimed))
    assert (await scene.action(action_id)).status is S.QUEUED


@on_sqlite
async def test_a_payload_that_cannot_be_used_fails_for_good(scene: ActionScene) -> None:
    payloads: list[dict[str, Any]] = [{}, {"account_id": 7}, {"account_id": new_id(), "action_id": "x"}]
    types = ("action.gmail", "undo.action", "unsnooze.gmail", "snooze.check.gmail", "labels.sync.gmail")
    wrong = [NewJob(job_type, payload) for job_type in types for payload in payloads]
    made = await scene.queue.enqueue(*wrong)
    await scene.work()
    for job in made:
        record = await record_of(scene.queue, job.job_id)
        assert (record.state, record.attempts) == ("failed", 1), record


@pytest.mark.req("JB-12")
async def test_no_action_is_at_work_for_ever(scene: ActionScene) -> None:
    scene.fail("messages.modify", BROKEN)
    _, action = await scene.do("archive", "INBOX")
    assert action.job_id is not None
    await scene.queue.cancel(action.job_id)
    scene.clock.advance(60)
    await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name))
    await scene.work()
    ended = await scene.action(action.id)
    assert ended.status is S.FAILED
    assert ended.error


@pytest.mark.req("JB-13")
async def test_a_wake_up_is_tried_again_until_it_succeeds(scene: ActionScene) -> None:
    gmail_id, action = await scene.do("snooze", "INBOX", amount=1, units="hours")
    scene.fail("*", FORBIDDEN)
    scene.clock.advance(3_600)
    await scene.work()
    assert (await record_of(scene.queue, (await scene.snooze(action.id)).job_id)).state == "failed"
    scene.sim.control.clear_faults()
    scene.clock.advance(3_600)
    await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name))
    await scene.work()
    assert scene.labels(gmail_id) == {"INBOX"}
    assert (await scene.snooze(action.id)).state is SnoozeState.WOKEN


@pytest.mark.req("JB-13")
async def test_a_wake_up_that_is_tried_again_while_its_time_is_changed_keeps_the_new_time(scene: ActionScene) -> None:
    _, action = await scene.do("snooze", "INBOX", amount=1, units="hours")
    job_id = (await scene.snooze(action.id)).job_id
    now = scene.clock.now()
    failed = update(jobs).where(jobs.c.id == job_id).values(state="failed", ready=False, finished_at=now - 2 * HOUR)
    overdue = update(snoozes).values(until=now - 2 * HOUR)
    for hours in range(1, 16):
        until = now + hours * HOUR
        await scene.database.write(lambda tx: (tx.execute(failed), tx.execute(overdue)))
        change = partial(waking.reschedule, queue=scene.queue, action_id=action.id, until=until, who=A_TEST)
        await asyncio.gather(
            scene.database.write(partial(wake_overdue, queue=scene.queue)), scene.database.write(change)
        )
        wake = await record_of(scene.queue, (await scene.snooze(action.id)).job_id)
        assert ((await scene.snooze(action.id)).until, wake.not_before) == (until, until)


@on_sqlite
async def test_nobody_is_woken_in_a_mailbox_that_was_removed(scene: ActionScene) -> None:
    _, action = await scene.do("snooze", "INBOX", amount=1, units="hours")
    await scene.database.write(lambda tx: remove_account(tx, scene.account.id, scene.clock.now()))
    for _ in range(3):
        scene.clock.advance(3_601)
        await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name))
        await scene.work()
    wake = await record_of(scene.queue, (await scene.snooze(action.id)).job_id)
    assert (wake.state, wake.attempts) == ("failed", 1)
    assert scene.clock.now() - (wake.finished_at or scene.clock.now()) > timedelta(hours=2), "it was not tried again"


@on_sqlite
async def test_an_action_whose_turn_was_missed_is_called(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    action_id = await scene.want(gmail_id, "archive")
    await scene.database.write(lambda tx: tx.execute(jobs.delete()))
    scene.clock.advance(60)
    await scene.queue.enqueue(NewJob(ACTIONS_UPKEEP.name))
    await scene.work()
    assert (await scene.action(action_id)).status is S.COMPLETED


async def test_actions_on_one_message_are_done_in_the_order_in_which_they_were_wanted(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    fault = scene.fail("messages.modify", BROKEN)
    first = await scene.want(gmail_id, "star")
    second = await scene.want(gmail_id, "unstar")
    await scene.work()
    assert (await scene.action(second)).status is S.QUEUED
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(60)
    await scene.work()
    assert [(await scene.action(each)).status for each in (first, second)] == [S.COMPLETED] * 2
    assert scene.labels(gmail_id) == {"INBOX"}


@on_sqlite
async def test_an_action_that_is_tried_again_waits_for_a_later_one_that_is_at_work(scene: ActionScene) -> None:
    gmail_id, _ = await scene.message("INBOX")
    fault = scene.fail("messages.get", FORBIDDEN)
    first = await scene.want(gmail_id, "star")
    await scene.work()
    scene.sim.control.clear_faults(fault)
    fault = scene.fail("messages.modify", BROKEN)
    second = await scene.want(gmail_id, "archive")
    await scene.work()
    await scene.retry(first)
    await scene.work()
    assert [(await scene.action(each)).status for each in (first, second)] == [S.QUEUED, S.EXECUTING]
    scene.sim.control.clear_faults(fault)
    scene.clock.advance(60)
    await scene.work()
    assert [(await scene.action(each)).status for each in (first, second)] == [S.COMPLETED] * 2
    assert ((await scene.action(first)).pre_image or {})["labels"] == [], "it saw what the other had done"


@on_sqlite
async def test_sending_is_handed_over_and_holds_up_nobody(scene: ActionScene) -> None:
    gmail_id, message_id = await scene.message("INBOX")
    forward = await scene.want(gmail_id, "forward", to=["accounts@example.org"])
    archive = await scene.want(gmail_id, "archive")
    await run_until_idle(scene.queue, {**scene.handlers(), "outbound.send": _never})
    action = await scene.action(forward)
    assert action.status is S.EXECUTING
    assert (await scene.action(archive)).status is S.COMPLETED
    [row] = [row for row in await rows_of(scene.database, jobs) if row.type == "outbound.send"]
    assert (row.id, row.idempotency_key) == (action.job_id, f"outbound.send:{scene.account.id}:{forward}")
    assert message_id in row.payload_json
    assert await count_jobs(scene.database, type="outbound.send") == 1


async def _never(context: JobContext) -> None:
    """Somebody else's job."""
