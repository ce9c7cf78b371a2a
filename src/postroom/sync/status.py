"""How an account's sync stands, from the database alone: for people who were not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from postroom.accounts.history import Duty, LiveTrouble, live_trouble
from postroom.accounts.store import Account
from postroom.accounts.troubled import troubled_number
from postroom.db import Tx
from postroom.db.tables.sync import history_cursors
from postroom.sync.alert_store import AlertRecord, alerts_of
from postroom.sync.state import SliceRow, SyncState, find_state, slices_of

UP_TO_DATE = "up to date"
LIVE_FAILING = "new mail fails"


@dataclass(frozen=True, slots=True)
class SyncStatus:
    account: str
    phase: str
    """`never synced`, `first sync`, `comparing again` after an expired history id, `up to date`, or `new mail fails`
    where the last attempts to take in new mail all ended early."""
    watermark: int
    slices_open: int
    slices_done: int
    """Done, but beyond one that is not."""
    counters: Mapping[str, int]
    bad: int
    alerts: tuple[AlertRecord, ...]
    """Those in force."""
    history_id: str | None
    history_read_at: datetime | None
    reader: str | None
    """Who reads the account's changes now."""
    live_trouble: str | None = None
    """Why new mail is not taken in to the end, again and again."""


def status_of(tx: Tx, account: Account, now: datetime) -> SyncStatus:
    state = find_state(tx, account.id)
    slices = slices_of(tx, account.id)
    cursor = tx.execute(
        select(history_cursors).where(
            history_cursors.c.account_id == account.id, history_cursors.c.duty == Duty.CHANGES
        )
    ).one_or_none()
    trouble = live_trouble(tx, account.id)
    is_read = cursor is not None and cursor.lease_expires_at is not None and cursor.lease_expires_at > now
    return SyncStatus(
        account=account.email,
        phase=_phase(state, slices, trouble),
        live_trouble=None if trouble is None else trouble.message,
        watermark=0 if state is None else state.watermark,
        slices_open=sum(not row.is_done for row in slices),
        slices_done=sum(row.is_done for row in slices),
        counters={} if state is None else state.counters,
        bad=troubled_number(tx, account.id),
        alerts=tuple(alert for alert in alerts_of(tx, account.id) if alert.is_in_force),
        history_id=None if cursor is None else cursor.history_id,
        history_read_at=None if cursor is None else cursor.moved_at or cursor.updated_at,
        reader=cursor.holder if cursor is not None and is_read else None,
    )


def _phase(state: SyncState | None, slices: Sequence[SliceRow], trouble: LiveTrouble | None) -> str:
    if trouble is not None:
        return LIVE_FAILING
    if state is None:
        return "never synced"
    # After a walk, only the time that has passed since is listed: one slice, which has an end.
    is_proving_the_newest = len(slices) == 1 and slices[0].slice.end is not None
    if not state.is_walking or is_proving_the_newest:
        return UP_TO_DATE
    return "first sync" if state.walk == 1 else "comparing again"
