"""Counts what a digest says, in the control database. All of it is bounded by indexes on times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select

from postroom.accounts.account import find_account
from postroom.app.digest.period import DigestPeriod
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import actions, model_calls
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.tiers import TIERS, Tier
from postroom.triage import review

MOST_SENDERS = 10
MOST_CATEGORIES = 12
MOST_WAITING = 10_000
"""Counted no further."""


@dataclass(frozen=True, slots=True)
class NamedCount:
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ActionCount:
    origin: Origin
    type: ActionType
    count: int


@dataclass(frozen=True, slots=True)
class DigestCounts:
    period: DigestPeriod
    tiers: tuple[tuple[Tier, int], ...]
    """Live mail, every tier."""
    categories: tuple[NamedCount, ...]
    """Of live mail, most first; an empty name: in none."""
    senders: tuple[NamedCount, ...]
    """Of live mail, most first."""
    recovered: int
    """Old mail that backfills took in."""
    done: tuple[ActionCount, ...]
    """Completed actions, most first."""
    failed: int
    needs_approval: int
    """Now, as the next."""
    needs_review: int
    model_calls: int
    spent: int
    """In micro-dollars."""

    @property
    def received(self) -> int:
        return sum(number for _, number in self.tiers)


def count_digest(tx: Tx, period: DigestPeriod, mailbox: str | None = None) -> DigestCounts:
    """Of all mailboxes, or of one."""
    span = period.since, period.until
    tiers = dict(_grouped(tx, messages.c.policy_tier, _live(span, mailbox)))
    calls = _spent(tx, span, mailbox)
    return DigestCounts(
        period=period,
        tiers=tuple((tier, int(tiers.get(tier, 0))) for tier in TIERS),
        categories=_named(tx, messages.c.category, _live(span, mailbox), MOST_CATEGORIES),
        senders=_named(tx, messages.c.sender_identity, _live(span, mailbox), MOST_SENDERS),
        recovered=_count(tx, _arrived(span, mailbox, is_live=False)),
        done=_done(tx, span, mailbox),
        failed=_count(tx, _finished(tx, span, mailbox, ActionStatus.FAILED)),
        needs_approval=_waiting(tx, _asked(tx, mailbox)),
        needs_review=_waiting(tx, review.open_items(mailbox)),
        model_calls=calls[0],
        spent=calls[1],
    )


_Span = tuple[datetime, datetime]
_Conditions = list[ColumnElement[bool]]


def _arrived(span: _Span, mailbox: str | None, *, is_live: bool) -> Select[Any]:
    job = messages.c.backfill_job_id
    query = select(messages.c.id).where(messages.c.accepted_at >= span[0], messages.c.accepted_at < span[1])
    query = query.where(messages.c.direction == "inbound", job.is_(None) if is_live else job.is_not(None))
    return query if mailbox is None else query.where(messages.c.endpoint_identity == mailbox)


def _live(span: _Span, mailbox: str | None) -> Select[Any]:
    return _arrived(span, mailbox, is_live=True)


def _grouped(tx: Tx, column: ColumnElement[Any], query: Select[Any], most: int | None = None) -> list[tuple[Any, int]]:
    number = func.count()
    counted = query.with_only_columns(column, number).group_by(column).order_by(number.desc(), column).limit(most)
    return [(value, int(count)) for value, count in tx.execute(counted)]


def _named(tx: Tx, column: ColumnElement[Any], query: Select[Any], most: int) -> tuple[NamedCount, ...]:
    return tuple(NamedCount(str(value or ""), count) for value, count in _grouped(tx, column, query, most))


def _finished(tx: Tx, span: _Span, mailbox: str | None, status: ActionStatus) -> Select[Any]:
    within = (actions.c.finished_at >= span[0], actions.c.finished_at < span[1], actions.c.status == status)
    return select(actions.c.id).where(*within, *_of_mailbox(tx, mailbox))


def _asked(tx: Tx, mailbox: str | None) -> Select[Any]:
    waiting = actions.c.status == ActionStatus.APPROVED_PENDING
    return select(actions.c.id).where(waiting, *_of_mailbox(tx, mailbox))


def _of_mailbox(tx: Tx, mailbox: str | None) -> _Conditions:
    if mailbox is None:
        return []
    account = find_account(tx, mailbox)
    return [actions.c.account_id == (None if account is None else account.id)]


def _done(tx: Tx, span: _Span, mailbox: str | None) -> tuple[ActionCount, ...]:
    number = func.count()
    by = (actions.c.origin, actions.c.type)
    query = _finished(tx, span, mailbox, ActionStatus.COMPLETED).with_only_columns(*by, number).group_by(*by)
    rows = tx.execute(query.order_by(number.desc(), *by))
    return tuple(ActionCount(Origin(origin), ActionType(kind), int(count)) for origin, kind, count in rows)


def _spent(tx: Tx, span: _Span, mailbox: str | None) -> tuple[int, int]:
    """Calls, and micro-dollars."""
    query = select(func.count(), func.coalesce(func.sum(model_calls.c.cost_microdollars), 0)).where(
        model_calls.c.created_at >= span[0], model_calls.c.created_at < span[1]
    )
    if mailbox is not None:
        query = query.join(messages, messages.c.id == model_calls.c.message_id)
        query = query.where(messages.c.endpoint_identity == mailbox)
    calls, spent = tx.execute(query).one()
    return int(calls), int(spent)


def _count(tx: Tx, query: Select[Any]) -> int:
    return int(tx.execute(query.with_only_columns(func.count())).scalar_one())


def _waiting(tx: Tx, query: Select[Any]) -> int:
    return int(tx.execute(select(func.count()).select_from(query.limit(MOST_WAITING).subquery())).scalar_one())
