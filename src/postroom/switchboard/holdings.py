"""Which days of a mailbox the archive holds in full, as far as sync has proven it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from sqlalchemy import select

from postroom.accounts.history import cursor_of
from postroom.db import Tx
from postroom.db.tables.sync import sync_states


def is_walked(tx: Tx, account_id: str, last_day: date) -> bool:
    """Every message up to the end of this day is in the archive: the watermark has passed it."""
    mark = tx.execute(select(sync_states.c.watermark).where(sync_states.c.account_id == account_id)).scalar()
    return mark is not None and int(mark) >= _end_of(last_day)


def is_held(tx: Tx, account_id: str, last_day: date) -> bool:
    """The same, or a walk has ended and changes are followed since. Good enough to count by; while a gap after an
    expired history id is open, what fell into it is missing."""
    walked = select(sync_states.c.walked_at).where(sync_states.c.account_id == account_id)
    follows = tx.execute(walked).scalar() is not None and cursor_of(tx, account_id) is not None
    return follows or is_walked(tx, account_id, last_day)


def _end_of(day: date) -> int:
    after = day + timedelta(days=1)
    return int(datetime(after.year, after.month, after.day, tzinfo=UTC).timestamp())
