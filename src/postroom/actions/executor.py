"""The job `action.gmail`, which executes one action on one message, and the upkeep of actions without a job.

The labels before the action are recorded before anything changes, so an interrupted run can be resumed. Upkeep
fails or requeues actions whose job ended without recording an outcome.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, or_, select

from postroom.accounts.account import AccountStatus
from postroom.accounts.account_jobs import account_of
from postroom.accounts.mailbox_state import record_label_change
from postroom.actions import label_changes, lifecycle, running, scheduling, snoozes
from postroom.actions.label_changes import ActionMailboxes, LabelEdit, LabelFinder, apply, change_for, labels_now
from postroom.actions.lifecycle import Action, save_pre_image
from postroom.actions.outbound.letters import outbound_job
from postroom.actions.restore.runs import revive
from postroom.actions.running import Taken
from postroom.actions.snoozes import SnoozeState, Snoozing
from postroom.actions.unsubscribing import Unsubscriber
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.db.tables.triage import snoozes as snoozes_table
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, LabelParameters, Origin, Parameters, SnoozeParameters
from postroom.domain.errors import Fatal
from postroom.mailboxes.errors import Gone
from postroom.mailboxes.ports import PriorityLane
from postroom.mailboxes.protocol import Mailbox
from postroom.queue import JobContext, JobQueue, JobState
from postroom.queue.context import JobStep
from postroom.queue.job import FINISHED, Json
from postroom.settings import GmailSettings, SafetySettings


def _lane_of(action: Action) -> PriorityLane:
    """A person waits for actions that they ordered. Those of rules and the model, perhaps for a whole backfill, share
    the lane of new mail; those on past mail come after it."""
    if action.application_id is not None:
        return PriorityLane.BACKFILL
    return PriorityLane.LIVE if action.origin in (Origin.RULE, Origin.MODEL) else PriorityLane.USER_ACTION


class ActionHandler:
    def __init__(
        self,
        mailboxes: ActionMailboxes,
        labels: LabelFinder,
        settings: GmailSettings,
        safety: SafetySettings,
        unsubscribe: Unsubscriber | None = None,
    ) -> None:
        self._unsubscribe = unsubscribe
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
        found = running.take(tx, action_id, context.job.id, context.queue.clock.now(), self._safety)
        running.require_account(found if isinstance(found, Action) else lifecycle.get_action(tx, action_id), account_id)
        return found

    async def _work(self, context: JobContext, action: Action) -> None:
        if action.type in scheduling.SENDING:
            await self._hand_over(context, action)
            return
        account = await account_of(context)
        mailbox = (await self._mailboxes.of(account)).at(_lane_of(action))
        if action.type is ActionType.UNSUBSCRIBE:
            if self._unsubscribe is None:
                raise Fatal("This worker cannot unsubscribe.")
            await self._unsubscribe(context, action, account, mailbox)
            return
        is_resumed, begun = action.pre_image is not None, None
        if action.pre_image is None:
            action, begun = await self._look(context, mailbox, action)
        before, label_id = pre_image_of(action)
        change = change_for(action.type, before, label_id)
        async with context.step("execute", begun) as step:
            after = await self._execute(mailbox, action, change, before, is_resumed=is_resumed)
            step.result = {"added": sorted(after - before), "removed": sorted(before - after)}
            hint = self._hint(action, before, after, change, label_id)
            await context.complete(lambda tx: _complete(tx, context, step, action, hint, after))

    async def _look(self, context: JobContext, mailbox: Mailbox, action: Action) -> tuple[Action, str | None]:
        """Record the labels before anything changes. For a snooze, also schedule its end; else also begin the step that
        comes next: its id."""
        parameters, started_at = action.wanted.parameters, context.queue.clock.now()
        if isinstance(parameters, SnoozeParameters):
            async with context.step("pre_image"):
                labels = await labels_now(mailbox, action.gmail_id)
                return await self._snoozing.arrange(context, mailbox, action, parameters, labels), None
        image = await self._image(mailbox, action, parameters)

        def record(tx: Tx) -> tuple[Action, str]:
            context.record_step(tx, "pre_image", started_at)
            return save_pre_image(tx, action, image, context.queue.clock.now()), context.begin_step(tx, "execute")

        return await context.write(record)

    async def _image(self, mailbox: Mailbox, action: Action, parameters: Parameters) -> dict[str, object]:
        labels = await labels_now(mailbox, action.gmail_id)
        label_id = None
        if isinstance(parameters, LabelParameters):
            label_id = await self._label(mailbox, action, parameters.label)
        return {"labels": sorted(labels), "label_id": label_id}

    async def _label(self, mailbox: Mailbox, action: Action, name: str) -> str | None:
        if action.type is ActionType.REMOVE_LABEL:
            return await self._labels.find(mailbox, action.account_id, name)
        found = await self._labels.find_or_create(mailbox, action.account_id, name)
        if found == label_changes.TRASH:
            raise Fatal("A label is no way into the trash: use the action `trash`.")
        return found

    async def _execute(
        self, mailbox: Mailbox, action: Action, change: LabelEdit, before: frozenset[str], *, is_resumed: bool
    ) -> frozenset[str]:
        try:
            return await apply(mailbox, action.gmail_id, change, before)
        except Gone:
            if action.type is ActionType.DELETE and is_resumed:
                return frozenset()  # the first try got through, and only its answer was lost
            raise

    def _hint(
        self, action: Action, before: frozenset[str], after: frozenset[str], change: LabelEdit, label_id: str | None
    ) -> Json:
        if action.type is ActionType.SNOOZE:
            return self._snoozing.hint(action, change)
        return label_changes.hint_for(action.type, before, after, change, label_id)

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
            lifecycle.assign_job(tx, action.id, job_id, now)
            scheduling.call_next(tx, context.queue, action, now)
            return {"outcome": "handed over", "job_id": job_id}

        await context.complete(hand_over)


def pre_image_of(action: Action) -> tuple[frozenset[str], str | None]:
    image = action.pre_image or {}
    return frozenset(image.get("labels") or ()), image.get("label_id")


def _complete(tx: Tx, context: JobContext, step: JobStep, action: Action, hint: Json, after: frozenset[str]) -> Json:
    now = context.queue.clock.now()
    step.end(tx, now)
    if not running.finish(tx, context.queue, action, S.COMPLETED, now, undo_hint=hint, error=None):
        return {"outcome": "it was ended by another process meanwhile"}
    if action.type is not ActionType.DELETE:
        record_label_change(tx, action.account_id, action.gmail_id, pre_image_of(action)[0], after)
    return {"outcome": "completed", "nothing_changed": bool(hint.get("nothing_changed"))}


_GRACE = timedelta(seconds=30)
_WAKE_AGAIN = timedelta(hours=1)
_AT_ONCE = 200


async def upkeep(context: JobContext) -> Json:
    def tend(tx: Tx) -> dict[str, int]:
        woken, revived = wake_overdue(tx, context.queue), revive(tx, context.queue)
        return _tend(tx, context.queue) | {"woken": woken, "restores_revived": revived}

    await context.complete(tend)
    lifecycle.set_questions_open(await context.queue.database.read(_questions_open))
    return None


def _questions_open(tx: Tx) -> int:
    waiting = select(func.count()).select_from(actions).where(actions.c.status == S.APPROVED_PENDING)
    return int(tx.execute(waiting).scalar_one())


def wake_overdue(tx: Tx, queue: JobQueue) -> int:
    """Wake-ups that failed are tried again each hour: a login may have been renewed, a permission given. One that a
    person cancelled wakes at once: hidden mail without a wake-up would never come back."""
    now = queue.clock.now()
    overdue = snoozes_table.c.until <= now - _GRACE
    dead = jobs.c.state.in_(FINISHED) & (jobs.c.finished_at <= now - _WAKE_AGAIN)
    called_off = jobs.c.state == JobState.CANCELED
    query = (
        select(snoozes_table.c.action_id, snoozes_table.c.job_id)
        .join(accounts, accounts.c.id == snoozes_table.c.account_id)
        .join(jobs, jobs.c.id == snoozes_table.c.job_id, isouter=True)
        .where(accounts.c.status != AccountStatus.REMOVED)
        .where(snoozes_table.c.state == SnoozeState.WAITING)
        .where(or_(called_off, overdue & or_(jobs.c.id.is_(None), dead)))
        .limit(_AT_ONCE)
    )
    # Read again under its lock: its time may have been changed, or it may have been ended.
    seen = {row.action_id: row.job_id for row in tx.execute(query).all()}
    found = [snoozes.find_snooze(tx, action_id, lock=True) for action_id in seen]
    due = [each for each in found if each and each.state is SnoozeState.WAITING and each.job_id == seen[each.action_id]]
    for each in due:
        job = snoozes.wake_job(each.account_id, each.message_id, each.action_id, each.label_id, None)
        snoozes.set_snooze_until(tx, each.action_id, each.until, queue.add(tx, job)[0].job_id, now)
    return len(due)


def _tend(tx: Tx, queue: JobQueue) -> dict[str, int]:
    now = queue.clock.now()
    query = (
        select(actions, jobs.c.state.label("job_state"), jobs.c.last_error.label("job_error"))
        .join(jobs, jobs.c.id == actions.c.job_id, isouter=True)
        .where(actions.c.status.in_((S.QUEUED, S.EXECUTING)), actions.c.updated_at <= now - _GRACE)
        .where(or_(jobs.c.id.is_(None), jobs.c.state.in_(FINISHED)))
        .order_by(actions.c.id)
        .limit(_AT_ONCE)
    )
    tally = {"called": 0, "failed": 0}
    for row in tx.execute(query).all():
        action = lifecycle.action_from_row(row)
        if action.status is S.EXECUTING or row.job_state in (JobState.FAILED, JobState.CANCELED):
            reason = row.job_error or f"Its job was {row.job_state or 'lost'} before it was done."
            if lifecycle.move_action(tx, action.id, action.status, S.FAILED, now, error=str(reason)):
                scheduling.call_next(tx, queue, action, now)
                tally["failed"] += 1
        elif scheduling.first_before(tx, action) is None:
            scheduling.enqueue(tx, queue, action, now)
            tally["called"] += 1
    return tally
