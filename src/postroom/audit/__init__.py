"""The audit log: who did what to which thing, and how it stood before and after.

An entry is committed together with the change it describes. A sealer chains it within two seconds (`sealing.py`), and
`verifying.py` finds what was changed, removed, reordered or added since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Select, select

from postroom.db import Tx
from postroom.db.tables.access import audit_log, audit_pending
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id, parse_id
from postroom.domain.roles import Caller
from postroom.domain.validation import MOST_AUDIT_ENTRIES

State = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Actor:
    """Who did it: a role and a name."""

    role: str
    name: str

    @classmethod
    def of(cls, caller: Caller) -> Actor:
        return cls(caller.role, caller.name)


SYSTEM = Actor("system", "postroom")
"""No person asked: a budget, a clock or a lease decided."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    id: str
    at: datetime
    actor: Actor
    action: str
    subject_type: str
    subject_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    action: str | None = None
    subject_type: str | None = None
    subject_id: str | None = None
    before_id: str | None = None
    """Only entries older than this one: the last id of the page before."""
    limit: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MOST_AUDIT_ENTRIES:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_AUDIT_ENTRIES}")


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Newest first; `next_before_id` asks for the page after, None if this is the last."""

    entries: list[AuditEntry]
    next_before_id: str | None


def record(
    tx: Tx,
    who: Actor,
    action: str,
    subject: tuple[str, str],
    now: datetime,
    *,
    before: State | None = None,
    after: State | None = None,
) -> str:
    """Write an entry within the transaction that makes the change, so that neither exists without the other."""
    entry_id = new_id()
    subject_type, subject_id = subject
    tx.execute(
        audit_log.insert().values(
            id=entry_id,
            at=now,
            actor_role=who.role,
            actor_name=who.name,
            action=action,
            subject_type=subject_type,
            subject_id=subject_id,
            before=None if before is None else dict(before),
            after=None if after is None else dict(after),
        )
    )
    tx.execute(audit_pending.insert().values(entry_id=entry_id))
    return entry_id


def list_entries(tx: Tx, which: AuditFilter) -> AuditPage:
    rows = tx.execute(entries_query(which)).all()
    entries = [
        AuditEntry(
            id=row.id,
            at=row.at,
            actor=Actor(row.actor_role, row.actor_name),
            action=row.action,
            subject_type=row.subject_type,
            subject_id=row.subject_id,
            before=row.before,
            after=row.after,
        )
        for row in rows[: which.limit]
    ]
    return AuditPage(entries, entries[-1].id if len(rows) > which.limit else None)


def entries_query(which: AuditFilter) -> Select[Any]:
    """Uses the index of the most selective filter. SQLite would pick any, so the other columns are hidden from it in
    expressions.
    """
    query = select(audit_log).order_by(audit_log.c.id.desc()).limit(which.limit + 1)
    given = [name for name in ("subject_id", "action", "subject_type") if getattr(which, name) is not None]
    for place, name in enumerate(given):
        column = audit_log.c[name] if place == 0 else audit_log.c[name].concat("")
        query = query.where(column == getattr(which, name))
    if which.before_id is not None:
        query = query.where(audit_log.c.id < parse_id(which.before_id, "before_id"))
    return query
