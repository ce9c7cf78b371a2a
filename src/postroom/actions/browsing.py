"""Looking at actions: lists by what a person asks for, newest first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, exists, func, or_, select, text

from postroom.actions import lifecycle
from postroom.actions.lifecycle import Action
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import FAILED_WITH_JOB, action_links, actions
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.clock import require_utc
from postroom.domain.errors import BadInput
from postroom.domain.ids import is_id, parse_id

MOST_LISTED = 500
_LOOKED_THROUGH = 5_000
"""At most this many actions are searched for one page, where no index finds the wanted ones."""


@dataclass(frozen=True, slots=True)
class ActionFilter:
    status: ActionStatus | None = None
    type: ActionType | None = None
    origin: Origin | None = None
    rule: str | None = None
    """Its id or its name."""
    account_id: str | None = None
    message_id: str | None = None
    gmail_id: str | None = None
    """With `account_id`: a message, whether or not it was taken in."""
    text: str | None = None
    """In the subject or the sender of its message; ASCII case is ignored."""
    since: datetime | None = None
    until: datetime | None = None
    """Not included."""
    before_id: str | None = None
    """Only actions older than this one: the last id of the page before."""
    limit: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MOST_LISTED:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_LISTED}")
        for name in ("since", "until"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, require_utc(value, name))
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise BadInput("since", "does not lie before until")

    def conditions(self) -> list[ColumnElement[bool]]:
        found: list[ColumnElement[bool]] = []
        for name in ("status", "type", "origin", "account_id", "message_id", "gmail_id"):
            if (value := getattr(self, name)) is not None:
                found.append(actions.c[name] == value)
        if self.text is not None:
            found.append(or_(*(_holds(column, self.text) for column in _recognised_by())))
        if self.rule is not None:
            found.append(of_rule(self.rule))
        if self.since is not None:
            found.append(moment() >= self.since)
        if self.until is not None:
            found.append(moment() < self.until)
        if self.before_id is not None:
            found.append(actions.c.id < parse_id(self.before_id, "before_id"))
        return found


def _holds(column: ColumnElement[Any], text: str) -> ColumnElement[bool]:
    """Ignoring case. SQLite folds only ASCII, so other letters are also searched for as given."""
    return or_(column.contains(text, autoescape=True), func.lower(column).contains(text.lower(), autoescape=True))


def of_rule(rule: str) -> ColumnElement[bool]:
    """By its id, along an index, or by its name."""
    return actions.c.rule_id == rule if is_id(rule) else actions.c.rule_name == rule


def moment() -> ColumnElement[datetime]:
    """When it was done, or wanted where it is not done yet."""
    return func.coalesce(actions.c.finished_at, actions.c.created_at, type_=actions.c.created_at.type)


@dataclass(frozen=True, slots=True)
class Listed:
    """An action with what a person recognises its message by."""

    action: Action
    subject: str | None
    sender: str | None
    is_undone: bool = False


def _recognised_by() -> tuple[ColumnElement[str | None], ...]:
    return messages.c.subject, messages.c.sender_identity, actions.c.subject, actions.c.sender


def its_subject_and_sender() -> tuple[ColumnElement[str | None], ColumnElement[str | None]]:
    """Of an action's message, by which a person recognises it; from the archive where the message is only there."""
    return (
        func.coalesce(messages.c.subject, actions.c.subject).label("its_subject"),
        func.coalesce(messages.c.sender_identity, actions.c.sender).label("its_sender"),
    )


def _is_undone() -> ColumnElement[bool]:
    undo = actions.alias()
    return exists(
        select(undo.c.id)
        .join(action_links, action_links.c.cause_action_id == undo.c.id)
        .where(action_links.c.effect_action_id == actions.c.id, undo.c.status == ActionStatus.COMPLETED)
    )


def list_actions(tx: Tx, which: ActionFilter) -> list[Listed]:
    query = _listed().where(*which.conditions()).order_by(actions.c.id.desc()).limit(which.limit)
    return [_from_row(row) for row in tx.execute(query)]


@dataclass(frozen=True, slots=True)
class Lookback:
    """A page of actions, from among those that were looked through for it."""

    found: list[Listed]
    next: str | None
    """As `before_id` it leads to what is older; None if there is nothing older."""


def look_back(tx: Tx, which: ActionFilter) -> Lookback:
    """Like `list_actions`, but searches a limited number: a page may be short or empty and still not be the last."""
    indexed = replace(which, type=None, origin=None, account_id=None, text=None)
    oldest = None if indexed == which else _end_of_window(tx, indexed)
    query = _listed().where(*which.conditions())
    if oldest is not None:
        query = query.where(actions.c.id >= oldest)
    rows = tx.execute(query.order_by(actions.c.id.desc()).limit(which.limit + 1)).all()
    found = [_from_row(row) for row in rows[: which.limit]]
    if len(rows) > which.limit:
        return Lookback(found, found[-1].action.id)
    return Lookback(found, oldest)


def _end_of_window(tx: Tx, which: ActionFilter) -> str | None:
    """The last action to search for one page; None if few enough are left."""
    query = select(actions.c.id).where(*which.conditions()).order_by(actions.c.id.desc())
    row = tx.execute(query.offset(_LOOKED_THROUGH).limit(1)).one_or_none()
    return None if row is None else str(row.id)


def show(tx: Tx, action_id: str) -> Listed:
    """NotFound where there is none."""
    action = lifecycle.get_action(tx, action_id)
    return _from_row(tx.execute(_listed().where(actions.c.id == action.id)).one())


def _listed() -> Select[*tuple[Any, ...]]:
    return select(
        actions,
        *its_subject_and_sender(),
        _is_undone().label("is_undone"),
        lifecycle.list_header(),
    ).join(messages, messages.c.id == actions.c.message_id, isouter=True)


def _from_row(row: Row[*tuple[Any, ...]]) -> Listed:
    return Listed(lifecycle.action_from_row(row), row.its_subject, row.its_sender, bool(row.is_undone))


def failed_jobs() -> Select[tuple[str]]:
    """Jobs that failed on their own: one that failed with its action stands for it, and is dismissed with it."""
    # In the exact words of the partial indexes: SQLite does not use one for a condition with parameters.
    has_failed = text("jobs.state = 'failed' AND jobs.finished_at IS NOT NULL")
    return select(jobs.c.id).where(has_failed, ~exists().where(actions.c.job_id == jobs.c.id, FAILED_WITH_JOB))


@dataclass(frozen=True, slots=True)
class ActionWindow:
    """Completed actions of a rule, of a stretch of time, or of both: never everything by accident."""

    rule: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    account_id: str | None = None

    def __post_init__(self) -> None:
        if self.rule is None and (self.since is None or self.until is None):
            raise BadInput("since", "name an action, a rule, or a time window with both its ends")


def completed_in(tx: Tx, window: ActionWindow) -> list[Action]:
    """Newest first, so that the last change is taken back before the one beneath it; never more than MOST_LISTED."""
    which = ActionFilter(
        status=ActionStatus.COMPLETED,
        rule=window.rule,
        since=window.since,
        until=window.until,
        account_id=window.account_id,
    )
    query = select(actions).where(*which.conditions(), actions.c.origin != Origin.UNDO)
    rows = tx.execute(query.order_by(actions.c.finished_at.desc(), actions.c.id.desc()).limit(MOST_LISTED + 1)).all()
    if len(rows) > MOST_LISTED:
        raise BadInput("since", f"these are more than {MOST_LISTED} actions; choose a shorter time")
    return [lifecycle.action_from_row(row) for row in rows]
