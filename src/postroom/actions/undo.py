"""Taking actions back: who may, what is written down first, and the job `undo.action` that does it.

The undo is an action of its own, linked to the one that it undoes by a unique link, and it belongs to one job. One that
failed can be tried again; one that succeeded cannot be repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from postroom import audit
from postroom.accounts.jobs import account_of
from postroom.accounts.mailstate import record_label_ids
from postroom.actions import line, links, running, snoozes, store
from postroom.actions.changes import UNSNOOZE, Labels, inverse_of, irreversible, undoing
from postroom.actions.mailbox import Mailboxes, apply, labels_now
from postroom.actions.running import Taken
from postroom.actions.snoozes import SnoozeState
from postroom.actions.store import Action, NewAction
from postroom.audit import Actor
from postroom.db import Tx
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, Origin, Wanted, parse_action
from postroom.domain.errors import BadInput
from postroom.gmail.client import GmailClient
from postroom.queue import JobContext, JobQueue
from postroom.queue.model import Json

_FOR_GOOD = {
    ActionType.DELETE: "the message was deleted for ever",
    ActionType.FORWARD: "the message was forwarded, and cannot be called back",
    ActionType.AUTO_REPLY: "the reply was sent, and cannot be called back",
}


def impossible(action: Action) -> str | None:
    """Why this action could never be undone, for people; None if it could, or has been."""
    hint = action.undo_hint or {}
    if action.origin is Origin.UNDO:
        return "it is an undo itself; do the action again instead"
    if action.status is not S.COMPLETED:
        return f"it is {action.status}, and only what was completed can be undone"
    if hint.get("nothing_changed"):
        return "it changed nothing"
    if hint.get("irreversible") or hint.get("inverse_action", "none") == "none":
        return _FOR_GOOD.get(action.type, "it cannot be taken back")
    return None


def obstacle(tx: Tx, action: Action) -> str | None:
    """Why this action cannot be undone now, for people; None if it can."""
    if (reason := impossible(action)) is not None:
        return reason
    existing = links.undo_of(tx, action.id)
    if existing is None or existing.status in (S.FAILED, S.CANCELED):
        return None
    return "it was undone already" if existing.status is S.COMPLETED else "it is being undone"


def request(tx: Tx, queue: JobQueue, action_id: str, who: Actor) -> str:
    """Have an action undone; the id of the undo. Row, link, job and audit are one transaction."""
    original = store.get(tx, action_id, lock=True)
    if (reason := obstacle(tx, original)) is not None:
        raise BadInput("action", f"{original.id} cannot be undone: {reason}")
    now = queue.clock.now()
    undo = _begin(tx, original, f"{who.role} {who.name}", now)
    line.enqueue(tx, queue, undo, now)
    audit.record(tx, who, "action.undo", ("action", original.id), now, after={"undo_action_id": undo.id})
    return undo.id


def _begin(tx: Tx, original: Action, wanted_by: str, now: datetime) -> Action:
    """The row of the undo, queued: a new one, or that of a try that failed."""
    existing = links.undo_of(tx, original.id)
    if existing is not None and existing.status is S.CANCELED:
        links.unlink(tx, existing.id)
        existing = None
    if existing is not None:
        if existing.status is S.FAILED:
            store.move(tx, existing.id, S.FAILED, S.QUEUED, now, error=None)
        return store.get(tx, existing.id)
    new = NewAction(
        account_id=original.account_id,
        gmail_id=original.gmail_id,
        wanted=inverse_wanted(original),
        origin=Origin.UNDO,
        wanted_by=wanted_by,
        message_id=original.message_id,
        thread_id=original.thread_id,
        rule_id=original.rule_id,
        rule_name=original.rule_name,
    )
    undo_id = store.insert(tx, new, now)
    if not links.link(tx, undo_id, original.id, now):
        raise AssertionError("the original is locked, so nobody else links to it")
    return store.get(tx, undo_id)


def inverse_wanted(original: Action) -> Wanted:
    """The undo as an action, for people to read; what is done follows the hint."""
    hint = original.undo_hint or {}
    if hint.get("inverse_action") == UNSNOOZE:
        return parse_action(ActionType.REMOVE_LABEL, {"label": str(hint.get("snooze_label"))})
    parameters = hint.get("inverse_parameters") or {}
    label = {"label": parameters["label"]} if parameters.get("label") else None
    return parse_action(hint.get("inverse_action"), label)


@dataclass(frozen=True, slots=True)
class _Pair:
    undo: Action
    original: Action


class UndoHandler:
    def __init__(self, mailboxes: Mailboxes) -> None:
        self._mailboxes = mailboxes

    async def __call__(self, context: JobContext) -> Json:
        account_id, original_id = running.named(context, "account_id"), running.named(context, "original_action_id")
        undo = await running.taken(context, lambda tx: self._take(tx, context, account_id, original_id))
        if undo is not None:
            original = await context.queue.database.read(lambda tx: store.get(tx, original_id))
            await running.guarded(context, undo, lambda: self._work(context, _Pair(undo, original)))
        return None

    def _take(self, tx: Tx, context: JobContext, account_id: str, original_id: str) -> Taken:
        now, job_id = context.queue.clock.now(), context.job.id
        original = store.get(tx, original_id, lock=True)
        running.require_account(original, account_id)
        ours = links.undo_of(tx, original.id)
        if ours is None or ours.status not in (S.QUEUED, S.EXECUTING):
            if (reason := obstacle(tx, original)) is not None:
                raise BadInput("action", f"{original.id} cannot be undone: {reason}")
            ours = _begin(tx, original, "job undo.action", now)
        return running.take(tx, ours.id, job_id, now)

    async def _work(self, context: JobContext, pair: _Pair) -> None:
        inverse = inverse_of(pair.original.undo_hint or {})
        client = await self._mailboxes.of(await account_of(context))
        now = await self._look(context, client, pair.undo)
        before = frozenset((pair.original.pre_image or {}).get("labels") or ())
        async with context.step("undo") as step:
            after = await apply(client, pair.undo.gmail_id, undoing(inverse, before, now), now)
            step.result = {"added": sorted(after - now), "removed": sorted(now - after)}
        if inverse.cancel_job is not None:
            # Not before the mail is back: an undo that fails for good must not leave it hidden without a wake-up.
            await _cancel_wake_up(context, pair.original, inverse.cancel_job)
        await context.complete(lambda tx: _complete(tx, context, pair, after, nothing_changed=after == now))

    async def _look(self, context: JobContext, client: GmailClient, undo: Action) -> Labels:
        """The labels before the undo; those of its first try, if it was cut off."""
        if undo.pre_image is None:
            async with context.step("pre_image"):
                image = {"labels": sorted(await labels_now(client, undo.gmail_id))}
                clock = context.queue.clock
                undo = await context.write(lambda tx: store.save_pre_image(tx, undo, image, clock.now()))
        return frozenset((undo.pre_image or {}).get("labels") or ())


async def _cancel_wake_up(context: JobContext, original: Action, job_id: str) -> None:
    """Canceled, already over, or not there any more: each is fine."""

    def cancel(tx: Tx) -> str:
        outcome = context.queue.cancel_within(tx, job_id)
        snoozes.end(tx, original.id, SnoozeState.CANCELED, context.queue.clock.now())
        return str(outcome)

    async with context.step("cancel_unsnooze") as step:
        step.result = {"outcome": await context.write(cancel)}


def _complete(tx: Tx, context: JobContext, pair: _Pair, after: Labels, *, nothing_changed: bool) -> Json:
    hint = irreversible(pair.undo.type, undo_of=pair.original.id)
    hint |= {"nothing_changed": True} if nothing_changed else {}
    now = context.queue.clock.now()
    running.finish(tx, context.queue, pair.undo, S.COMPLETED, now, undo_hint=hint, error=None)
    record_label_ids(tx, pair.undo.account_id, pair.undo.gmail_id, after)
    return {"outcome": "undone", "undo_action_id": pair.undo.id}
