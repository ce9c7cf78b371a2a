"""Mail that a backfill job brought and nothing has decided yet, and the line in which mail waits for money.

Every job has its line, and live mail has one. Those who wait are served in the order in which they were accepted; the
first of a line is released when money becomes free, and none is overtaken. A message whose job in the queue failed is
`unjudged` and holds no other up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, bindparam, delete, exists, func, or_, select, update

from postroom.audit import SYSTEM, Actor
from postroom.db import Prepared, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import messages
from postroom.db.tables.mail import undecided_mail as undecided
from postroom.db.tables.queue import jobs as queued
from postroom.db.tables.triage import decisions
from postroom.domain.jobs import CLASSIFY, JobState
from postroom.domain.terms import BackfillStatus
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.switchboard.backfill.job import BackfillEvent, BackfillJob, find_job, jobs_table, move_job

OPEN, WAITING, UNJUDGED = "open", "waiting", "unjudged"
_ALIVE = (JobState.QUEUED, JobState.RUNNING)


@dataclass(frozen=True, slots=True)
class Backlog:
    """Mail of a backfill job that is still to be decided."""

    count: int = 0
    age: timedelta = timedelta()
    """How long half of it has waited, so about how long half of it takes."""

    @property
    def with_one_more(self) -> Backlog:
        return Backlog(self.count + 1, self.age)


def enter(tx: Tx, mail: Iterable[tuple[str, str, str]], now: datetime) -> None:
    """Messages that were taken in, each with its backfill job and the queue's job that decides it."""
    rows = [
        {"message_id": message, "backfill_job_id": job, "queue_job_id": queue_job, "state": OPEN, "since": now}
        for message, job, queue_job in mail
    ]
    if rows:
        tx.execute(undecided.insert(), rows)


def backlog(tx: Tx, job_id: str, now: datetime) -> Backlog:
    if not (count := count_undecided(tx, job_id)):
        return Backlog()
    mine = (undecided.c.backfill_job_id == job_id) & (undecided.c.state != UNJUDGED)
    in_order = select(undecided.c.since).where(mine).order_by(undecided.c.since)
    return Backlog(count, now - tx.execute(in_order.offset(count // 2).limit(1)).scalar_one())


def count_undecided(tx: Tx, job_id: str) -> int:
    """How many of a job's messages are still to be decided."""
    return _count(tx, job_id, undecided.c.state != UNJUDGED)


def count_unjudged(tx: Tx, job_id: str) -> int:
    """How many of a job's messages were given up."""
    return _count(tx, job_id, undecided.c.state == UNJUDGED)


def _count(tx: Tx, job_id: str, which: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(undecided).where(undecided.c.backfill_job_id == job_id, which)
    return int(tx.execute(query).scalar_one())


def wait(tx: Tx, message_id: str, job_id: str | None, queue_job_id: str, now: datetime) -> None:
    """Put a message into its line, or leave it at its place there."""
    values = {"queue_job_id": queue_job_id, "state": WAITING, "since": now}
    row = insert(tx, undecided).values(message_id=message_id, backfill_job_id=job_id, **values)
    tx.execute(row.on_conflict_do_update(index_elements=["message_id"], set_=values))


def is_behind(tx: Tx, job_id: str | None, queue_job_id: str) -> bool:
    """Whether a message that was accepted earlier waits in the same line."""
    which = {} if job_id is None else {"the_backfill": job_id}
    return bool(tx.run(_BEHIND_LIVE if job_id is None else _BEHIND, which | {"the_job": queue_job_id}))


# Made once: every call of the model runs these, and to build a statement takes longer than to run it.
_SELF = queued.alias()
SOMETHING_WAITS = select(undecided.c.message_id).where(undecided.c.state == WAITING).exists()
"""Whether any mail waits for money: most often none does."""
_HERE = undecided.c.message_id == bindparam("the_message")
_LEAVE = Prepared(delete(undecided).where(_HERE, undecided.c.backfill_job_id.is_(None)))
_REOPEN = Prepared(update(undecided).where(_HERE, undecided.c.state == WAITING))
_LINES = Prepared(
    select(undecided.c.backfill_job_id, undecided.c.queue_job_id)
    .where(undecided.c.state == WAITING, undecided.c.queue_job_id == queued.c.id)
    .where(or_(*(queued.c.state == state for state in _ALIVE)))
    .order_by(queued.c.seq)
)
_EARLIER = (
    select(undecided.c.message_id)
    .where(undecided.c.state == WAITING, undecided.c.queue_job_id == queued.c.id)
    .where(or_(*(queued.c.state == state for state in _ALIVE)))
    .where(queued.c.seq < select(_SELF.c.seq).where(_SELF.c.id == bindparam("the_job")).scalar_subquery())
    .limit(1)
)
_BEHIND = Prepared(_EARLIER.where(undecided.c.backfill_job_id == bindparam("the_backfill")))
_BEHIND_LIVE = Prepared(_EARLIER.where(undecided.c.backfill_job_id.is_(None)))
_TAKE_OFF = Prepared(delete(undecided).where(_HERE).returning(undecided.c.state))


def leave_line(tx: Tx, message_id: str) -> None:
    """A message got its money. Mail of a backfill job stays listed until it is decided."""
    tx.run(_LEAVE, {"the_message": message_id})
    tx.run(_REOPEN, {"the_message": message_id, "state": OPEN})


def release_first(tx: Tx, queue: JobQueue, job_ids: Iterable[str | None] | None = None) -> None:
    """Let the first of each line try again; `job_ids` names the lines, None being that of live mail."""
    wanted = None if job_ids is None else set(job_ids)
    first: dict[str | None, str] = {}
    for row in tx.run(_LINES, {}):
        if wanted is None or row.backfill_job_id in wanted:
            first.setdefault(row.backfill_job_id, row.queue_job_id)
    queue.release_within(tx, first.values())


def release_all(tx: Tx, queue: JobQueue, job_id: str) -> None:
    """Let all mail of a job go on: it no longer waits for money."""
    query = select(undecided.c.queue_job_id).where(undecided.c.backfill_job_id == job_id, undecided.c.state == WAITING)
    queue.release_within(tx, list(tx.execute(query).scalars()))


def decided(tx: Tx, queue: JobQueue, message_id: str, job_id: str | None, now: datetime) -> None:
    """A message is decided. The last one of a job whose mail is all in completes the job.

    The job is locked before those who wait, as a settlement does: else the two could wait for each other.
    """
    job = None if job_id is None else find_job(tx, job_id, lock=True)
    state = next((row.state for row in tx.run(_TAKE_OFF, {"the_message": message_id})), None)
    if job is None:
        return
    if state == WAITING:
        release_first(tx, queue, [job.id])
    if job.walked_at is not None:
        complete_if_decided(tx, job, now)


def complete_if_decided(tx: Tx, job: BackfillJob, now: datetime, who: Actor = SYSTEM) -> BackfillJob:
    """Complete a job whose mail is all in and decided. One that is paused is completed when it is resumed."""
    may_end = job.status in (BackfillStatus.ACTIVE, BackfillStatus.PENDING, BackfillStatus.COST_CAPPED)
    if job.walked_at is None or not may_end or count_undecided(tx, job.id):
        return job
    return move_job(tx, job, BackfillEvent.COMPLETE, who, now, completed_at=now)


def give_up(tx: Tx, now: datetime) -> int:
    """List as unjudged what the queue no longer works on, and complete the jobs that only waited for it."""
    working = exists().where(queued.c.id == undecided.c.queue_job_id, queued.c.state.in_(_ALIVE))
    dead = and_(undecided.c.state != UNJUDGED, ~working)
    given_up = tx.execute(
        update(undecided).where(dead).values(state=UNJUDGED, since=now).returning(undecided.c.backfill_job_id)
    ).scalars()
    count = len(list(given_up))
    tx.execute(delete(undecided).where(undecided.c.state == UNJUDGED, undecided.c.backfill_job_id.is_(None)))
    jobs = jobs_table(tx)
    ending = (BackfillStatus.ACTIVE, BackfillStatus.PENDING, BackfillStatus.COST_CAPPED)
    walked = select(jobs.c.id).where(jobs.c.walked_at.is_not(None), jobs.c.status.in_(ending)).order_by(jobs.c.id)
    for job_id in list(tx.execute(walked).scalars()):
        complete_if_decided(tx, find_job(tx, job_id, lock=True), now)
    return count


def try_again(tx: Tx, queue: JobQueue, job_id: str) -> int:
    """Queue the messages that were given up once more, each as the job that failed, or as a new one if the queue has
    forgotten that; answers how many."""
    query = (
        select(undecided.c.queue_job_id, queued.c.state, *(messages.c[name] for name in _TO_CLASSIFY))
        .join(messages, messages.c.id == undecided.c.message_id)
        .outerjoin(queued, queued.c.id == undecided.c.queue_job_id)
        .where(undecided.c.backfill_job_id == job_id, undecided.c.state == UNJUDGED)
        .order_by(undecided.c.queue_job_id)
    )
    rows = tx.execute(query).all()
    for row in rows:
        again = row.queue_job_id
        if row.state in (JobState.FAILED, JobState.CANCELED):
            queue.retry_within(tx, again)
        elif row.state not in _ALIVE:
            again = queue.add(tx, _classify_anew(row))[0].job_id
        here = undecided.c.message_id == row.id
        tx.execute(update(undecided).where(here).values(queue_job_id=again, state=OPEN))
    return len(rows)


def _classify_anew(row: Row[Any]) -> NewJob:
    """Its first key stays spent, so it gets another one."""
    key = f"{CLASSIFY.name}:{row.account_id or row.endpoint_identity}:{row.id}:{row.queue_job_id}"
    payload = {"account_id": row.account_id, "message_id": row.id}
    return NewJob(CLASSIFY.name, payload, QueueName.HISTORY, row.policy_tier, key=key)


_TO_CLASSIFY = ("id", "account_id", "endpoint_identity", "policy_tier")


@dataclass(frozen=True, slots=True)
class JudgedMail:
    """How many of a job's messages were decided, and by whom."""

    by_rule: int = 0
    learned: int = 0
    by_model: int = 0
    left_alone: int = 0
    """What no rule decided and no model was asked about, or what needs nothing done."""
    for_review: int = 0
    """Left to a person."""


def judged(tx: Tx, job_id: str) -> JudgedMail:
    by_source: Counter[str] = Counter()
    query = (
        select(decisions.c.source, decisions.c.needs_review, func.count().label("messages"))
        .where(decisions.c.backfill_job_id == job_id)
        .group_by(decisions.c.source, decisions.c.needs_review)
    )
    for_review = 0
    for row in tx.execute(query):
        if row.needs_review:
            for_review += row.messages
        else:
            by_source[row.source] += row.messages
    return JudgedMail(
        by_rule=by_source["deterministic"],
        learned=by_source["learned"],
        by_model=by_source["llm"],
        left_alone=by_source["none"],
        for_review=for_review,
    )
