"""The one list of messages that gave trouble, in every lane: those that could not be fetched or taken in, and those
whose exact bytes are archived but could not be read. Everything that shows or counts them asks here.

A mailbox is named by its account's id, or by the id that an account of its address would get (`mailbox_id`). Of a
mailbox without a login only those are listed that could not be read: nothing else can be retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy import ColumnElement, delete, func, select, update

from postroom.accounts.account import AccountStatus, ArchivedMailbox, list_archived_mailboxes
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.accounts import troubled_messages as table
from postroom.domain.validation import LONGEST_REASON
from postroom.reading.mail import READER_VERSION
from postroom.telemetry.metrics import meter

_AT_ONCE = 500


class ArrivalLane(StrEnum):
    """How a message came."""

    LIVE = "live"
    BACKFILL = "backfill"
    ON_DEMAND = "on demand"
    SYNC = "sync"
    IMPORT = "import"


class TroubleKind(StrEnum):
    FETCH = "fetch"
    """It could not be fetched or stored: its bytes are not in the archive."""
    READ = "read"
    """Its exact bytes are archived; what it says could not be read."""
    INTAKE = "intake"
    """Its exact bytes are archived; it could not be handed on to be decided about."""


@dataclass(frozen=True, slots=True)
class MessageTrouble:
    """What happened to one message."""

    key: str
    """Its id at the source, or its archive key where it has none."""
    kind: TroubleKind
    reason: str

    @property
    def is_archived(self) -> bool:
        return self.kind is not TroubleKind.FETCH


@dataclass(frozen=True, slots=True)
class TroubledMessage:
    key: str
    """Its id at the source, or its archive key where it has none."""
    reason: str
    first_seen: datetime
    last_tried: datetime
    tries: int
    reader_version: int
    """Of the code that could not read it."""
    lane: ArrivalLane = ArrivalLane.SYNC
    kind: TroubleKind = TroubleKind.FETCH
    archived: bool = False
    """Its exact bytes are in the archive."""


def record_trouble(
    tx: Tx,
    account_id: str,
    lane: ArrivalLane,
    troubles: Iterable[MessageTrouble],
    now: datetime,
    version: int = READER_VERSION,
) -> None:
    """A message that is listed already keeps its lane and counts another try."""
    for trouble in troubles:
        values = {
            "kind": trouble.kind,
            "archived": trouble.is_archived,
            "reason": trouble.reason[:LONGEST_REASON],
            "last_tried": now,
            "reader_version": version,
        }
        is_it = _are(account_id, [trouble.key])
        again = tx.execute(update(table).where(is_it).values(tries=table.c.tries + 1, **values))
        if again.rowcount == 0:
            first = {"account_id": account_id, "message_key": trouble.key, "lane": lane, "first_seen": now, "tries": 1}
            tx.insert_missing(table, first | values)


def forget_trouble(tx: Tx, account_id: str, keys: Iterable[str], kinds: Sequence[TroubleKind] | None = None) -> int:
    """Take messages off the list, because they are in order now or gone at the source; returns how many were listed.
    With `kinds`, only trouble of these kinds.
    """
    wanted, forgotten = list(keys), 0
    for start in range(0, len(wanted), _AT_ONCE):
        where = _are(account_id, wanted[start : start + _AT_ONCE])
        if kinds is not None:
            where &= table.c.kind.in_(kinds)
        forgotten += tx.execute(delete(table).where(where)).rowcount
    return forgotten


def are_listed(tx: Tx, account_id: str, keys: Sequence[str]) -> bool:
    """Whether any of these messages is listed."""
    starts = range(0, len(keys), _AT_ONCE)
    wanted = [select(table.c.message_key).where(_are(account_id, keys[start : start + _AT_ONCE])) for start in starts]
    return any(tx.execute(query.limit(1)).first() is not None for query in wanted)


def troubled_of(tx: Tx, account_id: str, after: str | None = None, limit: int | None = None) -> list[TroubledMessage]:
    """The troubled messages of a mailbox, oldest first; with `after` or `limit`, one page in the order of keys."""
    query = select(table).where(table.c.account_id == account_id, _can_be_retried())
    if after is None and limit is None:
        query = query.order_by(table.c.first_seen, table.c.message_key)
    else:
        query = query.where(table.c.message_key > (after or "")).order_by(table.c.message_key).limit(limit)
    return [
        TroubledMessage(
            key=row.message_key,
            reason=row.reason,
            first_seen=row.first_seen,
            last_tried=row.last_tried,
            tries=row.tries,
            reader_version=row.reader_version,
            lane=ArrivalLane(row.lane),
            kind=TroubleKind(row.kind),
            archived=row.archived,
        )
        for row in tx.execute(query).all()
    ]


def count_troubled(tx: Tx) -> Mapping[str, Mapping[ArrivalLane, int]]:
    """How many there are, by account id and lane; accounts without any are left out."""
    query = select(table.c.account_id, table.c.lane, func.count()).where(_can_be_retried())
    query = query.group_by(table.c.account_id, table.c.lane)
    found: dict[str, dict[ArrivalLane, int]] = {}
    for account_id, lane, count in tx.execute(query).all():
        found.setdefault(account_id, {})[ArrivalLane(lane)] = int(count)
    return found


def troubled_number(tx: Tx, account_id: str | None = None) -> int:
    """How many there are of one account, or of all."""
    counts = tx.shared("troubled", lambda: count_troubled(tx))
    chosen = counts.values() if account_id is None else [counts.get(account_id, {})]
    return sum(sum(lanes.values()) for lanes in chosen)


def troubled_archives(tx: Tx) -> list[tuple[ArchivedMailbox, int]]:
    """The mailboxes without a login that have troubled messages, and how many."""
    counts = tx.shared("troubled", lambda: count_troubled(tx))
    found = [(mailbox, sum(counts.get(mailbox.id, {}).values())) for mailbox in list_archived_mailboxes(tx)]
    return [(mailbox, number) for mailbox, number in found if number]


def show_troubled(counts: Mapping[str, Mapping[ArrivalLane, int]]) -> None:
    """Set what the metrics report from now on, by the account's opaque id and lane."""
    global _shown
    _shown = counts


_shown: Mapping[str, Mapping[ArrivalLane, int]] = {}


def _observe(options: CallbackOptions) -> Iterable[Observation]:
    return [
        Observation(number, {"account": account_id, "lane": lane.value})
        for account_id, lanes in _shown.items()
        for lane, number in lanes.items()
    ]


meter.create_observable_gauge(
    "postroom.mail.troubled",
    [_observe],
    unit="{message}",
    description="messages that gave trouble",
)


def _can_be_retried() -> ColumnElement[bool]:
    in_use = select(accounts.c.id).where(accounts.c.status != AccountStatus.REMOVED)
    return (table.c.kind == TroubleKind.READ) | table.c.account_id.in_(in_use)


def _are(account_id: str, keys: Sequence[str]) -> ColumnElement[bool]:
    return (table.c.account_id == account_id) & table.c.message_key.in_(keys)
