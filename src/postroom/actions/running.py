"""What every handler of actions does around its own work: take the action in hand, and say how it ended.

An action belongs to one job. It is `executing` before anything is done about it and ends in the transaction that
records the outcome; a failure that will not be tried again is on record before the job fails.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom.actions import hiding, line, store
from postroom.actions.intake import question_job
from postroom.actions.mailbox import LabelGone
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType, Origin
from postroom.domain.errors import BadInput, Fatal, NotAllowed
from postroom.domain.ids import parse_id
from postroom.gmail.errors import Gone, LoginNeeded
from postroom.queue import JobContext, JobQueue, LeaseLost, NewJob
from postroom.queue.model import Json
from postroom.queue.outcome import describe
from postroom.settings import SafetySettings

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
    """Take an action in hand, or up again after a crash. `safety` bounds what may begin without a person."""
    action = store.get(tx, action_id, lock=True)
    if action.status is S.EXECUTING and action.job_id == job_id:
        return action
    if action.status is not S.QUEUED:
        return NotOurs(f"it is {action.status}")
    if (behind := line.first_before(tx, action)) is not None:
        return Waits(behind)
    if safety is not None and (reason := hiding.reason_to_ask(tx, action, safety, now)) is not None:
        return Asks(action, reason, now + timedelta(days=safety.approval_days))
    store.move(tx, action.id, S.QUEUED, S.EXECUTING, now, job_id=job_id, error=None)
    return store.get(tx, action.id)


class _Changed(Exception):
    """What kept the action from beginning ended in this very moment."""


async def taken(context: JobContext, choose: Callable[[Tx], Taken]) -> Action | None:
    """The action that this job is to do now; None if there is none, and the job is then over."""
    while True:
        found = await context.write(choose)
        match found:
            case Action():
                return found
            case NotOurs():
                await _end(context, found)
                return None
            case Waits() | Asks():
                try:
                    await context.complete(lambda tx: _step_back(tx, context.queue, choose(tx)))
                except _Changed:
                    continue
                return None


async def _end(context: JobContext, found: NotOurs) -> None:
    await context.complete(lambda tx: {"outcome": found.why})


def _step_back(tx: Tx, queue: JobQueue, found: Taken) -> Json:
    """Looked at once more in the transaction that ends the job: who is before us will call us, and not too early."""
    match found:
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
    store.move(tx, action.id, S.QUEUED, S.APPROVED_PENDING, now, reasons=reasons, expires_at=found.expires_at)
    queue.add(tx, question_job(action.account_id, action.id))
    line.call_next(tx, queue, action, now)
    return {"outcome": "needs approval", "reason": found.reason}


def finish(tx: Tx, queue: JobQueue, action: Action, to: S, now: datetime, **values: object) -> bool:
    """End an action that its job holds, and call the next on its message."""
    done = store.move(tx, action.id, S.EXECUTING, to, now, held_by=action.job_id, **values)
    if done:
        line.call_next(tx, queue, action, now)
    return done


async def guarded(context: JobContext, action: Action, work: Callable[[], Awaitable[None]]) -> None:
    """Do the work; what cannot succeed any more ends the action before it ends the job."""
    try:
        await work()
    except (LeaseLost, LoginNeeded):  # a job waits for a new login, and its action with it
        raise
    except Exception as error:
        told = told_of(error)
        if context.job.is_last_attempt or isinstance(told, Fatal | BadInput | NotAllowed):
            await context.write(lambda tx: _fail(tx, context, action, told))
        raise told from error


def told_of(error: Exception) -> Exception:
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
    queue.add(tx, NewJob(jobs.LABELS_SYNC, {"account_id": account_id}, key=f"{jobs.LABELS_SYNC}:{account_id}"))


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
