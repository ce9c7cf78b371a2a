"""The money of one message of a backfill job, over the ledger: set aside when it came in, more if calls are repeated,
settled once to all that was spent.

The ledger closes a reservation for good when it is settled. A message that is judged again by hand after that gets
further reservations of its own, so that every dollar is counted once.
"""

from __future__ import annotations

from itertools import chain, count, islice
from typing import Any

from sqlalchemy import Row, select

from postroom.db import Tx
from postroom.db.tables.backfill import backfill_reservations as reservations
from postroom.domain.clock import Clock
from postroom.domain.money import Micros
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.model import find

_MORE = "#"
_AT_ONCE = 8


class JobSpending:
    def __init__(self, settings: BackfillSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def afford(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> bool:
        """See to it that so much in all is set aside for the message; False, and nothing done, if there is no room."""
        job = find(tx, job_id, lock=True)
        rows = _rows(tx, job.id, message_ref)
        missing = total - sum(_worth(row) for row in rows)
        if missing <= 0:
            return True
        now = self._clock.now()
        ref = message_ref if not rows else f"{message_ref}{_MORE}{len(rows)}"
        return ledger.reserve(tx, job, ref, Micros(missing), ledger.day_of(now, self._settings.zone), now)

    def settle(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> None:
        """So much in all was spent on the message; what was set aside beyond it is free again."""
        now = self._clock.now()
        rows = _rows(tx, find(tx, job_id, lock=True).id, message_ref)
        due = total - sum(row.settled_microdollars for row in rows if row.state == ledger.SETTLED)
        # Each within what was set aside on its own day, which then stays within its cap.
        for row in [row for row in rows if row.state == ledger.RESERVED]:
            if (paid := min(due, row.amount_microdollars)) > 0:
                ledger.settle(tx, self._settings, job_id, row.message_ref, Micros(paid), now)
                due -= paid
            else:
                ledger.release(tx, self._settings, job_id, row.message_ref, now)
        if due > 0:
            ledger.settle(tx, self._settings, job_id, f"{message_ref}{_MORE}{len(rows)}", Micros(due), now)


def message_of(reservation: str) -> str:
    """Whose money a reservation is."""
    return reservation.partition(_MORE)[0]


def _rows(tx: Tx, job_id: str, message_ref: str) -> list[Row[Any]]:
    """The message's reservations, the first one first. By their names, which are counted through: a search for how they
    begin would look at all of the job's."""
    names = chain([message_ref], (f"{message_ref}{_MORE}{number}" for number in count()))
    rows: list[Row[Any]] = []
    while True:
        some = list(islice(names, _AT_ONCE))
        mine = reservations.c.job_id == job_id, reservations.c.message_ref.in_(some)
        found = {row.message_ref: row for row in tx.execute(select(reservations).where(*mine))}
        rows += [found[name] for name in some if name in found]
        if some[-1] not in found:
            return rows


def _worth(row: Row[Any]) -> int:
    match row.state:
        case ledger.SETTLED:
            return int(row.settled_microdollars)
        case ledger.RESERVED:
            return int(row.amount_microdollars)
        case _:
            return 0
