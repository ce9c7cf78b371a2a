"""What every action handler does around its own work: take the action, check that it may run unattended, record
how it ended.

An action belongs to one job. It is `executing` before anything is done, and ends in the transaction that records
the outcome. Hidden mail is counted by account over the last hour; beyond the limit a person is asked.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from postroom import kill_switch
from postroom.actions import lifecycle, scheduling
from postroom.actions.lifecycle import Action
from postroom.actions.scheduling import question_job
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import hides
from postroom.domain import jobs
from postroom.domain.actions import CONSEQUENCES, ActionType, Consequence, Origin, consequence_of
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import BadInput, Fatal, NotAllowed
from postroom.domain.ids import parse_id
from postroom.mailboxes.errors import Gone, LabelGone, LoginNeeded
from postroom.queue import JobContext, JobQueue, LeaseLost, NewJob
from postroom.queue.job import Json, describe
from postroom.settings import SafetySettings

HOUR = timedelta(hours=1)
LIVE, BACKFILL = "live", "backfill"
_KEPT = timedelta(days=1)
_OF_THE_OWNER = frozenset({Origin.RULE, Origin.PERSON, Origin.UNDO})


def reason_to_ask(tx: Tx, action: Action, safety: SafetySettings, now: datetime) -> str | None:
    """Why a person must be asked before this action begins; None: it may begin, and counts towards the limit."""
    if action.origin in _OF_THE_OWNER or action.answered_by is not None:
        return None
    switch = kill_switch.model_switch(tx)
    if action.origin is Origin.MODEL and not switch.on:
        return f"the model is {switch.reason}, so nothing that it wanted is done unasked"
    if not hides_mail(action):
        return None
    return _count(tx, action, safety, now)


def hides_mail(action: Action) -> bool:
    """Whether it takes mail out of sight, as trash and delete also do."""
    try:
        reach = consequence_of(action.wanted)
    except BadInput:
        reach = CONSEQUENCES[action.type]
    return reach in (Consequence.HIDES, Consequence.DESTROYS)


def hidden_since(tx: Tx, account_id: str, lane: str, since: datetime) -> int:
    counted = select(func.count()).select_from(hides)
    counted = counted.where(hides.c.account_id == account_id, hides.c.lane == lane, hides.c.at > since)
    return int(tx.execute(counted).scalar_one())


def _count(tx: Tx, action: Action, safety: SafetySettings, now: datetime) -> str | None:
    lane = _lane(tx, action)
    most = safety.hides_per_hour if lane == LIVE else safety.backfill_hides_per_hour
    if hidden_since(tx, action.account_id, lane, now - HOUR) >= most:
        return _too_many(lane, most)
    tx.lock_table(hides)
    if hidden_since(tx, action.account_id, lane, now - HOUR) >= most:
        return _too_many(lane, most)
    row = {"account_id": action.account_id, "lane": lane, "at": now}
    written = insert(tx, hides).values(action_id=action.id, **row)
    tx.execute(written.on_conflict_do_update(index_elements=[hides.c.action_id], set_=row))
    tx.execute(delete(hides).where(hides.c.account_id == action.account_id, hides.c.at <= now - _KEPT))
    return None


def _lane(tx: Tx, action: Action) -> str:
    job = tx.execute(select(messages.c.backfill_job_id).where(messages.c.id == action.message_id)).scalar()
    return LIVE if job is None else BACKFILL


def _too_many(lane: str, most: int) -> str:
    which, setting = ("", "hides_per_hour") if lane == LIVE else (" from a backfill", "backfill_hides_per_hour")
    messages_were = "1 message was" if most == 1 else f"{most} messages were"
    return (
        f"{messages_were} hidden{which} without a person in the last hour, and that is the limit (safety.{setting})"
        if most
        else f"no message{which} is hidden without a person (safety.{setting} is 0)"
    )


GONE = "The message is no longer in the mailbox."


@dataclass(frozen=True, slots=True)
class Waits:
    """Another action on the same message comes first."""

    behind: str


@dataclass(frozen=True, slots=True)
class NotOurs:
    """There is nothing to do for this job."""

    why: str


@dataclass(frozen=True, slots=True)
class Asks:
    """It may no longer be done without a person."""

    action: Action
    reason: str
    expires_at: datetime


Taken = Action | Waits | NotOurs | Asks


def take(tx: Tx, action_id: str, job_id: str, now: datetime, safety: SafetySettings | None = None) -> Taken:
    """Start an action, or resume it after a crash. `safety` limits what may begin without a person."""
    action = lifecycle.get_action(tx, action_id, lock=True)
    if action.status is S.EXECUTING and action.job_id == job_id:
        return action
    if action.status is not S.QUEUED:
        return NotOurs(f"it is {action.status}")
    if (behind := scheduling.first_before(tx, action)) is not None:
        return Waits(behind)
    if safety is not None and (reason := reason_to_ask(tx, action, safety, now)) is not None:
        return Asks(action, reason, now + timedelta(days=safety.approval_days))
    lifecycle.move_action(tx, action.id, S.QUEUED, S.EXECUTING, now, job_id=job_id, error=None)
    return replace(action, status=S.EXECUTING, job_id=job_id, error=None, updated_at=now, finished_at=None)


class _Changed(Exception):
    """What kept the action from beginning has just ended."""


async def taken(context: JobContext, choose: Callable[[Tx], Taken]) -> Action | None:
    """The action that this job is to do now; None if there is none, and the job is then over."""
    while True:
        found = await context.write(choose)
        match found:
            case Action():
                return found
            case NotOurs() | Waits() | Asks():
                try:
                    await context.complete(lambda tx: _step_back(tx, context.queue, choose(tx)))
                except _Changed:
                    continue
                return None


def _step_back(tx: Tx, queue: JobQueue, found: Taken) -> Json:
    """Check again in the transaction that ends the job: the action before this one then enqueues it, and one that was
    approved again meanwhile is not left lying."""
    match found:
        case NotOurs():
            return {"outcome": found.why}
        case Waits():
            return {"outcome": "waits", "behind": found.behind}
        case Asks():
            return _ask(tx, queue, found)
        case _:
            raise _Changed


def _ask(tx: Tx, queue: JobQueue, found: Asks) -> Json:
    """Give the action to a person, and let the next on its message begin."""
    action, now = found.action, queue.clock.now()
    reasons = [*action.reasons, found.reason]
    lifecycle.move_action(
        tx, action.id, S.QUEUED, S.APPROVED_PENDING, now, reasons=reasons, expires_at=found.expires_at
    )
    queue.add(tx, question_job(action.account_id, action.id))
    scheduling.call_next(tx, queue, action, now)
    return {"outcome": "needs approval", "reason": found.reason}


def finish(tx: Tx, queue: JobQueue, action: Action, to: S, now: datetime, **values: object) -> bool:
    """End an action that this job holds, and start the next on its message."""
    done = lifecycle.move_action(tx, action.id, S.EXECUTING, to, now, held_by=action.job_id, **values)
    if done:
        scheduling.call_next(tx, queue, action, now)
    return done


async def guarded(context: JobContext, action: Action, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work. A final error ends the action before it ends the job."""
    try:
        await work()
    except (LeaseLost, LoginNeeded):  # a job waits for a new login, and its action with it
        raise
    except Exception as error:
        worded = as_action_error(error)
        if context.job.is_last_attempt or isinstance(worded, Fatal | BadInput | NotAllowed):
            await context.write(lambda tx: _fail(tx, context, action, worded))
        if worded is error:
            raise
        raise worded from error


def as_action_error(error: Exception) -> Exception:
    """The same error in words about the action."""
    return Fatal(GONE) if isinstance(error, Gone) else error


def _fail(tx: Tx, context: JobContext, action: Action, error: Exception) -> None:
    now = context.queue.clock.now()
    reason = str(error) if isinstance(error, Fatal | BadInput | NotAllowed) else describe(error)
    values: dict[str, object] = {"error": reason}
    if isinstance(error, LabelGone):
        ask_for_labels(tx, context.queue, action.account_id)
        if action.type is ActionType.APPLY_LABEL and action.origin is not Origin.UNDO:
            values["pre_image"] = None  # it names the label that is gone; a retry looks for the name anew
    finish(tx, context.queue, action, S.FAILED, now, **values)


def ask_for_labels(tx: Tx, queue: JobQueue, account_id: str) -> None:
    """The list of labels is out of date."""
    queue.add(
        tx, NewJob(jobs.LABELS_SYNC.name, {"account_id": account_id}, key=f"{jobs.LABELS_SYNC.name}:{account_id}")
    )


def named(context: JobContext, field: str) -> str:
    """An id of the job's payload; a job whose payload cannot be used fails for good."""
    try:
        return parse_id(str(context.job.payload.get(field)), field)
    except (BadInput, AttributeError, ValueError) as error:
        reason = error.message if isinstance(error, BadInput) else "it is no object"
        raise Fatal(f"The job's payload cannot be used: {reason}") from None


def require_account(action: Action, account_id: str) -> None:
    if action.account_id != account_id:
        raise Fatal(f"The action {action.id} belongs to another account than the job says.")
