"""The gap in an account's history: what came while no one looked and the source no longer reports.

It is owed from the transaction that moves the cursor past it until all of its stages are done. It is walked in steps,
beside live mail; each step names the number of the step before it, so of two walkers only one gets ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, select, update

from postroom.accounts.history_cursor import HistoryLease, break_history, history_standing
from postroom.db import Tx
from postroom.db.tables.accounts import history_gaps as table

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
    row = tx.execute(select(table).where(_is(account_id))).one_or_none()
    return None if row is None else _gap(row)


def pass_gap(tx: Tx, reader: HistoryLease, history_id: str, now: datetime, since: int | None = None) -> None:
    """Move the cursor past a gap and owe what lies in it. `since` may only make the gap longer."""
    mine = _last_look(tx, reader.account_id, now)
    break_history(tx, reader, history_id, now)
    owe_gap(tx, reader.account_id, mine if since is None else min(mine, since), now)


def owe_gap(tx: Tx, account_id: str, since: int, now: datetime, position: GapPosition | None = None) -> None:
    """Record a gap. One that is owed already becomes part of it, and is walked from the start."""
    row = tx.execute(tx.locking(select(table).where(_is(account_id)))).one_or_none()
    values: dict[str, Any] = {**_columns(position or GapPosition()), "since_s": max(0, since), "opened_at": now}
    if row is None:
        tx.execute(table.insert().values(account_id=account_id, step=1, **values))
        return
    if row.stage == GapStage.ARRIVALS:
        values["since_s"] = min(values["since_s"], row.since_s)
    tx.execute(update(table).where(_is(account_id)).values(step=row.step + 1, **values))


def record_step(tx: Tx, account_id: str, step: int, reached: GapPosition | None) -> OpenGap | None:
    """Everything between the position of this step and `reached` is done; None: the whole gap is. Returns what is owed
    now. A step that is no longer the current one changes nothing."""
    mine = _is(account_id) & (table.c.step == step)
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


def _is(account_id: str) -> ColumnElement[bool]:
    return table.c.account_id == account_id
