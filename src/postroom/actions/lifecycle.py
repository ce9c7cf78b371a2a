"""Actions in the control database: their rows, and the legal changes of their status.

A status changes only by compare-and-set along `LEGAL`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Row, Text, bindparam, delete, literal, select, update

from postroom.db import Prepared, Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, outgoing_files
from postroom.domain.actions import (
    ActionStatus,
    ActionType,
    LetterParameters,
    Origin,
    WantedAction,
    parameters_of,
    parse_action,
)
from postroom.domain.actions import ActionStatus as S
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id, parse_id
from postroom.mail.unsubscribing import link_host
from postroom.telemetry import logs
from postroom.telemetry.metrics import meter

LEGAL: Mapping[S, frozenset[S]] = MappingProxyType(
    {
        S.APPROVED_PENDING: frozenset({S.QUEUED, S.REJECTED, S.EXPIRED, S.CANCELED}),
        # Back to a person where, at the moment of execution, it may not be done unasked any more.
        S.QUEUED: frozenset({S.EXECUTING, S.FAILED, S.CANCELED, S.APPROVED_PENDING}),
        # To `executing` again only by the job that holds it, after a crash; to `queued` only by a person.
        S.EXECUTING: frozenset({S.EXECUTING, S.COMPLETED, S.FAILED, S.REFUSED, S.QUEUED, S.CANCELED}),
        S.FAILED: frozenset({S.QUEUED, S.DISMISSED}),
        S.DISMISSED: frozenset({S.QUEUED}),
        S.REFUSED: frozenset(),
        S.COMPLETED: frozenset(),
        S.REJECTED: frozenset({S.APPROVED_PENDING}),  # only by the person who rejected it, who takes that back
        S.EXPIRED: frozenset(),
        S.CANCELED: frozenset(),
    }
)

_LIST = "its_list"
RETRYABLE = frozenset({S.FAILED, S.DISMISSED})
FINISHED = RETRYABLE | {S.COMPLETED, S.REJECTED, S.EXPIRED, S.CANCELED, S.REFUSED}
"""Final, unless a person retries it."""
OPEN = frozenset(S) - FINISHED


def is_legal(from_: S, to: S) -> bool:
    return to in LEGAL[from_]


_ended = meter.create_counter(
    "postroom.actions.ended", unit="{action}", description="actions that came to an end, by type, origin and outcome"
)
_questions = meter.create_gauge(
    "postroom.actions.questions_open", unit="{action}", description="actions that wait for a person's approval"
)


def count_ended(action: ActionType, origin: Origin, outcome: ActionStatus) -> None:
    _ended.add(1, {"type": action.value, "origin": origin.value, "outcome": outcome.value})


def set_questions_open(count: int) -> None:
    _questions.set(count)


log = logs.get(__name__)

LONGEST_ERROR = 1_000
_SETTABLE = frozenset(
    {"pre_image", "undo_hint", "job_id", "error", "answered_by", "answered_at", "expires_at", "reasons"}
)


@dataclass(frozen=True, slots=True)
class Action:
    id: str
    account_id: str
    message_id: str | None
    """None once the message was forgotten here; the mailbox may have it still."""
    gmail_id: str
    thread_id: str | None
    decision_id: str | None
    position: int
    origin: Origin
    rule_id: str | None
    rule_name: str | None
    type: ActionType
    parameters: Mapping[str, Any]
    status: ActionStatus
    reasons: tuple[str, ...]
    pre_image: Mapping[str, Any] | None
    undo_hint: Mapping[str, Any] | None
    job_id: str | None
    error: str | None
    wanted_by: str
    answered_by: str | None
    answered_at: datetime | None
    expires_at: datetime | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    application_id: str | None
    """The application of a rule to past mail that it belongs to."""
    subject: str | None
    sender: str | None
    """Of its message, where only the archive has that."""
    host: str | None = None
    """Whom unsubscribing contacts, where that is known."""

    @property
    def wanted(self) -> WantedAction:
        """With its parameters checked; BadInput names what is wrong with them."""
        return parse_action(self.type, self.parameters)


@dataclass(frozen=True, slots=True)
class NewAction:
    account_id: str
    gmail_id: str
    wanted: WantedAction
    origin: Origin
    wanted_by: str
    message_id: str | None = None
    thread_id: str | None = None
    decision_id: str | None = None
    position: int = 0
    rule_id: str | None = None
    rule_name: str | None = None
    status: ActionStatus = ActionStatus.QUEUED
    reasons: tuple[str, ...] = ()
    job_id: str | None = None
    expires_at: datetime | None = None
    application_id: str | None = None
    subject: str | None = None
    sender: str | None = None
    id: str = field(default_factory=new_id)


# Made once: to build a statement takes longer than to run it.
_THE_ACTION, _HELD = actions.c.id == bindparam("the_action"), actions.c.job_id == bindparam("holder")
_CHANGE = update(actions).where(_THE_ACTION)
_MOVE = _CHANGE.where(actions.c.status == bindparam("source")).returning(actions.c.type, actions.c.origin)
_INSERTED = Prepared(actions.insert())
_FOUND = Prepared(select(actions).where(_THE_ACTION))
_MOVED, _MOVED_BY_HOLDER = Prepared(_MOVE), Prepared(_MOVE.where(_HELD))
_ASSIGNED = Prepared(_CHANGE)
_FIRST_IMAGE = Prepared(_CHANGE.where(_HELD, actions.c.pre_image.is_(None)).returning(actions.c.id))
_FILES_FORGOTTEN = Prepared(delete(outgoing_files).where(outgoing_files.c.action_id == bindparam("the_action")))
_MAY_HAVE_FILES = frozenset(each for each in ActionType if issubclass(parameters_of(each), LetterParameters))


def insert_action(tx: Tx, new: NewAction, now: datetime) -> str:
    """Insert an action; its id. The caller enqueues its job in the same transaction."""
    action_id, wanted = new.id, new.wanted.outline()
    tx.run(
        _INSERTED,
        dict(
            id=action_id,
            account_id=new.account_id,
            message_id=new.message_id,
            gmail_id=new.gmail_id,
            thread_id=new.thread_id,
            decision_id=new.decision_id,
            position=new.position,
            origin=new.origin,
            rule_id=new.rule_id,
            rule_name=new.rule_name,
            type=wanted.type,
            parameters=wanted.parameters_json(),
            status=new.status,
            reasons=list(new.reasons),
            job_id=new.job_id,
            wanted_by=new.wanted_by,
            expires_at=new.expires_at,
            application_id=new.application_id,
            subject=new.subject,
            sender=new.sender,
            created_at=now,
            updated_at=now,
        ),
    )
    for position, file in enumerate(new.wanted.files):
        if file.data is None:
            raise BadInput("attachments", f"{file.filename[:60]!r} has no content")
        tx.execute(outgoing_files.insert().values(action_id=action_id, position=position, content=file.content()))
    return action_id


def files_of(tx: Tx, action_id: str) -> list[bytes]:
    """What the files contain that it sends along, in the order of its parameters."""
    mine = select(outgoing_files.c.content).where(outgoing_files.c.action_id == action_id)
    return [bytes(content) for content in tx.execute(mine.order_by(outgoing_files.c.position)).scalars()]


def find_action(tx: Tx, action_id: str, *, lock: bool = False) -> Action | None:
    rows = tx.run(_FOUND, {"the_action": action_id}, lock=lock)
    return action_from_row(rows[0]) if rows else None


def get_action(tx: Tx, action_id: str, *, lock: bool = False) -> Action:
    """The action, or NotFound. `lock` keeps others from changing it until the transaction ends."""
    action_id = parse_id(action_id, "action")
    found = find_action(tx, action_id, lock=lock)
    if found is None:
        raise NotFound("action", f"there is no action {action_id}")
    return found


def mailbox_of_action(tx: Tx, action_id: str) -> str | None:
    """The address of the mailbox that it changes; None if there is no such action."""
    mine = select(accounts.c.email).join(actions, actions.c.account_id == accounts.c.id)
    return tx.execute(mine.where(actions.c.id == action_id)).scalar()


def move_action(
    tx: Tx,
    action_id: str,
    from_: ActionStatus | Collection[ActionStatus],
    to: ActionStatus,
    now: datetime,
    *,
    held_by: str | None = None,
    **values: Any,
) -> bool:
    """Compare-and-set of the status; False, and nothing changed, if the action is no longer `from_`.

    `held_by` also asks that this job be the one on record. `values` are set along with it.
    """
    sources = [from_] if isinstance(from_, ActionStatus) else list(from_)
    if illegal := [each for each in sources if not is_legal(each, to)]:
        raise AssertionError(f"an action never goes from {illegal[0]} to {to}")
    if unknown := values.keys() - _SETTABLE:
        raise AssertionError(f"{sorted(unknown)} are not set along with a status")
    if isinstance(values.get("error"), str):
        values["error"] = values["error"][:LONGEST_ERROR]
    values |= {"the_action": action_id, "status": to, "updated_at": now}
    values |= {"finished_at": now if to in FINISHED else None} | ({} if held_by is None else {"holder": held_by})
    move = _MOVED if held_by is None else _MOVED_BY_HOLDER
    row = next((row for source in sources for row in tx.run(move, values | {"source": source})), None)
    if row is not None and to in FINISHED:
        action_type, origin = ActionType(row.type), Origin(row.origin)
        if to not in RETRYABLE and action_type in _MAY_HAVE_FILES:
            tx.run(_FILES_FORGOTTEN, {"the_action": action_id})
        tx.after_commit(f"action:{action_id}", lambda: _tell_end(action_id, action_type, origin, to))
    return row is not None


async def _tell_end(action_id: str, action_type: ActionType, origin: Origin, outcome: ActionStatus) -> None:
    count_ended(action_type, origin, outcome)
    log.info("action.ended", action=action_id, type=action_type, origin=origin, status=outcome)


def assign_job(tx: Tx, action_id: str, job_id: str, now: datetime) -> None:
    """Give the action to this job alone."""
    tx.run(_ASSIGNED, {"the_action": action_id, "job_id": job_id, "updated_at": now})


def save_pre_image(tx: Tx, action: Action, image: Mapping[str, Any], now: datetime) -> Action:
    """Record the labels before the action, once: a second look after a crash would see what the first run did."""
    named = {"the_action": action.id, "holder": action.job_id}
    if tx.run(_FIRST_IMAGE, named | {"pre_image": dict(image), "updated_at": now}):
        return replace(action, pre_image=dict(image), updated_at=now)
    return get_action(tx, action.id)


def action_from_row(row: Row[*tuple[Any, ...]]) -> Action:
    values = row._asdict()
    typed: dict[str, Any] = {
        "origin": Origin(values["origin"]),
        "type": ActionType(values["type"]),
        "status": ActionStatus(values["status"]),
        "reasons": tuple(values["reasons"] or ()),
        "host": _host(values),
    }
    return Action(**{name: typed[name] if name in typed else values[name] for name in Action.__slots__})


def list_header() -> ColumnElement[Any]:
    """What the message says about unsubscribing, for a row that becomes an action."""
    return messages.c.headers.op("->>", return_type=Text())(literal("list-unsubscribe", Text())).label(_LIST)


def _host(values: Mapping[str, Any]) -> str | None:
    if values["type"] != ActionType.UNSUBSCRIBE:
        return None
    asked = (values["pre_image"] or {}).get("host")
    return asked or link_host(values.get(_LIST) or "") or None
