"""The days that a digest is about, in the owner's time zone; what it says of them, counted in the control database; and
that in words, as the lines of its e-mail and the names that the page uses too.

All counts are bounded by indexes on times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from sqlalchemy import ColumnElement, Select, func, select

from postroom.accounts.account import find_account
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import action_links, actions, model_calls
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.money import Micros, format_dollars
from postroom.domain.terms import TIERS, Tier
from postroom.mail.addresses import Address
from postroom.mail.composing import REPORT_HEADER, OutgoingMail
from postroom.settings import Settings
from postroom.triage import review

_DAY = timedelta(days=1)
_WEEK = timedelta(days=7)


class DigestKind(StrEnum):
    DAY = "day"
    WEEK = "week"

    @property
    def length(self) -> timedelta:
        return _DAY if self is DigestKind.DAY else _WEEK


@dataclass(frozen=True, slots=True)
class DigestPeriod:
    kind: DigestKind
    first: date
    """The day, or the Monday of the week."""
    zone: ZoneInfo

    @classmethod
    def holding(cls, kind: DigestKind, day: date, zone: ZoneInfo) -> DigestPeriod:
        """The one that a day belongs to."""
        return cls(kind, day - _DAY * day.weekday() if kind is DigestKind.WEEK else day, zone)

    @classmethod
    def current(cls, kind: DigestKind, now: datetime, zone: ZoneInfo) -> DigestPeriod:
        """The one that is not over yet."""
        return cls.holding(kind, now.astimezone(zone).date(), zone)

    @property
    def last(self) -> date:
        return self.first + self.kind.length - _DAY

    @property
    def since(self) -> datetime:
        return _midnight(self.first, self.zone)

    @property
    def until(self) -> datetime:
        """Not included."""
        return _midnight(self.last + _DAY, self.zone)

    def before(self) -> DigestPeriod:
        return DigestPeriod(self.kind, self.first - self.kind.length, self.zone)

    def after(self) -> DigestPeriod:
        return DigestPeriod(self.kind, self.first + self.kind.length, self.zone)

    @property
    def title(self) -> str:
        """`Monday, 16 November 2026`, or `16 to 22 November 2026`."""
        if self.kind is DigestKind.DAY:
            return f"{self.first:%A}, {_written(self.first)}"
        same_month = self.first.replace(day=1) == self.last.replace(day=1)
        start = str(self.first.day) if same_month else f"{self.first.day} {self.first:%B}"
        if self.first.year != self.last.year:
            start = _written(self.first)
        return f"{start} to {_written(self.last)}"


def zone_of(settings: Settings) -> ZoneInfo:
    """The owner's time zone, as far as the settings say."""
    return ZoneInfo(settings.digest.zone or settings.backfill.day_zone)


def kind_of(settings: Settings) -> DigestKind | None:
    """What is sent by e-mail; None if nothing is."""
    return {"daily": DigestKind.DAY, "weekly": DigestKind.WEEK}.get(settings.digest.every)


def _midnight(day: date, zone: ZoneInfo) -> datetime:
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _written(day: date) -> str:
    return f"{day.day} {day:%B %Y}"


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
    """Of an undo, that of the action that it took back."""
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
    arrived = _arrived(tx, span, mailbox)
    live = [each for each in arrived if each.is_live]
    tiers = _summed((each.tier, each.number) for each in live)
    calls, spent = _spent(tx, span, mailbox)
    return DigestCounts(
        period=period,
        tiers=tuple((tier, tiers[tier]) for tier in TIERS),
        categories=_most(_summed((each.category, each.number) for each in live), MOST_CATEGORIES),
        senders=_most(_summed((each.sender, each.number) for each in live), MOST_SENDERS),
        recovered=sum(each.number for each in arrived if not each.is_live),
        done=_done(tx, span, mailbox),
        failed=_failed(tx, span, mailbox),
        needs_approval=_waiting(tx, _asked(tx, mailbox)),
        needs_review=_waiting(tx, review.open_items(mailbox)),
        model_calls=calls,
        spent=spent,
    )


_Span = tuple[datetime, datetime]
_Conditions = list[ColumnElement[bool]]


class _Arrived(NamedTuple):
    tier: str
    category: str
    sender: str
    is_live: bool
    number: int


def _arrived(tx: Tx, span: _Span, mailbox: str | None) -> list[_Arrived]:
    """In one look at the messages, which may be many: what tells them apart, and how many there are of each."""
    is_live = messages.c.backfill_job_id.is_(None)
    by = (messages.c.policy_tier, messages.c.category, messages.c.sender_identity, is_live)
    query = select(*by, func.count()).where(messages.c.accepted_at >= span[0], messages.c.accepted_at < span[1])
    query = query.where(messages.c.direction == "inbound").group_by(*by)
    if mailbox is not None:
        query = query.where(messages.c.endpoint_identity == mailbox)
    return [
        _Arrived(tier, category or "", sender, bool(live), int(count))
        for tier, category, sender, live, count in tx.execute(query)
    ]


def _summed(amounts: Iterable[tuple[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for name, count in amounts:
        total[name] += count
    return total


def _most(counts: Counter[str], most: int) -> tuple[NamedCount, ...]:
    return tuple(NamedCount(*each) for each in sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:most])


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
    undone, number = actions.alias("undone"), func.count()
    by = (actions.c.origin, func.coalesce(undone.c.type, actions.c.type))
    query = _finished(tx, span, mailbox, ActionStatus.COMPLETED).with_only_columns(*by, number).group_by(*by)
    taken_back = actions.outerjoin(action_links, action_links.c.cause_action_id == actions.c.id)
    query = query.select_from(taken_back.outerjoin(undone, undone.c.id == action_links.c.effect_action_id))
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


def _failed(tx: Tx, span: _Span, mailbox: str | None) -> int:
    query = _finished(tx, span, mailbox, ActionStatus.FAILED)
    return int(tx.execute(query.with_only_columns(func.count())).scalar_one())


def _waiting(tx: Tx, query: Select[Any]) -> int:
    return int(tx.execute(select(func.count()).select_from(query.limit(MOST_WAITING).subquery())).scalar_one())


TIER_NAMES: Mapping[Tier, str] = {
    Tier.HIGH_PRIORITY: "High priority",
    Tier.INTERACTIVE: "Interactive",
    Tier.DEFAULT: "Default",
}
ORIGIN_NAMES: Mapping[Origin, str] = {
    Origin.RULE: "Rules",
    Origin.MODEL: "Model",
    Origin.PERSON: "You",
    Origin.UNDO: "Undo",
}
DONE: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "archived",
    ActionType.APPLY_LABEL: "labelled",
    ActionType.REMOVE_LABEL: "label removed",
    ActionType.MARK_READ: "marked as read",
    ActionType.MARK_UNREAD: "marked as unread",
    ActionType.STAR: "starred",
    ActionType.UNSTAR: "star removed",
    ActionType.TRASH: "moved to trash",
    ActionType.RESTORE: "restored from trash",
    ActionType.DELETE: "deleted",
    ActionType.SNOOZE: "snoozed",
    ActionType.FORWARD: "forwarded",
    ActionType.AUTO_REPLY: "replied to",
    ActionType.UNSUBSCRIBE: "unsubscribed from",
}
_UNDONE: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "moved back to the inbox",
    ActionType.APPLY_LABEL: "label taken back",
    ActionType.REMOVE_LABEL: "label put back",
    ActionType.MARK_READ: "marked as unread again",
    ActionType.MARK_UNREAD: "marked as read again",
    ActionType.STAR: "star taken back",
    ActionType.UNSTAR: "star put back",
    ActionType.TRASH: "taken back from the trash",
    ActionType.RESTORE: "moved back to the trash",
    ActionType.SNOOZE: "snooze taken back",
}
_LONGEST_NAME = 60


def category_name(name: str) -> str:
    """`finance` is Finance."""
    text = name.replace("_", " ")
    return f"{text[:1].upper()}{text[1:]}" if text else "Other mail"


def what_was_done(counted: ActionCount) -> str:
    done = DONE[counted.type]
    return done if counted.origin is not Origin.UNDO else _UNDONE.get(counted.type, f"undone: {done}")


def by_origin(done: Sequence[ActionCount]) -> dict[Origin, list[ActionCount]]:
    """Who did how much of what, in the order of `Origin`; without those who did nothing."""
    return {origin: mine for origin in Origin if (mine := [each for each in done if each.origin is origin])}


def digest_subject(counts: DigestCounts) -> str:
    waiting = counts.needs_approval + counts.needs_review
    asks = f", {waiting:,} {'needs' if waiting == 1 else 'need'} your attention" if waiting else ""
    return f"Postroom digest: {_plural(counts.received, 'message')}{asks} ({counts.period.title})"


def digest_text(counts: DigestCounts, address: str | None) -> str:
    """Plain text. `address` is where the dashboard is, if that is known."""
    parts = [*_sections(counts)]
    if address is not None:
        period = counts.period
        parts.append([f"More: {address}/digest?period={period.kind}&day={period.first}"])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def digest_mail(counts: DigestCounts, owner: str, mark: str, address: str | None) -> OutgoingMail:
    """From the owner to the owner. Marked as automatic, and as ours: nothing answers it, forwards it or judges it."""
    return OutgoingMail(
        from_=Address(owner),
        to=(Address(owner),),
        subject=digest_subject(counts),
        text=digest_text(counts, address),
        extra_headers=((REPORT_HEADER, mark),),
        auto_submitted="auto-generated",
    )


def _sections(counts: DigestCounts) -> Iterator[list[str]]:
    yield [counts.period.title]
    yield [f"{_plural(counts.received, 'message')} received", *_aligned(_tiers(counts))]
    if counts.received and counts.categories:
        yield ["By category", *_aligned([(category_name(each.name), each.count) for each in counts.categories])]
    if counts.senders:
        yield ["Top senders", *_aligned([(_line(each), each.count) for each in counts.senders])]
    if counts.recovered:
        yield [f"{_plural(counts.recovered, 'older message')} recovered"]
    yield [*_done_lines(counts)]
    yield [*_waiting_lines(counts)]
    yield [f"{_plural(counts.model_calls, 'model call')}, {format_dollars(Micros(counts.spent))} spent"]


def _tiers(counts: DigestCounts) -> list[tuple[str, int]]:
    return [(TIER_NAMES[tier], number) for tier, number in counts.tiers if number]


def _done_lines(counts: DigestCounts) -> Iterator[str]:
    total = sum(each.count for each in counts.done)
    yield f"{_plural(total, 'action')} done" if total else "No action taken"
    for origin, mine in by_origin(counts.done).items():
        yield f"  {ORIGIN_NAMES[origin]}: {', '.join(f'{each.count:,} {what_was_done(each)}' for each in mine)}"
    if counts.failed:
        yield f"  {_plural(counts.failed, 'action')} failed"


def _waiting_lines(counts: DigestCounts) -> Iterator[str]:
    for number, noun, what in (
        (counts.needs_approval, "action", "approval"),
        (counts.needs_review, "message", "review"),
    ):
        if number:
            yield f"{_plural(number, noun)} {'needs' if number == 1 else 'need'} {what}"
    if not counts.needs_approval + counts.needs_review:
        yield "Nothing needs approval or review"


def _aligned(rows: Sequence[tuple[str, int]]) -> list[str]:
    widest = max((len(name) for name, _ in rows), default=0)
    return [f"  {name:<{widest}}  {number:>6,}" for name, number in rows]


def _line(sender: NamedCount) -> str:
    """An address that someone else chose, on one line."""
    return "".join(char if char.isprintable() else " " for char in sender.name)[:_LONGEST_NAME]


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun if number == 1 else noun + 's'}"
