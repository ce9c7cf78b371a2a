"""The net beneath all actions: none waits for ever, and none is at work for ever.

A job can end without its handler having the last word: cancelled by hand, or killed in its last attempt. Then nobody
works on the action any more, and this says so. A wake-up is never given up: its message is hidden until it succeeds.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import func, or_, select

from postroom.accounts.store import AccountStatus
from postroom.actions import instruments, line, snoozes, store
from postroom.actions.snoozes import SnoozeState
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.actions import actions
from postroom.db.tables.actions import snoozes as snoozes_table
from postroom.db.tables.queue import jobs
from postroom.domain.actions import ActionStatus as S
from postroom.queue import JobContext, JobQueue, JobState, JobType, KeyUse, RetryPolicy, Schedule
from postroom.queue.model import FINISHED, Json

UPKEEP = JobType("actions.upkeep", KeyUse.REPEATABLE, RetryPolicy(max_attempts=2), keep_completed=20)
UPKEEP_SCHEDULE = Schedule(UPKEEP.name, UPKEEP.name, "every 1m", {})
_GRACE = timedelta(seconds=30)
_WAKE_AGAIN = timedelta(hours=1)
_AT_ONCE = 200


async def upkeep(context: JobContext) -> Json:
    await context.complete(lambda tx: _tend(tx, context.queue) | {"woken": wake_overdue(tx, context.queue)})
    instruments.set_questions_open(await context.queue.database.read(_questions_open))
    return None


def _questions_open(tx: Tx) -> int:
    waiting = select(func.count()).select_from(actions).where(actions.c.status == S.APPROVED_PENDING)
    return int(tx.execute(waiting).scalar_one())


def wake_overdue(tx: Tx, queue: JobQueue) -> int:
    """Wake-ups that failed are tried again each hour: a login may have been renewed, a permission given."""
    now = queue.clock.now()
    dead = jobs.c.state.in_(FINISHED) & (jobs.c.finished_at <= now - _WAKE_AGAIN)
    query = (
        select(snoozes_table.c.action_id)
        .join(accounts, accounts.c.id == snoozes_table.c.account_id)
        .join(jobs, jobs.c.id == snoozes_table.c.job_id, isouter=True)
        .where(accounts.c.status != AccountStatus.REMOVED)
        .where(snoozes_table.c.state == SnoozeState.WAITING, snoozes_table.c.until <= now - _GRACE)
        .where(or_(jobs.c.id.is_(None), dead))
        .limit(_AT_ONCE)
    )
    # Looked at once more under its lock: somebody may have changed its time, or ended it.
    found = [snoozes.find(tx, action_id, lock=True) for action_id in tx.execute(query).scalars().all()]
    overdue = [each for each in found if each and each.state is SnoozeState.WAITING and each.until <= now - _GRACE]
    for each in overdue:
        job = snoozes.wake_job(each.account_id, each.message_id, each.action_id, each.label_id, None)
        snoozes.set_until(tx, each.action_id, each.until, queue.add(tx, job)[0].job_id, now)
    return len(overdue)


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
        action = store.from_row(row)
        if action.status is S.EXECUTING or row.job_state in (JobState.FAILED, JobState.CANCELED):
            reason = row.job_error or f"Its job was {row.job_state or 'lost'} before it was done."
            if store.move(tx, action.id, action.status, S.FAILED, now, error=str(reason)):
                line.call_next(tx, queue, action, now)
                tally["failed"] += 1
        elif line.first_before(tx, action) is None:
            line.enqueue(tx, queue, action, now)
            tally["called"] += 1
    return tally
