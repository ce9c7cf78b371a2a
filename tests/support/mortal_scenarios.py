"""What a worker is killed at: each action, its undo, sending, waking, judging, filling a gap."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import select

from postroom.actions import desk, undo
from postroom.app.jobs import HISTORY_SYNC
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.actions import action_links, actions, snoozes
from postroom.db.tables.mail import messages
from postroom.db.tables.sync import history_cursors
from postroom.db.tables.triage import decisions, labels
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus, ActionType, parse_action
from postroom.queue import NewJob
from postroom.triage.rules.model import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support.mortal_world import Scenario, Scene
from tests.support.sim_mail import letter

OWNER = Actor("cli", "owner")
START = frozenset({"INBOX", "UNREAD"})
AN_HOUR_AND_A_HALF: dict[str, Any] = {"amount": 90, "units": "minutes"}
PARAMETERS: dict[ActionType, dict[str, Any]] = {
    ActionType.APPLY_LABEL: {"label": "Receipts"},
    ActionType.REMOVE_LABEL: {"label": "UNREAD"},
    ActionType.SNOOZE: AN_HOUR_AND_A_HALF,
    ActionType.FORWARD: {"to": ["accounts@friends.example"]},
    ActionType.AUTO_REPLY: {"body": "I am away until Monday."},
}
LABELS_AFTER: dict[ActionType, Callable[[frozenset[str]], frozenset[str]]] = {
    ActionType.ARCHIVE: lambda labels: labels - {"INBOX"},
    ActionType.REMOVE_LABEL: lambda labels: labels - {"UNREAD"},
    ActionType.MARK_READ: lambda labels: labels - {"UNREAD"},
    ActionType.MARK_UNREAD: lambda labels: labels | {"UNREAD"},
    ActionType.STAR: lambda labels: labels | {"STARRED"},
    ActionType.UNSTAR: lambda labels: labels - {"STARRED"},
    ActionType.TRASH: lambda labels: labels - {"INBOX"} | {"TRASH"},
    ActionType.RESTORE: lambda labels: labels,
    ActionType.DELETE: lambda labels: frozenset(),
    ActionType.SNOOZE: lambda labels: labels,  # it was away, and is back
}


def want(action: ActionType) -> Callable[[Scene], Awaitable[None]]:
    async def begin(scene: Scene) -> None:
        wanted = parse_action(action, PARAMETERS.get(action))

        def run(tx: Tx) -> None:
            row = tx.execute(select(messages).where(messages.c.id == scene.message_id)).one()
            desk.want(tx, scene.queue, row, wanted, OWNER)

        await scene.database.write(run)

    return begin


def done(action: ActionType) -> Callable[[Scene], Awaitable[None]]:
    async def outcome(scene: Scene) -> None:
        [row] = await scene.rows(actions)
        assert (row.status, row.error) == (ActionStatus.COMPLETED, None)
        assert row.undo_hint is not None
        assert row.pre_image is None or set(row.pre_image["labels"]) == START
        if action is ActionType.APPLY_LABEL:
            assert len(scene.labels() - START) == 1
        else:
            assert scene.labels() == LABELS_AFTER[action](START)

    return outcome


async def hidden_means_waiting(scene: Scene) -> None:
    """A message that a snooze has taken out of the inbox has somebody who will bring it back."""
    if "INBOX" in scene.labels():
        return
    [snooze] = await scene.rows(snoozes)
    assert snooze.state == "waiting"
    assert jobs.UNSNOOZE in await scene.unfinished()


def undone(action: ActionType) -> Scenario:
    """The action is done in peace; what is killed is its undo."""

    async def begin(scene: Scene) -> None:
        await want(action)(scene)
        await scene.work()
        [row] = await scene.rows(actions)
        await scene.database.write(lambda tx: undo.request(tx, scene.queue, row.id, OWNER))

    async def outcome(scene: Scene) -> None:
        assert scene.labels() == START
        assert [row.status for row in await scene.rows(actions)] == [ActionStatus.COMPLETED] * 2
        assert len(await scene.rows(action_links)) == 1
        assert all(row.state == "canceled" for row in await scene.rows(snoozes))

    return Scenario(f"undo of {action}", begin, outcome)


async def sent_once(scene: Scene) -> None:
    [row] = await scene.rows(actions)
    assert (row.status, row.error) == (ActionStatus.COMPLETED, None)
    assert scene.letters_of(row.id) == [{"SENT"}]


async def never_sent_twice(scene: Scene) -> None:
    [row] = await scene.rows(actions)
    assert sum("SENT" in labels for labels in scene.letters_of(row.id)) <= 1


async def judge(scene: Scene) -> None:
    payload = {"account_id": scene.account.id, "message_id": scene.message_id}
    key = f"{jobs.CLASSIFY}:{scene.account.id}:{scene.message_id}"
    await scene.enqueue(NewJob(jobs.CLASSIFY, payload, key=key))


async def one_decision(scene: Scene) -> None:
    assert len(await scene.rows(decisions)) == 1


async def no_action_without_a_decision(scene: Scene) -> None:
    decided = {row.id for row in await scene.rows(decisions)}
    assert {row.decision_id for row in await scene.rows(actions)} <= decided
    assert len(decided) <= 1


def by_rule(*wanted: str) -> Callable[[Scene], Awaitable[None]]:
    """Mail of the scene's sender has a rule; its message is judged."""

    async def begin(scene: Scene) -> None:
        draft = parse_draft(
            {"name": "Friends", "condition": {"sender_domain": "friends.example"}, "actions": list(wanted)}
        )
        await scene.database.write(lambda tx: add_rule(tx, draft, OWNER, scene.queue.clock.now()))
        await judge(scene)

    return begin


async def labelled_and_archived(scene: Scene) -> None:
    await one_decision(scene)
    assert [row.status for row in await scene.rows(actions)] == [ActionStatus.COMPLETED] * 2
    assert scene.labels() >= {"UNREAD"}
    assert len(scene.labels() - START) == 1
    assert "INBOX" not in scene.labels()


async def asked_once(scene: Scene) -> None:
    [row] = await scene.rows(actions)
    assert row.status == ActionStatus.APPROVED_PENDING
    assert scene.questions_about(row.id) == 1
    assert scene.labels() == START


async def look_at_labels(scene: Scene) -> None:
    payload = {"account_id": scene.account.id}
    await scene.enqueue(NewJob(jobs.LABELS_SYNC, payload, key=f"{jobs.LABELS_SYNC}:{scene.account.id}"))


async def labels_known(scene: Scene) -> None:
    assert {"INBOX", "UNREAD", "TRASH"} <= {row.label_id for row in await scene.rows(labels)}


async def look_at_mailbox(scene: Scene) -> None:
    payload = {"account_id": scene.account.id}
    await scene.enqueue(NewJob(HISTORY_SYNC.name, payload, key=f"{HISTORY_SYNC.name}:{scene.account.id}"))


async def forgotten_history(scene: Scene) -> None:
    """Mail came after the last look, and Gmail no longer tells about it."""
    await look_at_mailbox(scene)
    await scene.work()
    scene.missed = scene.sim.control.deliver(letter("Missed"))
    scene.sim.control.expire_history()
    await look_at_mailbox(scene)


async def nothing_missed(scene: Scene) -> None:
    assert [row.external_event_id for row in await scene.rows(messages)].count(scene.missed) == 1


async def cursor_only_past_what_is_in(scene: Scene) -> None:
    """Where the cursor has moved on, the mail is there: nobody would come back for it."""
    [cursor] = await scene.rows(history_cursors)
    start = int(cursor.history_id) if cursor.history_id else 0
    if start >= int(scene.sim.control.state().history_id):
        await nothing_missed(scene)
