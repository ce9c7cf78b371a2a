"""The actions on one message stand in a line, in the order in which they were wanted.

So the second sees what the first has done, and each pre-image is true. An action that finds another before it steps
back; the one that ends calls the next.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, and_, or_, select

from postroom.actions import store
from postroom.actions.intake import enqueue_action
from postroom.actions.links import original_of, undo_job
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.queue import JobQueue

SENDING = frozenset({ActionType.FORWARD, ActionType.AUTO_REPLY})
"""Once handed over, these go their own way and change no label."""


def first_before(tx: Tx, action: Action) -> str | None:
    """The action that has to end before this one may begin, if there is one: also a later one that is at work already,
    where this one was approved, or tried again, only now."""
    others = select(actions.c.id).where(_same_message(action), actions.c.id != action.id, _comes_before(action))
    return tx.execute(others.order_by(actions.c.id).limit(1)).scalar()


def call_next(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> None:
    """This one is over, or handed over: whoever stands next may begin."""
    waiting = select(actions).where(_same_message(action), actions.c.status == ActionStatus.QUEUED)
    row = tx.execute(waiting.where(actions.c.id != action.id).order_by(actions.c.id).limit(1)).first()
    if row is not None:
        enqueue(tx, queue, store.from_row(row), now)


def enqueue(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> str:
    """Put a queued action into the hands of the job of its kind."""
    if action.origin is not Origin.UNDO:
        return enqueue_action(tx, queue, action.account_id, action.id, now)
    job_id = queue.add(tx, undo_job(action.account_id, original_of(tx, action.id)))[0].job_id
    store.assign_job(tx, action.id, job_id, now)
    return job_id


def _same_message(action: Action) -> ColumnElement[bool]:
    return and_(actions.c.account_id == action.account_id, actions.c.gmail_id == action.gmail_id)


def _comes_before(action: Action) -> ColumnElement[bool]:
    at_work = and_(actions.c.status == ActionStatus.EXECUTING, actions.c.type.not_in(SENDING))
    return or_(at_work, and_(actions.c.status == ActionStatus.QUEUED, actions.c.id < action.id))
