"""The history cursor of an account, the lease with a fence that allows moving it, which days are complete, and the gap
that the source no longer reports.

One reader at a time. A sync holds another lease for its walks, since a connector may read the changes beside it.

A gap is owed from the transaction that moves the cursor past it until all of its stages are done. It is walked in
steps, beside live mail; each step names the number of the step before it, so of two walkers only one gets ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from math import ceil
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, exists, select, update

from postroom.db import Tx
from postroom.db.tables.access import connectors
from postroom.db.tables.accounts import history_cursors as cursors
from postroom.db.tables.accounts import history_gaps, sync_slices, sync_states
from postroom.db.tables.accounts import history_gaps as table
from postroom.db.tables.queue import jobs
from postroom.domain.errors import NotAllowed, Retryable

LEASE = timedelta(seconds=90)
_CONNECTOR_ALIVE = timedelta(days=1)
_TOO_OFTEN = 3
"""So many unfinished attempts in a row are a problem; one or two may be restarts."""
_LIVE_JOB = "history.sync.gmail"


class Duty(StrEnum):
    CHANGES = "changes"
    WALK = "walk"


class ReaderElsewhere(Retryable):
    """Another process reads this account's changes."""


class HistoryLeaseLost(NotAllowed):
    """Another process has taken over reading this account's changes; this one must stop."""


@dataclass(frozen=True, slots=True)
class HistoryLease:
    """The right to read an account's changes and to move its cursor, until the lease runs out."""

    account_id: str
    holder: str
    fence: int
    history_id: str | None
    duty: Duty = Duty.CHANGES


def cursor_of(tx: Tx, account_id: str) -> str | None:
    return tx.execute(select(cursors.c.history_id).where(_is(account_id, Duty.CHANGES))).scalar()


def begin_cursor(tx: Tx, account_id: str, history_id: str, now: datetime) -> None:
    """Set the cursor if there is none yet. Needs no lease, because it never moves an existing cursor."""
    if _begun(tx, account_id, Duty.CHANGES, now).history_id is None:
        _set(tx, account_id, Duty.CHANGES, history_id=history_id, updated_at=now)


def has_connector(tx: Tx, email: str, now: datetime) -> bool:
    """Whether a connector takes in this mailbox's new mail: it is then the only reader of changes."""
    seen = select(connectors.c.last_heartbeat_at).where(connectors.c.endpoint_identity == email)
    return any(now - row.last_heartbeat_at < _CONNECTOR_ALIVE for row in tx.execute(seen))


@dataclass(frozen=True, slots=True)
class LiveTrouble:
    """Several attempts in a row to take in all new mail failed."""

    attempts: int
    since: datetime | None
    """When all new mail was last taken in; None if never."""
    reason: str | None
    """What the last attempt said, where it is known."""

    @property
    def message(self) -> str:
        last = "" if self.since is None else f" since {self.since:%Y-%m-%d %H:%M} UTC"
        why = f": {self.reason}" if self.reason else "."
        return f"New mail was not taken in completely{last}, in {self.attempts} attempts{why}"


def changes_cursor(tx: Tx, account_id: str) -> Row[Any] | None:
    """Where the reading of an account's changes is, to be shown."""
    query = select(cursors).where(_is(account_id, Duty.CHANGES))
    return tx.shared(("changes cursor", account_id), lambda: tx.execute(query).one_or_none())


def live_trouble(tx: Tx, account_id: str) -> LiveTrouble | None:
    """None while the account's changes are read without trouble."""
    row = changes_cursor(tx, account_id)
    if row is None or row.unfinished < _TOO_OFTEN:
        return None
    query = select(jobs.c.last_error).where(jobs.c.idempotency_key == f"{_LIVE_JOB}:{account_id}")
    return LiveTrouble(row.unfinished, row.moved_at, tx.execute(query).scalar())


def claim_reader(
    tx: Tx, account_id: str, holder: str, now: datetime, lease: timedelta = LEASE, *, duty: Duty = Duty.CHANGES
) -> HistoryLease:
    """Become the one reader; refused, with the name of the other, while another lease is in force.

    A holder of the same name takes over at once: it is the same process or service, restarted after a crash. So a name
    must say which one it is, and whatever the earlier one still does is refused by its fence.
    """
    row = _begun(tx, account_id, duty, now)
    if row.holder not in (None, holder) and row.lease_expires_at is not None and row.lease_expires_at > now:
        wait = row.lease_expires_at - now
        doing = "reads this account's changes" if duty is Duty.CHANGES else "brings this account into the archive"
        left = f"If it is gone, its turn ends by itself in {ceil(wait.total_seconds())} s"
        raise ReaderElsewhere(f"{row.holder} {doing}. {left}; try again then.", retry_after=wait)
    fence, unfinished = row.fence + 1, row.unfinished + 1
    claimed = {"holder": holder, "fence": fence, "unfinished": unfinished, "lease_expires_at": now + lease}
    _set(tx, account_id, duty, **claimed, updated_at=now)
    return HistoryLease(account_id, holder, fence, row.history_id, duty)


def renew_reader(tx: Tx, reader: HistoryLease, now: datetime, lease: timedelta = LEASE) -> None:
    _require_held(tx, reader)
    _set(tx, reader.account_id, reader.duty, lease_expires_at=now + lease)


def move_cursor(
    tx: Tx, reader: HistoryLease, history_id: str, now: datetime, lease: timedelta = LEASE, *, is_end: bool = False
) -> None:
    """Everything up to this history id has been taken in; also renews the lease. `is_end`: there is no more to read."""
    _require_held(tx, reader)
    moved = {"history_id": history_id, "moved_at": now, "unfinished": 0, **({"seen_at": now} if is_end else {})}
    _set(tx, reader.account_id, reader.duty, **moved, lease_expires_at=now + lease, updated_at=now)


def record_end(tx: Tx, reader: HistoryLease, now: datetime) -> None:
    """All changes up to now are in."""
    _require_held(tx, reader)
    _set(tx, reader.account_id, reader.duty, seen_at=now)


def break_history(tx: Tx, reader: HistoryLease, history_id: str, now: datetime) -> None:
    """Move the cursor past changes that were never reported. The caller records, in the same transaction, how they are
    found: a gap that is owed, or another walk."""
    row = _require_held(tx, reader)
    move_cursor(tx, reader, history_id, now, is_end=True)
    _set(tx, reader.account_id, reader.duty, epoch=row.epoch + 1)


@dataclass(frozen=True, slots=True)
class HistoryStanding:
    """Whether what was listed at some time is still all there is: changes since are known if the epoch is the same."""

    epoch: int = 0
    seen_at: datetime | None = None
    """All changes up to then are in; None: no one has read any."""


def history_standing(tx: Tx, account_id: str) -> HistoryStanding:
    row = tx.execute(select(cursors.c.epoch, cursors.c.seen_at).where(_is(account_id, Duty.CHANGES))).one_or_none()
    return HistoryStanding() if row is None else HistoryStanding(row.epoch, row.seen_at)


def release_reader(tx: Tx, reader: HistoryLease, now: datetime) -> None:
    """Release the lease, so that another reader may begin at once. Does nothing if it was lost already."""
    row = _locked(tx, reader.account_id, reader.duty)
    if row is not None and row.fence == reader.fence:
        _set(tx, reader.account_id, reader.duty, holder=None, lease_expires_at=None, updated_at=now)


def end_readers(tx: Tx, account_id: str, now: datetime) -> None:
    """The account is read in another way from now on: a process that reads it, or brings it into the archive, has to
    begin again."""
    mine = cursors.c.account_id == account_id
    ended = {"holder": None, "lease_expires_at": None, "fence": cursors.c.fence + 1, "updated_at": now}
    tx.execute(update(cursors).where(mine).values(**ended))


def _begun(tx: Tx, account_id: str, duty: Duty, now: datetime) -> Row[*tuple[Any, ...]]:
    """The account's row, locked, and made if it is missing; concurrent callers get the same one."""
    tx.insert_missing(cursors, {"account_id": account_id, "duty": duty, "fence": 0, "updated_at": now})
    row = _locked(tx, account_id, duty)
    assert row is not None  # noqa: S101 - it was there, or it is now
    return row


def _locked(tx: Tx, account_id: str, duty: Duty) -> Row[*tuple[Any, ...]] | None:
    return tx.execute(tx.locking(select(cursors).where(_is(account_id, duty)))).one_or_none()


def _require_held(tx: Tx, reader: HistoryLease) -> Row[*tuple[Any, ...]]:
    row = _locked(tx, reader.account_id, reader.duty)
    if row is None or row.fence != reader.fence or row.holder is None:
        raise HistoryLeaseLost()
    return row


def _is(account_id: str, duty: Duty) -> ColumnElement[bool]:
    return (cursors.c.account_id == account_id) & (cursors.c.duty == duty)


def _set(tx: Tx, account_id: str, duty: Duty, **values: object) -> None:
    tx.execute(update(cursors).where(_is(account_id, duty)).values(**values))


def is_held(tx: Tx, account_id: str, last_day: date) -> bool:
    """Every message up to the end of this day is in the archive: the watermark has passed it, or a walk has ended and
    changes are followed since, without a gap that is still owed. Mail that comes from now on is live mail."""
    state = tx.execute(select(sync_states).where(sync_states.c.account_id == account_id)).one_or_none()
    if state is None:
        return False
    if int(state.watermark) >= _end_of(last_day):
        return True
    endless = exists().where(sync_slices.c.account_id == account_id, sync_slices.c.end_s.is_(None))
    is_owed = exists().where(history_gaps.c.account_id == account_id)
    is_whole_walk, is_gap = tx.execute(select(endless, is_owed)).one()
    is_walking = state.walked_at is None and is_whole_walk  # after one, only the time that has passed since is listed
    return cursor_of(tx, account_id) is not None and not is_walking and not is_gap


def _end_of(day: date) -> int:
    after = day + timedelta(days=1)
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp())


_MARGIN = timedelta(days=1)
"""A message may be dated a little before it arrived."""
_UNKNOWN = timedelta(days=30)
"""If it is not known when the mailbox was last looked at: Gmail keeps its history for a week or more."""


class GapStage(StrEnum):
    """In this order."""

    ARRIVALS = "arrivals"
    """Mail received since the last look is stored and taken in, newest day first."""
    LABELS = "labels"
    """Labels and deletions of known mail of the last weeks are compared."""
    OLDER = "older"
    """Mail from before the last look that the archive lacks is stored, newest month first."""


@dataclass(frozen=True, slots=True)
class GapPosition:
    stage: GapStage = GapStage.ARRIVALS
    before: int | None = None
    """What was received then or later is done; None: nothing is."""
    mark: str | None = None
    """How far the stretch below `before` is done."""


@dataclass(frozen=True, slots=True)
class OpenGap:
    """A gap that is owed."""

    step: int
    since: int
    """Mail received from then on (seconds since 1970) came since the last look."""
    opened_at: datetime
    position: GapPosition


def open_gap(tx: Tx, account_id: str) -> OpenGap | None:
    row = tx.execute(select(table).where(_gap_of(account_id))).one_or_none()
    return None if row is None else _gap(row)


def pass_gap(tx: Tx, reader: HistoryLease, history_id: str, now: datetime, since: int | None = None) -> None:
    """Move the cursor past a gap and owe what lies in it. `since` may only make the gap longer."""
    mine = _last_look(tx, reader.account_id, now)
    break_history(tx, reader, history_id, now)
    owe_gap(tx, reader.account_id, mine if since is None else min(mine, since), now)


def owe_gap(tx: Tx, account_id: str, since: int, now: datetime, position: GapPosition | None = None) -> None:
    """Record a gap. One that is owed already becomes part of it, and is walked from the start."""
    row = tx.execute(tx.locking(select(table).where(_gap_of(account_id)))).one_or_none()
    values: dict[str, Any] = {**_columns(position or GapPosition()), "since_s": max(0, since), "opened_at": now}
    if row is None:
        tx.execute(table.insert().values(account_id=account_id, step=1, **values))
        return
    if row.stage == GapStage.ARRIVALS:
        values["since_s"] = min(values["since_s"], row.since_s)
    tx.execute(update(table).where(_gap_of(account_id)).values(step=row.step + 1, **values))


def record_step(tx: Tx, account_id: str, step: int, reached: GapPosition | None) -> OpenGap | None:
    """Everything between the position of this step and `reached` is done; None: the whole gap is. Returns what is owed
    now. A step that is no longer the current one changes nothing."""
    mine = _gap_of(account_id) & (table.c.step == step)
    if reached is None:
        tx.execute(delete(table).where(mine))
    else:
        tx.execute(update(table).where(mine).values(step=step + 1, **_columns(reached)))
    return open_gap(tx, account_id)


def _last_look(tx: Tx, account_id: str, now: datetime) -> int:
    seen_at = history_standing(tx, account_id).seen_at
    since = now - _UNKNOWN if seen_at is None else seen_at - _MARGIN
    return max(0, int(since.timestamp()))


def _gap(row: Row[*tuple[Any, ...]]) -> OpenGap:
    return OpenGap(row.step, row.since_s, row.opened_at, GapPosition(GapStage(row.stage), row.before_s, row.mark))


def _columns(position: GapPosition) -> dict[str, Any]:
    return {"stage": position.stage, "before_s": position.before, "mark": position.mark}


def _gap_of(account_id: str) -> ColumnElement[bool]:
    return table.c.account_id == account_id
