"""The limit of messages an hour, over any sliding hour. What was admitted is kept in the database, so that the limit
holds across pause, resume and restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete, select, update

from postroom.db import Prepared, Tx
from postroom.db.tables.mail import backfill_rate as rates
from postroom.domain.ids import new_id

HOUR = timedelta(hours=1)

# A job of up to so many an hour has a row for each message; a faster one shares rows, each as late as its last.
_ROWS_AN_HOUR = 1_000
# Made once: to build a statement takes longer than to run it.
_SET_COUNT = Prepared(update(rates).where(rates.c.id == bindparam("the_row")))


@dataclass(frozen=True, slots=True)
class Admitted:
    """So many messages were let in at this moment."""

    at: datetime
    count: int


def used(admitted: Iterable[Admitted], now: datetime) -> int:
    """How many in the hour that ends now. A message admitted exactly an hour ago no longer counts."""
    return sum(entry.count for entry in admitted if entry.at > now - HOUR)


def wait(admitted: Iterable[Admitted], limit: int, now: datetime, room: int = 1) -> timedelta:
    """How long until so many more messages keep every hour within the limit; zero: they may come now."""
    inside = sorted((entry for entry in admitted if entry.at > now - HOUR), key=lambda entry: entry.at)
    surplus = sum(entry.count for entry in inside) + room - limit
    for entry in inside:
        if surplus <= 0:
            break
        surplus -= entry.count
        if surplus <= 0:
            return entry.at + HOUR - now
    return timedelta()


def worth_a_turn(limit: int) -> int:
    """How much room its hour must have before a job is handed out again: for single messages it would start and stop
    every minute."""
    return max(1, limit // 4)


def rounded(now: datetime, limit: int) -> datetime:
    """The time under which an admission is stored: never before it happened, so that rounding cannot raise the rate."""
    if limit <= _ROWS_AN_HOUR:
        return now
    grain = HOUR / _ROWS_AN_HOUR
    since_midnight = now - now.replace(hour=0, minute=0, second=0, microsecond=0)
    return now + (-since_midnight) % grain


class RateWindow:
    """A job's last hour, within a transaction that holds the job's lock."""

    def __init__(self, tx: Tx, job_id: str, limit: int, now: datetime) -> None:
        self._tx, self._job_id, self._limit, self._now = tx, job_id, limit, now
        self._entries = _load(tx, job_id, limit, now)

    @property
    def used(self) -> int:
        return used(self._entries.values(), self._now)

    @property
    def wait(self) -> timedelta:
        return wait(self._entries.values(), self._limit, self._now)

    def wait_for(self, room: int) -> timedelta:
        return wait(self._entries.values(), self._limit, self._now, room)

    def take(self) -> None:
        """Admit one message; the caller has checked that there is no wait."""
        at = rounded(self._now, self._limit)
        shared = next((row_id for row_id, entry in self._entries.items() if entry.at == at), None)
        if shared is None:
            row_id = new_id()
            self._tx.execute(rates.insert().values(id=row_id, job_id=self._job_id, at=at, count=1))
            self._entries[row_id] = Admitted(at, 1)
            return
        count = self._entries[shared].count + 1
        self._tx.run(_SET_COUNT, {"the_row": shared, "count": count})
        self._entries[shared] = Admitted(at, count)


def last_hours(tx: Tx, job_ids: Sequence[str], now: datetime) -> dict[str, list[Admitted]]:
    """For reading without the locks. A row in the future means that the clock was set back."""
    query = select(rates.c.job_id, rates.c.at, rates.c.count).where(
        rates.c.job_id.in_(job_ids), rates.c.at > now - HOUR
    )
    found: dict[str, list[Admitted]] = {job_id: [] for job_id in job_ids}
    for job_id, at, count in tx.execute(query):
        found[str(job_id)].append(Admitted(min(at, now), count))
    return found


def _load(tx: Tx, job_id: str, limit: int, now: datetime) -> dict[str, Admitted]:
    """Deletes what is over. A row in the future means that the clock was set back; it counts from now on."""
    mine = rates.c.job_id == job_id
    latest = rounded(now, limit)
    tx.execute(delete(rates).where(mine, rates.c.at <= now - HOUR))
    tx.execute(update(rates).where(mine, rates.c.at > latest).values(at=latest))
    rows = tx.execute(select(rates.c.id, rates.c.at, rates.c.count).where(mine))
    return {row_id: Admitted(at, count) for row_id, at, count in rows}
