"""How far the sync of an account has come, as the control database records it: walk, slices, frontier, watermark and
counters. Nothing else moves the frontier.

Slices may be done ahead of it, in any order. The frontier passes one of those only if the history is unbroken since it
was listed; otherwise the slice is opened again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select, update

from postroom.accounts.history import HistoryStanding, history_standing
from postroom.db import Tx
from postroom.db.tables.accounts import sync_slices, sync_states
from postroom.domain.errors import Fatal, NotFound
from postroom.sync.slices import Granularity, Slice, SliceStanding, advance, to_list_again


@dataclass(frozen=True, slots=True)
class WalkProgress:
    done: int
    """Messages whose outcome is known."""
    total: int
    """As the source counts them."""
    per_second: float
    at: datetime


@dataclass(frozen=True, slots=True)
class SyncState:
    account_id: str
    walk: int
    """1 is the first sync; each expired history id begins another walk over the whole mailbox."""
    walk_started_at: datetime
    walked_at: datetime | None
    compared_walk: int
    """The last walk after which the labels and deletions of known mail were compared with the source."""
    granularity: Granularity
    until: int
    frontier: int
    watermark: int
    """Mail dated before it is stored, listed as bad, or gone at the source. Seconds since 1970."""
    counters: Mapping[str, int]
    progress: WalkProgress | None = None
    """How far the walk has come, as of its last sign of life."""

    @property
    def is_walking(self) -> bool:
        return self.walked_at is None

    @property
    def needs_comparing(self) -> bool:
        """A walk lists ids only: mail that was in the archive already may have other labels at the source."""
        return not self.is_walking and self.compared_walk < self.walk


@dataclass(frozen=True, slots=True)
class Listing:
    """One listing of a slice: when it began, and of which history."""

    at: datetime
    epoch: int


@dataclass(frozen=True, slots=True)
class SliceRow:
    slice: Slice
    is_done: bool
    messages: int
    listing: Listing | None = None
    """The one it was last finished with."""


_BAD = "bad"
"""Not counted here: a message is bad only as long as it is listed as troubled."""
_YOUNG = timedelta(hours=1)
"""A source keeps its history for longer, so nothing since such a listing can have been forgotten unnoticed."""


def standing_of(row: SliceRow, history: HistoryStanding, now: datetime) -> SliceStanding:
    """The history vouches for a slice if it is the same as when the slice was listed, and was read since."""
    listing = row.listing
    if not row.is_done:
        return SliceStanding.OPEN
    if row.slice.end is None:
        return SliceStanding.DONE  # it never moves the frontier
    if listing is None or listing.epoch != history.epoch:
        return SliceStanding.DOUBTFUL
    was_read_since = history.seen_at is not None and history.seen_at >= listing.at
    return SliceStanding.DONE if was_read_since or now - listing.at <= _YOUNG else SliceStanding.DOUBTFUL


def find_state(tx: Tx, account_id: str, *, to_change: bool = False) -> SyncState | None:
    """None for an account that was never synced. `to_change` locks the row until the transaction ends."""
    query = select(sync_states).where(sync_states.c.account_id == account_id)
    row = tx.execute(tx.locking(query) if to_change else query).one_or_none()
    if row is None:
        return None
    return SyncState(
        account_id=account_id,
        walk=row.walk,
        walk_started_at=row.walk_started_at,
        walked_at=row.walked_at,
        compared_walk=row.compared_walk,
        granularity=Granularity(row.granularity),
        until=row.until,
        frontier=row.frontier,
        watermark=row.watermark,
        counters={name: number for name, number in json.loads(row.counters).items() if name != _BAD},
        progress=_progress(row.progress),
    )


def _progress(text: str | None) -> WalkProgress | None:
    if text is None:
        return None
    held = json.loads(text)
    return WalkProgress(held["done"], held["total"], held["per_second"], datetime.fromisoformat(held["at"]))


def get_state(tx: Tx, account_id: str, *, to_change: bool = False) -> SyncState:
    state = find_state(tx, account_id, to_change=to_change)
    if state is None:
        raise NotFound("account", "was never synced; `postroom sync run` begins")
    return state


def begin_walk(
    tx: Tx,
    account_id: str,
    slices: Sequence[Slice],
    until: int,
    granularity: Granularity,
    now: datetime,
    *,
    is_new_archive: bool = False,
) -> SyncState:
    """Record a walk over the whole mailbox, the first or another. The watermark stays, unless it was reached with
    another archive."""
    values = {
        "walk_started_at": now,
        "walked_at": None,
        "granularity": granularity,
        "until": until,
        "frontier": 0,
        "progress": None,
        "updated_at": now,
    }
    first = {"account_id": account_id, "walk": 0, "compared_walk": 0, "watermark": 0, "counters": "{}", **values}
    tx.insert_missing(sync_states, first)
    known = get_state(tx, account_id, to_change=True)
    _set(tx, account_id, walk=known.walk + 1, watermark=0 if is_new_archive else known.watermark, **values)
    tx.execute(delete(sync_slices).where(sync_slices.c.account_id == account_id))
    _insert(tx, account_id, slices)
    return get_state(tx, account_id)


def record_comparison(tx: Tx, account_id: str, walk: int, now: datetime) -> None:
    """The labels and deletions of all mail that this walk found have been compared with the source."""
    _set(tx, account_id, compared_walk=walk, updated_at=now)


def extend_walk(tx: Tx, account_id: str, until: int, now: datetime) -> SyncState:
    """After a walk: add a slice for the time that has passed since. Its mail was fetched by way of the history;
    listing it proves that, so the watermark can move."""
    state = get_state(tx, account_id, to_change=True)
    if state.is_walking or until <= state.until:
        raise Fatal("A walk can be extended only after its end, and only forward.")
    tx.execute(delete(sync_slices).where(sync_slices.c.account_id == account_id))
    _insert(tx, account_id, [Slice(state.until, until)])
    _set(tx, account_id, walked_at=None, until=until, updated_at=now)
    return get_state(tx, account_id)


def slices_of(tx: Tx, account_id: str) -> list[SliceRow]:
    """The slices from the frontier on, oldest first."""
    return _up_to(tx, account_id, None)


def replace_slice(tx: Tx, account_id: str, whole: Slice, parts: Sequence[Slice]) -> None:
    """Replace a slice that is too full by parts that cover it exactly."""
    _require_cover(whole, parts)
    gone = tx.execute(delete(sync_slices).where(_is_open(account_id, whole)))
    if gone.rowcount != 1:
        raise Fatal(f"The slice from {whole.start} is not open and cannot be split.")
    _insert(tx, account_id, parts)


@dataclass(frozen=True, slots=True)
class FinishedSlice:
    """A slice of which every message is on disk, listed as bad, or gone."""

    slice: Slice
    messages: int
    """As listed."""
    listing: Listing | None = None
    """The one that it was finished with; None: one that began just now."""


def finish_slices(tx: Tx, account_id: str, walk: int, done: Sequence[FinishedSlice], now: datetime) -> SyncState:
    """Close slices, move frontier and watermark, and open again what the frontier must not pass. Slices of an earlier
    walk change nothing."""
    state = get_state(tx, account_id, to_change=True)
    if state.walk != walk:
        return state
    history = history_standing(tx, account_id)
    begun = Listing(now, history.epoch)
    tx.execute(_FINISH, [_finished_values(account_id, each, each.listing or begun) for each in done])
    rows = _up_to(tx, account_id, _first_open(tx, account_id))
    standings = {row.slice: standing_of(row, history, now) for row in rows}
    frontier = advance(state.frontier, standings)
    _reopen(tx, account_id, to_list_again(frontier, standings))
    first_open = _first_open(tx, account_id)
    _set(
        tx,
        account_id,
        frontier=frontier,
        watermark=max(state.watermark, frontier),
        walked_at=now if first_open is None else None,
        updated_at=now,
    )
    below = (sync_slices.c.account_id == account_id) & (sync_slices.c.end_s <= frontier)
    tx.execute(delete(sync_slices).where(below))
    return get_state(tx, account_id)


_ENDLESS = -1
_FINISH = (
    update(sync_slices)
    .where(
        sync_slices.c.account_id == bindparam("account"),
        sync_slices.c.start_s == bindparam("start"),
        func.coalesce(sync_slices.c.end_s, _ENDLESS) == bindparam("end"),
        sync_slices.c.state == "open",
    )
    .values(
        state="done", messages=bindparam("listed"), listed_at=bindparam("listed_since"), epoch=bindparam("of_epoch")
    )
)


def _finished_values(account_id: str, done: FinishedSlice, listing: Listing) -> dict[str, Any]:
    return {
        "account": account_id,
        "start": done.slice.start,
        "end": _ENDLESS if done.slice.end is None else done.slice.end,
        "listed": done.messages,
        "listed_since": listing.at,
        "of_epoch": listing.epoch,
    }


def finish_slice(
    tx: Tx, account_id: str, walk: int, done: Slice, messages: int, now: datetime, listing: Listing | None = None
) -> SyncState:
    """The same for one."""
    return finish_slices(tx, account_id, walk, [FinishedSlice(done, messages, listing)], now)


def add_counters(tx: Tx, account_id: str, added: Mapping[str, int], now: datetime) -> None:
    """Add to the account's counters."""
    state = get_state(tx, account_id, to_change=True)
    totals = dict(state.counters)
    for name, number in added.items():
        if name != _BAD:
            totals[name] = totals.get(name, 0) + number
    _set(tx, account_id, counters=json.dumps(totals, sort_keys=True), updated_at=now)


def record_progress(tx: Tx, account_id: str, progress: WalkProgress) -> None:
    """For those who look at a walk from another process."""
    text = json.dumps({**asdict(progress), "at": progress.at.isoformat()})
    _set(tx, account_id, progress=text, updated_at=progress.at)


def _first_open(tx: Tx, account_id: str) -> int | None:
    """Where the first unfinished slice starts; None after the last."""
    is_open = (sync_slices.c.account_id == account_id) & (sync_slices.c.state == "open")
    return tx.execute(select(func.min(sync_slices.c.start_s)).where(is_open)).scalar()


def _up_to(tx: Tx, account_id: str, last_start: int | None) -> list[SliceRow]:
    """The slices that start at or before `last_start`, or all."""
    query = select(sync_slices).where(sync_slices.c.account_id == account_id).order_by(sync_slices.c.start_s)
    if last_start is not None:
        query = query.where(sync_slices.c.start_s <= last_start)
    return [_row(row) for row in tx.execute(query).all()]


def _row(row: Row[*tuple[Any, ...]]) -> SliceRow:
    listing = None if row.listed_at is None else Listing(row.listed_at, row.epoch)
    return SliceRow(Slice(row.start_s, row.end_s), row.state == "done", row.messages, listing)


def _reopen(tx: Tx, account_id: str, parts: Sequence[Slice]) -> None:
    if parts:
        starts = [part.start for part in parts]
        mine = (sync_slices.c.account_id == account_id) & sync_slices.c.start_s.in_(starts)
        tx.execute(update(sync_slices).where(mine).values(state="open"))


def _insert(tx: Tx, account_id: str, slices: Sequence[Slice]) -> None:
    rows = [
        {"account_id": account_id, "start_s": part.start, "end_s": part.end, "state": "open", "messages": 0}
        for part in slices
    ]
    if rows:
        tx.execute(sync_slices.insert(), rows)


def _is_open(account_id: str, part: Slice) -> ColumnElement[bool]:
    return (
        (sync_slices.c.account_id == account_id)
        & (sync_slices.c.start_s == part.start)
        & (sync_slices.c.end_s.is_(None) if part.end is None else sync_slices.c.end_s == part.end)
        & (sync_slices.c.state == "open")
    )


def _require_cover(whole: Slice, parts: Sequence[Slice]) -> None:
    starts = [part.start for part in parts]
    ends = [part.end for part in parts]
    if [whole.start, *ends[:-1]] != starts or ends[-1] != whole.end:
        raise Fatal(f"The parts of the slice from {whole.start} do not cover it.")


def _set(tx: Tx, account_id: str, **values: object) -> None:
    tx.execute(update(sync_states).where(sync_states.c.account_id == account_id).values(**values))
