"""Labels as they are once what is under way is done: the archive learns of a change only when the mailbox reports it,
and a list that still shows what was just archived looks broken.

Counted are actions that are queued or at work, and those done within the last two minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Protocol

from sqlalchemy import and_, or_, select

from postroom.accounts.account import list_accounts
from postroom.actions import lifecycle
from postroom.actions.label_changes import INBOX, SPAM, STARRED, TRASH, UNREAD
from postroom.actions.lifecycle import Action
from postroom.archive.folding import normal, without_spam_and_trash
from postroom.archive.messages import account_name
from postroom.db import Tx
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType as A
from postroom.domain.actions import Origin
from postroom.mail.query import parse
from postroom.mail.query.nodes import And, Anywhere, Labelled, Node, Not

REPORTED_WITHIN = timedelta(minutes=2)
"""By then the live pass has reported it to the archive."""
_CHANGES: Mapping[A, tuple[frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        A.ARCHIVE: (frozenset(), frozenset({INBOX})),
        A.SNOOZE: (frozenset(), frozenset({INBOX})),
        A.MARK_READ: (frozenset(), frozenset({UNREAD})),
        A.MARK_UNREAD: (frozenset({UNREAD}), frozenset()),
        A.STAR: (frozenset({STARRED}), frozenset()),
        A.UNSTAR: (frozenset(), frozenset({STARRED})),
        A.TRASH: (frozenset({TRASH}), frozenset({INBOX, SPAM})),
        A.RESTORE: (frozenset({INBOX}), frozenset({TRASH})),
    }
)
"""By action: added and removed."""


class InMailbox(Protocol):
    @property
    def account(self) -> str: ...

    @property
    def gmail_id(self) -> str | None: ...


MailboxId = tuple[str, str]
"""Of a message: its account as the archive names it, and its id in the mailbox."""


def changes_under_way(tx: Tx, found: Iterable[InMailbox], now: datetime) -> dict[MailboxId, list[Action]]:
    """By message, in the order in which they were wanted; with one query for each mailbox, along an index."""
    by_account: defaultdict[str, list[str]] = defaultdict(list)
    for message in found:
        if message.gmail_id is not None:
            by_account[message.account].append(message.gmail_id)
    ids = {account_name(each.email): each.id for each in list_accounts(tx)} if by_account else {}
    changes: defaultdict[MailboxId, list[Action]] = defaultdict(list)
    for account in by_account.keys() & ids.keys():
        mine = (actions.c.account_id == ids[account], actions.c.gmail_id.in_(by_account[account]))
        just_done = and_(actions.c.status == S.COMPLETED, actions.c.finished_at >= now - REPORTED_WITHIN)
        counted = or_(actions.c.status.in_((S.QUEUED, S.EXECUTING)), just_done)
        for row in tx.execute(select(actions).where(*mine, counted).order_by(actions.c.id)):
            changes[account, row.gmail_id].append(lifecycle.action_from_row(row))
    return dict(changes)


def labels_after(labels: Sequence[str], changes: Sequence[Action]) -> tuple[str, ...]:
    """In the order in which they were, new ones last."""
    found = dict.fromkeys(labels)
    was_snoozed = False
    for action in changes:
        added, removed = _change(action, was_snoozed=was_snoozed)
        gone = {normal(each) for each in removed}
        found = {each: None for each in found if normal(each) not in gone} | dict.fromkeys(sorted(added))
        was_snoozed = action.type is A.SNOOZE
    return tuple(found)


def _change(action: Action, *, was_snoozed: bool) -> tuple[frozenset[str], frozenset[str]]:
    named = frozenset({str(action.parameters["label"])}) if action.parameters.get("label") else frozenset[str]()
    match action.type:
        case A.APPLY_LABEL:
            return named, frozenset()
        case A.REMOVE_LABEL:
            back = was_snoozed and action.origin is Origin.UNDO
            return frozenset({INBOX}) if back else frozenset(), named
        case _:
            return _CHANGES.get(action.type, (frozenset(), frozenset()))


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """What a query asks of labels throughout."""

    parts: tuple[Node, ...]

    @property
    def is_all(self) -> bool:
        """The query asks for nothing else, so that labels alone tell what it finds."""
        return all(isinstance(part.part if isinstance(part, Not) else part, Labelled | Anywhere) for part in self.parts)

    def has(self, labels: Sequence[str]) -> bool:
        """Whether these labels are among those that it asks for; whatever else it asks is taken as true."""
        have = {normal(each) for each in labels}
        return all(_agrees(part, have) for part in self.parts)


def label_place(query: str, now: datetime) -> LabelPlace:
    return LabelPlace(tuple(_all_of(without_spam_and_trash(parse(query, int(now.timestamp() * 1_000))))))


def still_matches(query: str, labels: Sequence[str], now: datetime) -> bool:
    """Whether a message that a search found has, and lacks, the labels that the query asks for throughout."""
    return label_place(query, now).has(labels)


def _all_of(node: Node) -> Iterable[Node]:
    if not isinstance(node, And):
        return (node,)
    return (each for part in node.parts for each in _all_of(part))


def _agrees(part: Node, have: set[str]) -> bool:
    match part:
        case Labelled(label):
            return normal(label) in have
        case Not(Labelled(label)):
            return normal(label) not in have
        case _:
            return True
