"""Taking back all that the model, or a rule, did within a stretch of time, as one deed.

A person sees first what it comes to. One job then asks for the undo of each action, the newest first and some at a
time, so that it may be many; each undo runs as any other, at the pace of the mailbox. How far it is, and what could not
be taken back, is read from the actions themselves: the stretch of time is fixed when it begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, func, or_, select

from postroom import audit
from postroom.actions import store, undo
from postroom.actions.store import Action
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.actions import action_links, actions
from postroom.db.tables.mail import messages
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import Origin
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput, Fatal
from postroom.queue import JobContext, JobQueue, JobType, KeyUse, NewJob
from postroom.queue.model import Json

UNDO_MANY = JobType(jobs.UNDO_MANY, KeyUse.REPEATABLE, keep_completed=100)
MOST_SURVEYED = 2_000
_AT_ONCE = 50
_CHANGED_SINCE = "the message was changed since, and is left as it is"
_BY = (Origin.MODEL, Origin.RULE)


@dataclass(frozen=True, slots=True)
class Span:
    """What one of them did, from a moment on and before another; of one account, or of all."""

    since: datetime
    until: datetime
    by: Origin = Origin.MODEL
    account_id: str | None = None

    def __post_init__(self) -> None:
        for name in ("since", "until"):
            object.__setattr__(self, name, require_utc(getattr(self, name), name))
        if self.since >= self.until:
            raise BadInput("since", "does not lie before until")
        if self.by not in _BY:
            raise BadInput("by", f"only what the model or a rule did is taken back together, not by {self.by}")

    def conditions(self) -> list[ColumnElement[bool]]:
        done = actions.c.finished_at
        found = [actions.c.status == S.COMPLETED, actions.c.origin == self.by, done >= self.since, done < self.until]
        return found if self.account_id is None else [*found, actions.c.account_id == self.account_id]

    def to_json(self) -> Json:
        told = {"by": str(self.by), "since": self.since.isoformat(), "until": self.until.isoformat()}
        return told if self.account_id is None else {**told, "account_id": self.account_id}


class Progress(StrEnum):
    OPEN = "can be undone"
    UNDER_WAY = "is being undone"
    UNDONE = "undone"
    FAILED = "failed"
    LEFT = "cannot be undone"


@dataclass(frozen=True, slots=True)
class Surveyed:
    action: Action
    subject: str | None
    sender: str | None
    progress: Progress
    reason: str | None
    """Why it failed, cannot be undone, or was left as it is."""


@dataclass(frozen=True, slots=True)
class Survey:
    total: int
    """All actions within the span."""
    items: Sequence[Surveyed]
    """The newest of them, first."""

    @property
    def counts(self) -> Counter[Progress]:
        return Counter(item.progress for item in self.items)

    @property
    def is_whole(self) -> bool:
        return len(self.items) == self.total

    @property
    def not_undone(self) -> list[Surveyed]:
        """What a person should know of: it failed, it cannot be taken back, or somebody had changed it."""
        return [item for item in self.items if item.reason is not None]


def survey(tx: Tx, span: Span) -> Survey:
    """How the actions of a span stand: before anything is undone, and while it is."""
    total = tx.execute(select(func.count()).select_from(actions).where(*span.conditions())).scalar_one()
    rows = tx.execute(_surveyed(span).limit(MOST_SURVEYED)).all()
    return Survey(int(total), [_read(row) for row in rows])


def start(tx: Tx, queue: JobQueue, span: Span, who: Actor) -> str:
    """Have all of it undone by a job; its id. The audit has the deed once, and each undo besides."""
    now, told = queue.clock.now(), span.to_json()
    payload = {**told, "who": [who.role, who.name]}
    key = ":".join([jobs.UNDO_MANY, *told.values()])
    job_id = queue.add(tx, NewJob(jobs.UNDO_MANY, payload, key=key))[0].job_id
    audit.record(tx, who, "actions.undo_span", ("job", job_id), now, after=told)
    return job_id


async def undo_many(context: JobContext) -> Json:
    """The job `undo.span`. Run again after a crash, it finds what it has asked for already."""
    span, who = _payload(context)
    place: tuple[datetime, str] | None = None
    asked = left = 0
    while True:
        rows = await context.write(partial(_ask, queue=context.queue, span=span, who=who, place=place))
        if not rows:
            return {"asked": asked, "left": left}
        asked += sum(done for _, done in rows)
        left += sum(not done for _, done in rows)
        place = rows[-1][0]


def _ask(
    tx: Tx, *, queue: JobQueue, span: Span, who: Actor, place: tuple[datetime, str] | None
) -> list[tuple[tuple[datetime, str], bool]]:
    """Ask for the undo of the next few; for each its place in the order, and whether it is undone."""
    query = _surveyed(span).limit(_AT_ONCE)
    if place is not None:
        done, action_id = place
        earlier = and_(actions.c.finished_at == done, actions.c.id < action_id)
        query = query.where(or_(actions.c.finished_at < done, earlier))
    found: list[tuple[tuple[datetime, str], bool]] = []
    for row in tx.execute(query).all():
        wanted = _read(row).progress in (Progress.OPEN, Progress.FAILED)
        if wanted:
            undo.request(tx, queue, row.id, who)
        found.append(((row.finished_at, row.id), wanted))
    return found


_undos = actions.alias("undos")


def _surveyed(span: Span) -> Select[*tuple[Any, ...]]:
    """The newest first, so that the last change is taken back before the one beneath it."""
    return (
        select(
            actions,
            messages.c.subject.label("its_subject"),
            messages.c.sender_identity.label("its_sender"),
            _undos.c.status.label("undo_status"),
            _undos.c.error.label("undo_error"),
            _undos.c.undo_hint.label("undo_outcome"),
        )
        .join(messages, messages.c.id == actions.c.message_id, isouter=True)
        .join(action_links, action_links.c.effect_action_id == actions.c.id, isouter=True)
        .join(_undos, _undos.c.id == action_links.c.cause_action_id, isouter=True)
        .where(*span.conditions())
        .order_by(actions.c.finished_at.desc(), actions.c.id.desc())
    )


def _read(row: Row[*tuple[Any, ...]]) -> Surveyed:
    action = store.from_row(row)
    progress, reason = _standing(row, action)
    return Surveyed(action, row.its_subject, row.its_sender, progress, reason)


def _standing(row: Row[*tuple[Any, ...]], action: Action) -> tuple[Progress, str | None]:
    match row.undo_status:
        case None | S.CANCELED:
            reason = undo.impossible(action)
            return (Progress.OPEN, None) if reason is None else (Progress.LEFT, reason)
        case S.COMPLETED:
            unchanged = (row.undo_outcome or {}).get("nothing_changed")
            return Progress.UNDONE, _CHANGED_SINCE if unchanged else None
        case S.FAILED:
            return Progress.FAILED, row.undo_error or "it failed"
        case _:
            return Progress.UNDER_WAY, None


def _payload(context: JobContext) -> tuple[Span, Actor]:
    given = context.job.payload
    try:
        since, until = (datetime.fromisoformat(str(given[name])) for name in ("since", "until"))
        role, name = given["who"]
        return Span(since, until, Origin(given["by"]), given.get("account_id")), Actor(str(role), str(name))
    except (KeyError, ValueError, TypeError, BadInput) as error:
        raise Fatal(f"The job's payload cannot be used: {error!r}") from None
