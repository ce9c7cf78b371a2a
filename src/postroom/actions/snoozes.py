"""Snoozes in the control database: which mail is hidden until when, and the job that brings it back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, select, update

from postroom.actions.store import Action
from postroom.db import Tx
from postroom.db.tables.actions import actions, snoozes
from postroom.db.tables.mail import messages
from postroom.db.upsert import insert
from postroom.domain import jobs
from postroom.queue import JobQueue, NewJob


class SnoozeState(StrEnum):
    WAITING = "waiting"
    WOKEN = "woken"
    CANCELED = "canceled"


@dataclass(frozen=True, slots=True)
class Snooze:
    action_id: str
    account_id: str
    message_id: str | None
    gmail_id: str
    subject: str | None
    until: datetime
    label_id: str
    label_name: str
    job_id: str
    state: SnoozeState


def wake_job(
    account_id: str, message_id: str | None, action_id: str, label_id: str, not_before: datetime | None
) -> NewJob:
    payload = {
        "account_id": account_id,
        "message_id": message_id,
        "action_id": action_id,
        "snooze_label_id": label_id,
    }
    return NewJob(jobs.UNSNOOZE, payload, key=f"{jobs.UNSNOOZE}:{account_id}:{action_id}", not_before=not_before)


def write(tx: Tx, action: Action, until: datetime, label: tuple[str, str], job_id: str, now: datetime) -> None:
    """A snooze that is arranged once more, after a retry by hand, takes the place of its first try."""
    row = {
        "action_id": action.id,
        "account_id": action.account_id,
        "until": until,
        "label_id": label[0],
        "label_name": label[1],
        "job_id": job_id,
        "state": SnoozeState.WAITING,
        "updated_at": now,
    }
    written = insert(tx, snoozes).values(row)
    tx.execute(written.on_conflict_do_update(index_elements=["action_id"], set_=row))


def find(tx: Tx, action_id: str, *, lock: bool = False) -> Snooze | None:
    if lock:
        tx.execute(tx.locking(select(snoozes.c.action_id).where(snoozes.c.action_id == action_id)))
    row = tx.execute(_joined().where(snoozes.c.action_id == action_id)).one_or_none()
    return None if row is None else _snooze(row)


def waiting(tx: Tx, account_id: str | None = None, most: int | None = None) -> list[Snooze]:
    """The next to come back first."""
    query = _joined().where(snoozes.c.state == SnoozeState.WAITING).order_by(snoozes.c.until, snoozes.c.action_id)
    if account_id is not None:
        query = query.where(snoozes.c.account_id == account_id)
    return [_snooze(row) for row in tx.execute(query.limit(most))]


def end(tx: Tx, action_id: str, state: SnoozeState, now: datetime) -> bool:
    """False if it was over before."""
    mine = (snoozes.c.action_id == action_id) & (snoozes.c.state == SnoozeState.WAITING)
    return tx.execute(update(snoozes).where(mine).values(state=state, updated_at=now)).rowcount == 1


def call_off_first_try(tx: Tx, queue: JobQueue, action_id: str) -> bool:
    """Whether the same snooze was tried before. While its wake-up waits, the key would keep the next to that time."""
    first = find(tx, action_id)
    if first is not None:
        queue.cancel_within(tx, first.job_id)
    return first is not None


def replace_earlier(tx: Tx, queue: JobQueue, action: Action, now: datetime) -> bool:
    """The message follows its newest snooze alone; whether there was another."""
    earlier = _joined().where(
        snoozes.c.state == SnoozeState.WAITING,
        snoozes.c.action_id != action.id,
        actions.c.account_id == action.account_id,
        actions.c.gmail_id == action.gmail_id,
    )
    found = [_snooze(row) for row in tx.execute(earlier).all()]
    for each in found:
        queue.cancel_within(tx, each.job_id)
        end(tx, each.action_id, SnoozeState.CANCELED, now)
    return bool(found)


def set_until(tx: Tx, action_id: str, until: datetime, job_id: str, now: datetime) -> None:
    mine = snoozes.c.action_id == action_id
    tx.execute(update(snoozes).where(mine).values(until=until, job_id=job_id, updated_at=now))


def _joined() -> Any:
    return (
        select(snoozes, actions.c.gmail_id, actions.c.message_id, messages.c.subject)
        .join(actions, actions.c.id == snoozes.c.action_id)
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
    )


def _snooze(row: Row[*tuple[Any, ...]]) -> Snooze:
    return Snooze(
        action_id=row.action_id,
        account_id=row.account_id,
        message_id=row.message_id,
        gmail_id=row.gmail_id,
        subject=row.subject,
        until=row.until,
        label_id=row.label_id,
        label_name=row.label_name,
        job_id=row.job_id,
        state=SnoozeState(row.state),
    )
