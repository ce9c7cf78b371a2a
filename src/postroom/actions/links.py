"""Which action undoes which: "the cause is the undo of the effect". An action has one undo at most."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, select

from postroom.actions import store
from postroom.actions.store import Action
from postroom.db import Tx
from postroom.db.tables.actions import action_links, actions
from postroom.db.upsert import insert
from postroom.domain import jobs
from postroom.domain.errors import Fatal
from postroom.domain.ids import new_id
from postroom.queue import NewJob

UNDO_OF = "undo_of"


def undo_job(account_id: str, original_action_id: str) -> NewJob:
    payload = {"account_id": account_id, "original_action_id": original_action_id}
    return NewJob(jobs.UNDO, payload, key=f"{jobs.UNDO}:{account_id}:{original_action_id}")


def undo_of(tx: Tx, action_id: str) -> Action | None:
    """The action that undoes this one, if there is one."""
    query = select(actions).join(action_links, action_links.c.cause_action_id == actions.c.id)
    row = tx.execute(query.where(action_links.c.effect_action_id == action_id)).one_or_none()
    return None if row is None else store.from_row(row)


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
