"""The job `action.gmail`: one action on one message. Labels before it are on record before anything changes.

A run that was cut off is taken up with the pre-image of the first: what it changed and what it did not is then still
told apart, and every call can be made twice.
"""

from __future__ import annotations

from postroom.accounts.jobs import account_of
from postroom.accounts.mailstate import record_label_ids
from postroom.actions import changes, line, running, store
from postroom.actions.changes import Change, change_for
from postroom.actions.mailbox import LabelFinder, Mailboxes, apply, labels_now
from postroom.actions.outbound.prepare import outbound_job
from postroom.actions.running import Taken
from postroom.actions.snoozing import Snoozing
from postroom.actions.store import Action, save_pre_image
from postroom.db import Tx
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, LabelParameters, Origin, Parameters, SnoozeParameters
from postroom.domain.errors import Fatal
from postroom.gmail.client import GmailClient
from postroom.gmail.errors import Gone
from postroom.gmail.ports import Lane
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.settings import GmailSettings, SafetySettings


def _lane_of(origin: Origin) -> Lane:
    """Somebody waits for what a person wanted. What rules and the model want, for a whole history perhaps, takes turns
    with new mail."""
    return Lane.LIVE if origin in (Origin.RULE, Origin.MODEL) else Lane.USER_ACTION


class ActionHandler:
    def __init__(
        self, mailboxes: Mailboxes, labels: LabelFinder, settings: GmailSettings, safety: SafetySettings
    ) -> None:
        self._mailboxes = mailboxes
        self._labels = labels
        self._snoozing = Snoozing(labels, settings)
        self._safety = safety

    async def __call__(self, context: JobContext) -> Json:
        account_id, action_id = running.named(context, "account_id"), running.named(context, "action_id")
        action = await running.taken(context, lambda tx: self._take(tx, context, account_id, action_id))
        if action is not None:
            await running.guarded(context, action, lambda: self._work(context, action))
        return None

    def _take(self, tx: Tx, context: JobContext, account_id: str, action_id: str) -> Taken:
        running.require_account(store.get(tx, action_id), account_id)
        return running.take(tx, action_id, context.job.id, context.queue.clock.now(), self._safety)

    async def _work(self, context: JobContext, action: Action) -> None:
        parameters = action.wanted.parameters
        if action.type in line.SENDING:
            await self._hand_over(context, action)
            return
        client = (await self._mailboxes.of(await account_of(context))).at(_lane_of(action.origin))
        is_resumed = action.pre_image is not None
        if action.pre_image is None:
            async with context.step("pre_image"):
                action = await self._look(context, client, action, parameters)
        before, label_id = pre_image_of(action)
        change = change_for(action.type, before, label_id)
        async with context.step("execute") as step:
            after = await self._execute(client, action, change, before, is_resumed=is_resumed)
            step.result = {"added": sorted(after - before), "removed": sorted(before - after)}
        hint = self._hint(action, before, after, change, label_id)
        await context.complete(lambda tx: _complete(tx, context, action, hint, after))

    async def _look(self, context: JobContext, client: GmailClient, action: Action, parameters: Parameters) -> Action:
        """See how things stand, and write it down before anything changes. For a snooze, its end is arranged too."""
        labels = await labels_now(client, action.gmail_id)
        if isinstance(parameters, SnoozeParameters):
            return await self._snoozing.arrange(context, client, action, parameters, labels)
        label_id = None
        if isinstance(parameters, LabelParameters):
            label_id = await self._label(client, action, parameters.label)
        image = {"labels": sorted(labels), "label_id": label_id}
        return await context.write(lambda tx: save_pre_image(tx, action, image, context.queue.clock.now()))

    async def _label(self, client: GmailClient, action: Action, name: str) -> str | None:
        if action.type is ActionType.REMOVE_LABEL:
            return await self._labels.find(client, action.account_id, name)
        found = await self._labels.find_or_create(client, action.account_id, name)
        if found == changes.TRASH:
            raise Fatal("A label is no way into the trash: use the action `trash`.")
        return found

    async def _execute(
        self, client: GmailClient, action: Action, change: Change, before: frozenset[str], *, is_resumed: bool
    ) -> frozenset[str]:
        try:
            return await apply(client, action.gmail_id, change, before)
        except Gone:
            if action.type is ActionType.DELETE and is_resumed:
                return frozenset()  # the first try got through, and only its answer was lost
            raise

    def _hint(
        self, action: Action, before: frozenset[str], after: frozenset[str], change: Change, label_id: str | None
    ) -> Json:
        if action.type is ActionType.SNOOZE:
            return self._snoozing.hint(action, change)
        return changes.hint_for(action.type, before, after, change, label_id)

    async def _hand_over(self, context: JobContext, action: Action) -> None:
        """Sending has a job of its own, which ends the action."""

        def hand_over(tx: Tx) -> Json:
            now = context.queue.clock.now()
            job = outbound_job(
                account_id=action.account_id,
                action_id=action.id,
                action_type=action.type,
                message_id=action.message_id,
                thread_id=action.thread_id,
            )
            job_id = context.queue.add(tx, job)[0].job_id
            store.assign_job(tx, action.id, job_id, now)
            line.call_next(tx, context.queue, action, now)
            return {"outcome": "handed over", "job_id": job_id}

        await context.complete(hand_over)


def pre_image_of(action: Action) -> tuple[frozenset[str], str | None]:
    image = action.pre_image or {}
    return frozenset(image.get("labels") or ()), image.get("label_id")


def _complete(tx: Tx, context: JobContext, action: Action, hint: Json, after: frozenset[str]) -> Json:
    now = context.queue.clock.now()
    if not running.finish(tx, context.queue, action, S.COMPLETED, now, undo_hint=hint, error=None):
        return {"outcome": "it was ended by somebody else meanwhile"}
    if action.type is not ActionType.DELETE:
        record_label_ids(tx, action.account_id, action.gmail_id, after)
    return {"outcome": "completed", "nothing_changed": bool(hint.get("nothing_changed"))}
