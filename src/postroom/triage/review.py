"""Mail that a person has to look at: what nothing decided, and what the model left to a person.

An item is a decision that needs review and was not marked as done. Done changes nothing about the mail. What nothing
decided can be judged once more, by the rules and the model as they stand then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Row, Select, delete, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import OPEN_REVIEW, decisions
from postroom.domain.actions import ReviewCause
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.domain.jobs import CLASSIFY
from postroom.queue import JobQueue, NewJob, QueueName
from postroom.triage.decision import DecidedBy
from postroom.triage.rules.facts import MessageFacts, facts_of_message

T = TypeVar("T")
MOST_LISTED = 500
_AT_ONCE = 200
"""Items in one transaction, so that the longest list holds up no other work."""
_SUBJECT = "review"
_its_message = messages.alias()
_its_mailbox = (
    select(_its_message.c.endpoint_identity)
    .where(_its_message.c.id == decisions.c.message_id)
    .correlate(decisions)
    .scalar_subquery()
)
"""Looked up for each open item. As a condition on a joined table it made SQLite begin with all messages."""

CAUSES: Mapping[ReviewCause, str] = MappingProxyType(
    {
        ReviewCause.NO_MODEL: "no model could be asked",
        ReviewCause.MODEL_OFF: "the model was off",
        ReviewCause.BUDGET: "the budget was spent",
        ReviewCause.UNUSABLE_ANSWER: "the model's answer was unusable",
        ReviewCause.MODEL_REFUSED: "the model refused",
        ReviewCause.MODEL_UNSURE: "the model left it to you",
        ReviewCause.NO_ACCOUNT: "its mailbox is not connected",
    }
)
"""For people."""


@dataclass(frozen=True, slots=True)
class ReviewItem:
    id: str
    message_id: str
    mailbox: str
    key: str
    """The mailbox's own id of the message."""
    subject: str | None
    sender: str
    received_at: datetime
    since: datetime
    reason: str
    cause: ReviewCause | None
    can_ask: bool
    """Whether it can be judged once more; not where the model has answered."""


@dataclass(frozen=True, slots=True)
class ReviewFilter:
    cause: ReviewCause | None = None
    mailbox: str | None = None
    before_id: str | None = None
    """Only items older than this one: the last id of the page before."""
    limit: int = 50

    def __post_init__(self) -> None:
        if not 1 <= self.limit <= MOST_LISTED:
            raise BadInput("limit", f"{self.limit} is not within 1 to {MOST_LISTED}")

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        if self.cause is not None:
            yield decisions.c.review_cause == self.cause
        if self.mailbox is not None:
            yield _its_mailbox == self.mailbox
        if self.before_id is not None:
            yield decisions.c.id < parse_id(self.before_id, "before_id")


def list_review(tx: Tx, which: ReviewFilter, *, lock: bool = False) -> list[ReviewItem]:
    """Newest first."""
    query = _open().where(*which.conditions()).order_by(decisions.c.id.desc()).limit(which.limit)
    return [_item(row) for row in tx.execute(tx.locking(query) if lock else query)]


def open_items(mailbox: str | None = None) -> Select[Any]:
    """To be counted."""
    return select(decisions.c.id).where(OPEN_REVIEW, *ReviewFilter(mailbox=mailbox).conditions())


def still_open(tx: Tx, ids: Sequence[str]) -> list[str]:
    """Those of these items that still need review."""
    wanted = list(dict.fromkeys(parse_id(each, "item") for each in ids))
    found = set(tx.execute(select(decisions.c.id).where(decisions.c.id.in_(wanted), OPEN_REVIEW)).scalars())
    return [each for each in wanted if each in found]


def find_items(tx: Tx, ids: Sequence[str], mailbox: str | None = None) -> list[ReviewItem]:
    """The open ones with these ids, locked; NotFound names one that is not there or is another mailbox's."""
    wanted = list(dict.fromkeys(parse_id(each, "item") for each in ids))
    found: dict[str, ReviewItem] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        some = decisions.c.id.in_(wanted[start : start + _AT_ONCE])
        query = _open().where(some, *ReviewFilter(mailbox=mailbox).conditions())
        found |= {row.id: _item(row) for row in tx.execute(tx.locking(query))}
    if missing := next((each for each in wanted if each not in found), None):
        raise NotFound("item", f"{missing} does not need review; `postroom review list` shows what does")
    return [found[each] for each in wanted]


def facts_of(tx: Tx, item_id: str) -> MessageFacts | None:
    """What rules may know of an item's message, open or done; None if it is gone."""
    query = select(decisions.c.message_id).where(decisions.c.id == parse_id(item_id, "item"))
    message_id = tx.execute(query).scalar()
    return None if message_id is None else facts_of_message(tx, message_id)


def mark_done(tx: Tx, items: Sequence[ReviewItem], who: Actor, now: datetime) -> None:
    """These have been looked at."""
    values = {"reviewed_at": now, "reviewed_by": f"{who.role} {who.name}"}
    for item in items:
        tx.execute(update(decisions).where(decisions.c.id == item.id).values(values))
        audit.record(tx, who, "review.done", (_SUBJECT, item.id), now, before={"reason": item.reason})


def mark_message_done(tx: Tx, message_id: str, who: Actor, now: datetime) -> None:
    """A person acted on the message, and so has seen it."""
    rows = tx.execute(tx.locking(_open().where(decisions.c.message_id == message_id))).all()
    mark_done(tx, [_item(row) for row in rows], who, now)


def ask_again(tx: Tx, queue: JobQueue, items: Sequence[ReviewItem], who: Actor) -> list[str]:
    """Have the items judged once more, by rules first; the ids of those that cannot be.

    They leave the list until then, and come back to it if nothing decides them this time either. They share the queue
    of history, so that new mail does not wait for them.
    """
    now = queue.clock.now()
    for item in (item for item in items if item.can_ask):
        account_id = tx.execute(select(messages.c.account_id).where(messages.c.id == item.message_id)).scalar()
        tx.execute(delete(decisions).where(decisions.c.id == item.id))
        payload = {"account_id": account_id, "message_id": item.message_id}
        key = f"{CLASSIFY.name}:{account_id or item.mailbox}:{item.message_id}:{item.id}"
        queue.add(tx, NewJob(CLASSIFY.name, payload, QueueName.HISTORY, key=key))
        audit.record(tx, who, "review.ask", (_SUBJECT, item.id), now, before={"reason": item.reason})
    return [item.id for item in items if not item.can_ask]


def reopen(tx: Tx, item_ids: Sequence[str], who: Actor, now: datetime, mailbox: str | None = None) -> int:
    """Put items that were marked as done back on the list; how many there were. Others are passed over."""
    ids = [parse_id(each, "item") for each in item_ids]
    done = select(decisions.c.id, decisions.c.reviewed_by).join(messages, messages.c.id == decisions.c.message_id)
    done = done.where(decisions.c.id.in_(ids), decisions.c.needs_review, decisions.c.reviewed_at.is_not(None))
    rows = tx.execute(done.where(*ReviewFilter(mailbox=mailbox).conditions())).all()
    values = {"reviewed_at": None, "reviewed_by": None}
    for row in rows:
        tx.execute(update(decisions).where(decisions.c.id == row.id).values(values))
        audit.record(tx, who, "review.reopen", (_SUBJECT, row.id), now, before={"reviewed_by": row.reviewed_by})
    return len(rows)


Write = Callable[[Callable[[Tx], "tuple[str | None, T | None]"]], Awaitable["tuple[str | None, T | None]"]]
"""Runs a transaction, such as `Database.write`."""


async def change_all(write: Write[T], which: ReviewFilter, change: Callable[[Tx, list[ReviewItem]], T]) -> list[T]:
    """Change all that match now, a few hundred to a transaction; what each of them gave. Newer items are not meant."""
    changed: list[T] = []
    place = which.before_id

    def step(tx: Tx) -> tuple[str | None, T | None]:
        found = list_review(tx, replace(which, before_id=place, limit=_AT_ONCE), lock=True)
        return (found[-1].id, change(tx, found)) if found else (None, None)

    while True:
        place, result = await write(step)
        if place is None or result is None:
            return changed
        changed.append(result)


def _open() -> Select[Any]:
    return (
        select(
            decisions,
            messages.c.endpoint_identity,
            messages.c.external_event_id,
            messages.c.subject,
            messages.c.sender_identity,
            messages.c.received_at,
        )
        .join(messages, messages.c.id == decisions.c.message_id)
        .where(OPEN_REVIEW)
    )


def _item(row: Row[Any]) -> ReviewItem:
    return ReviewItem(
        id=row.id,
        message_id=row.message_id,
        mailbox=row.endpoint_identity,
        key=row.external_event_id,
        subject=row.subject,
        sender=row.sender_identity,
        received_at=row.received_at,
        since=row.created_at,
        reason=row.reason,
        cause=None if row.review_cause is None else ReviewCause(row.review_cause),
        can_ask=row.source == DecidedBy.UNDECIDED,
    )
