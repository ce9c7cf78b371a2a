"""What was said elsewhere about a question (`approval_notices`), and that somebody has to go there again."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import or_, select

from postroom.actions.intake import question_job
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.db.tables.actions import actions, approval_notices
from postroom.domain.actions import ActionStatus
from postroom.queue import JobQueue

_AT_ONCE = 1_000
_SETTLED = timedelta(minutes=1)


class NoticeState(StrEnum):
    SENDING = "sending"
    """It may have been said; nothing is on record."""
    SENT = "sent"
    CLOSED = "closed"
    """Its buttons are gone."""


def renew(tx: Tx, queue: JobQueue, action: Action) -> None:
    """The question has come to an end: whoever was asked elsewhere is told."""
    asked = select(approval_notices.c.action_id).where(approval_notices.c.action_id == action.id)
    if tx.execute(asked).first() is not None:
        queue.add(tx, question_job(action.account_id, action.id))


def renew_stale(tx: Tx, queue: JobQueue, now: datetime) -> int:
    """Questions that could not be asked when they came up (the token was wrong, say), and such that are over and still
    show their buttons; how many."""
    is_open = actions.c.status == ActionStatus.APPROVED_PENDING
    never_asked = is_open & (approval_notices.c.state == NoticeState.SENDING)
    left_open = ~is_open & (approval_notices.c.state != NoticeState.CLOSED)
    stale = (
        select(actions.c.account_id, actions.c.id)
        .join(approval_notices, approval_notices.c.action_id == actions.c.id)
        .where(or_(never_asked, left_open), approval_notices.c.updated_at <= now - _SETTLED)
        .where(actions.c.updated_at <= now - _SETTLED)
        .order_by(actions.c.id)
        .limit(_AT_ONCE)
    )
    found = tx.execute(stale).all()
    queue.add(tx, *(question_job(account_id, action_id) for account_id, action_id in found))
    return len(found)
