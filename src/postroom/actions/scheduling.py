"""From an action's row to its job: enqueueing, the order of actions on one message, and the links of undos.

Row and job are written in the caller's transaction. Actions on one message run in the order in which they were
ordered, so each sees the effect of the one before.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import and_, bindparam, delete, or_, select

from postroom.actions import lifecycle
from postroom.actions.lifecycle import Action, NewAction
from postroom.db import Prepared, Tx
from postroom.db.database import insert
from postroom.db.tables.triage import action_links, actions
from postroom.domain import jobs
from postroom.domain.actions import ActionOrder, ActionStatus, ActionType, Origin, Proposal
from postroom.domain.errors import Fatal
from postroom.domain.ids import new_id
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.settings import SafetySettings

UNDO_OF = "undo_of"


def undo_job(account_id: str, original_action_id: str) -> NewJob:
    payload = {"account_id": account_id, "original_action_id": original_action_id}
    return NewJob(jobs.UNDO.name, payload, key=f"{jobs.UNDO.name}:{account_id}:{original_action_id}")


def undo_of(tx: Tx, action_id: str) -> Action | None:
    """The action that undoes this one, if there is one."""
    query = select(actions).join(action_links, action_links.c.cause_action_id == actions.c.id)
    row = tx.execute(query.where(action_links.c.effect_action_id == action_id)).one_or_none()
    return None if row is None else lifecycle.action_from_row(row)


def original_of(tx: Tx, undo_action_id: str) -> str:
    found = find_original(tx, undo_action_id)
    if found is None:
        raise Fatal(f"The action {undo_action_id} is the undo of nothing.")
    return found


def find_original(tx: Tx, undo_action_id: str) -> str | None:
    """The action that this one undoes, if it is an undo."""
    query = select(action_links.c.effect_action_id).where(action_links.c.cause_action_id == undo_action_id)
    found: str | None = tx.execute(query).scalar()
    return found


def link(tx: Tx, undo_action_id: str, original_action_id: str, now: datetime) -> bool:
    """False, and nothing written, if the original has an undo already."""
    row = {
        "id": new_id(),
        "cause_action_id": undo_action_id,
        "effect_action_id": original_action_id,
        "relation_type": UNDO_OF,
        "created_at": now,
    }
    written = insert(tx, action_links).values(row)
    written = written.on_conflict_do_nothing(index_elements=["effect_action_id", "relation_type"])
    return tx.execute(written.returning(action_links.c.id)).first() is not None


def unlink(tx: Tx, undo_action_id: str) -> None:
    tx.execute(delete(action_links).where(action_links.c.cause_action_id == undo_action_id))


def action_job(account_id: str, action_id: str, queue: QueueName = QueueName.WORK) -> NewJob:
    return _job_about(jobs.ACTION.name, account_id, action_id, queue)


def question_job(account_id: str, action_id: str) -> NewJob:
    return _job_about(jobs.APPROVAL_NOTIFY.name, account_id, action_id)


def _job_about(job_type: str, account_id: str, action_id: str, queue: QueueName = QueueName.WORK) -> NewJob:
    payload = {"account_id": account_id, "action_id": action_id}
    return NewJob(job_type, payload, queue, key=f"{job_type}:{account_id}:{action_id}")


class ActionIntake:
    """Implements `triage.classify.ActionSink`."""

    def __init__(self, queue: JobQueue, safety: SafetySettings) -> None:
        self._queue = queue
        self._patience = timedelta(days=safety.approval_days)

    def accept(self, tx: Tx, order: ActionOrder) -> list[str]:
        """Insert one action for each proposal, in their order; the actions' ids."""
        now = self._queue.clock.now()
        return [self._accept(tx, order, position, each, now) for position, each in enumerate(order.proposals)]

    def _accept(self, tx: Tx, order: ActionOrder, position: int, proposal: Proposal, now: datetime) -> str:
        action_id, asks = new_id(), bool(proposal.reasons)
        queue = _queue_of(order.application_id)
        job = question_job(order.account_id, action_id) if asks else action_job(order.account_id, action_id, queue)
        [enqueued] = self._queue.add(tx, job)
        new = NewAction(
            id=action_id,
            account_id=order.account_id,
            gmail_id=order.gmail_id,
            wanted=proposal.wanted,
            origin=order.origin,
            wanted_by=order.wanted_by,
            message_id=order.message_id,
            thread_id=order.thread_id,
            decision_id=order.decision_id,
            position=position,
            rule_id=order.rule_id,
            rule_name=order.rule_name,
            application_id=order.application_id,
            subject=order.subject,
            sender=order.sender,
            status=ActionStatus.APPROVED_PENDING if asks else ActionStatus.QUEUED,
            reasons=proposal.reasons,
            job_id=None if asks else enqueued.job_id,
            expires_at=now + self._patience if asks else None,
        )
        return lifecycle.insert_action(tx, new, now)


SENDING = frozenset({ActionType.FORWARD, ActionType.AUTO_REPLY})
"""Once handed to their own job, these change no label."""

# Made once: to build a statement takes longer than to run it.
_SAME_MESSAGE = and_(
    actions.c.account_id == bindparam("account"),
    actions.c.gmail_id == bindparam("message"),
    actions.c.id != bindparam("the_action"),
)
_AT_WORK = and_(actions.c.status == ActionStatus.EXECUTING, and_(*(actions.c.type != each for each in SENDING)))
_EARLIER = and_(actions.c.status == ActionStatus.QUEUED, actions.c.id < bindparam("the_action"))
_BEFORE = select(actions.c.id).where(_SAME_MESSAGE, or_(_AT_WORK, _EARLIER)).order_by(actions.c.id)
_AFTER = select(actions).where(_SAME_MESSAGE, actions.c.status == ActionStatus.QUEUED).order_by(actions.c.id)
_FIRST_BEFORE, _NEXT = Prepared(_BEFORE.limit(1)), Prepared(_AFTER.limit(1))


def first_before(tx: Tx, action: Action) -> str | None:
    """The action that has to end before this one may begin, if there is one: also a later one that is at work already,
    where this one was approved, or tried again, only now."""
    found = tx.run(_FIRST_BEFORE, _named(action))
    return found[0].id if found else None


def call_next(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> None:
    """This action is over, or handed over: the next on its message may begin."""
    for row in tx.run(_NEXT, _named(action)):
        enqueue(tx, queue, lifecycle.action_from_row(row), now)


def enqueue(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> str:
    """Enqueue the job of a queued action; its id. What is done to past mail gets the slots that other work leaves."""
    if action.origin is Origin.UNDO:
        job = undo_job(action.account_id, original_of(tx, action.id))
    else:
        job = action_job(action.account_id, action.id, _queue_of(action.application_id))
    job_id = queue.add(tx, job)[0].job_id
    lifecycle.assign_job(tx, action.id, job_id, now)
    return job_id


def _named(action: Action) -> dict[str, str]:
    return {"account": action.account_id, "message": action.gmail_id, "the_action": action.id}


def _queue_of(application_id: str | None) -> QueueName:
    return QueueName.WORK if application_id is None else QueueName.HISTORY
