"""What the owner says becomes labels: approvals, rejections, undos and own actions, read from the audit log, and
changes made by hand in the mailbox.

The audit log has every answer, whichever way it came. A change in the mailbox counts only where no action of ours
explains it, and reading mail is no label. Nothing that a rule decided is looked at: such mail has no example.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from postroom.accounts.mailbox_state import email_of, label_key
from postroom.db import Tx
from postroom.db.tables.access import audit_log
from postroom.db.tables.learning import learned_examples, learners
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, ActionType, LabelParameters, Origin, WantedAction, parse_action
from postroom.domain.errors import BadInput
from postroom.queue import JobContext
from postroom.queue.job import Json
from postroom.triage.decision import NOTHING
from postroom.triage.learning import store
from postroom.triage.learning.rights import answer_of

_APPROVED, _REJECTED, _UNDONE, _WANTED = "action.approve", "action.reject", "action.undo", "action.want"
_SAYINGS = (_APPROVED, _REJECTED, _UNDONE, _WANTED)
_AT_ONCE = 500
_SETTLED = timedelta(seconds=5)
"""Entries get their id before they are committed; after this long none can come before one that was seen."""
_INBOX, _UNREAD, _STARRED, _TRASH, _SPAM = "inbox", "unread", "starred", "trash", "spam"
_NOT_HIS = frozenset({_UNREAD, "important", "sent", "draft", "chat"})
"""Gmail sets these itself, or they come from reading."""
_TAKES_OUT = frozenset({ActionType.ARCHIVE, ActionType.SNOOZE, ActionType.TRASH, ActionType.DELETE})


async def take_verdicts(context: JobContext) -> Json:
    """The job `learning.verdicts`."""

    before = context.queue.clock.now() - _SETTLED

    def run(tx: Tx) -> Json:
        count = 0
        for account_id, state in store.all_learners(tx).items():
            count += _take(tx, account_id, state.verdicts_until, before)
        return {"labels": count}

    await context.complete(run)
    return None


def _take(tx: Tx, account_id: str, after: str | None, before: datetime) -> int:
    query = select(audit_log).where(audit_log.c.action.in_(_SAYINGS), audit_log.c.at <= before)
    query = query.order_by(audit_log.c.id).limit(_AT_ONCE)
    rows = tx.execute(query if after is None else query.where(audit_log.c.id > after)).all()
    count = sum(_label(tx, account_id, row) for row in rows)
    if rows:
        mine = learners.c.account_id == account_id
        tx.execute(update(learners).where(mine).values(verdicts_until=rows[-1].id))
    return count


def _label(tx: Tx, account_id: str, saying: Row[Any]) -> bool:
    query = select(actions).where(actions.c.id == saying.subject_id, actions.c.account_id == account_id)
    action = tx.execute(query).one_or_none()
    if action is None or action.message_id is None or action.origin in (Origin.RULE, Origin.UNDO):
        return False
    answer = NOTHING if saying.action in (_REJECTED, _UNDONE) else _answer(action.type, action.parameters)
    return answer is not None and store.label_by_owner(tx, action.message_id, answer)


def _answer(name: str, parameters: Any) -> str | None:
    try:
        return answer_of(parse_action(name, parameters))
    except BadInput:  # files of a reply are outlined once it is stored
        return None


class MailboxTeacher:
    """A `MailboxObserver`: takes what the owner does by hand as labels, in the transaction that records it."""

    def changed(self, tx: Tx, account_id: str, labels: Mapping[str, Collection[str]], deleted: Sequence[str]) -> None:
        if not labels:
            return
        changed = {"account": account_id, "identity": email_of(tx, account_id), "changed": list(labels)}
        for row in tx.execute(_CONSIDERED, changed).all():
            answer = by_hand(_keys(row.labels_then), _keys(row.labels), _ours(tx, row.message_id))
            if answer is not None:
                store.label_by_owner(tx, row.message_id, answer)


_CONSIDERED = (
    select(learned_examples.c.message_id, learned_examples.c.labels_then, messages.c.labels)
    .join(messages, messages.c.id == learned_examples.c.message_id)
    .where(
        messages.c.account_id == bindparam("account"),
        messages.c.provider == "gmail",
        messages.c.endpoint_identity == bindparam("identity"),  # else its index is of no use
        messages.c.external_event_id.in_(bindparam("changed", expanding=True)),
        learned_examples.c.teachable,
    )
    .order_by(learned_examples.c.message_id)
)


@dataclass(frozen=True, slots=True)
class OurActions:
    """What Postroom itself did with a message, or is doing."""

    took_out: bool
    """Of the inbox."""
    under_way: bool
    labels: frozenset[str]
    """That it added or took away."""
    starred: bool


def _ours(tx: Tx, message_id: str) -> OurActions:
    query = select(actions.c.type, actions.c.parameters, actions.c.status).where(actions.c.message_id == message_id)
    rows = [row for row in tx.execute(query) if row.status in (*_BEGUN, ActionStatus.COMPLETED)]
    named = [parse_action(row.type, row.parameters) for row in rows if "label" in (row.parameters or {})]
    return OurActions(
        took_out=any(row.type in _TAKES_OUT for row in rows),
        under_way=any(row.status in _BEGUN for row in rows),
        labels=frozenset(label_key(_label_of(each)) for each in named),
        starred=any(row.type in (ActionType.STAR, ActionType.UNSTAR) for row in rows),
    )


_BEGUN = (ActionStatus.QUEUED, ActionStatus.EXECUTING)


def _label_of(wanted: WantedAction) -> str:
    return wanted.parameters.label if isinstance(wanted.parameters, LabelParameters) else ""


def _keys(labels: Collection[str] | None) -> dict[str, str]:
    return {label_key(label): label for label in labels or ()}


def by_hand(before: Mapping[str, str], now: Mapping[str, str], ours: OurActions) -> str | None:
    """The answer that the owner's own hand gives; None where our actions explain the change, or it says nothing.

    Labels by their compared form. Mail that was archived after it was read tells nothing: that is how many people work.
    """
    if ours.under_way:
        return None
    if _TRASH in now or _SPAM in now:
        return None if ours.took_out else answer_of(parse_action(ActionType.TRASH))
    if _INBOX in before and _INBOX not in now:
        return None if ours.took_out or _UNREAD not in now else str(ActionType.ARCHIVE)
    if _INBOX in now and ours.took_out:
        return NOTHING
    added = [key for key in now if key not in before and key not in _NOT_HIS and key not in ours.labels]
    if _STARRED in added:
        return None if ours.starred else str(ActionType.STAR)
    named = [key for key in added if key != _INBOX and not key.startswith("category_")]
    return f"{ActionType.APPLY_LABEL} {now[named[0]]}" if len(named) == 1 else None
