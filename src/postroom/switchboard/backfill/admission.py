"""One message of a backfill job: admitted under switch, status, rate and budget, and its money settled afterwards.

Admission happens in the transaction of ingest. A refusal is a value, not an exception, because it may move the
job (to `cost_capped`, say), and that must commit. Settling closes a reservation for good.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import chain, count, islice
from typing import Any

from sqlalchemy import Row, select

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.tables.mail import backfill_reservations as reservations
from postroom.domain.backfill import BackfillMode, BackfillStatus
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput
from postroom.domain.money import Micros, format_dollars
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job as switch
from postroom.switchboard.backfill import ledger
from postroom.switchboard.backfill.job import BackfillEvent, BackfillJob, change_job, find_job, move_job
from postroom.switchboard.backfill.leases import LIVE_MAIL_PAUSE, live_mail_waits
from postroom.switchboard.backfill.rate import RateWindow


class AdmissionVerdict(StrEnum):
    ADMITTED = "admitted"
    WAIT = "wait"
    """Not now: the hour is full, or live mail goes first. `retry_after` says when."""
    STOPPED = "stopped"
    """The job is not active; the connector stops."""


@dataclass(frozen=True, slots=True)
class Admission:
    verdict: AdmissionVerdict
    status: BackfillStatus
    backfill_enabled: bool
    reason: str | None = None
    retry_after: float | None = None

    @property
    def is_admitted(self) -> bool:
        return self.verdict is AdmissionVerdict.ADMITTED


class AdmissionGate:
    """One job's gate within one transaction, which holds the job's lock until it ends."""

    def __init__(self, tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> None:
        self._tx, self._settings, self._now = tx, settings, now
        self.job = job
        self._switch = kill_switch.state(tx, settings)
        self._window = RateWindow(tx, job.id, job.rate_limit_per_hour, now)
        self._waits_for_live = job.mode is BackfillMode.BACKGROUND and live_mail_waits(tx)

    def admit(self, message_ref: str, cost: Micros | None) -> Admission:
        """Whether this message may come in. `cost` is the most that its model call can cost: 0 if no model is asked;
        None if unknown, and then it is refused."""
        if not self._switch.in_force and self.job.status is BackfillStatus.ACTIVE:
            self.job = switch.switch_off(self._tx, self.job, self._switch, self._now)
        if self.job.status is not BackfillStatus.ACTIVE:
            return self._stopped()
        self._keep_lease()
        if wait := self._wait():
            reason = "live mail comes first" if self._waits_for_live else "the limit of this hour is reached"
            seconds = min(wait.total_seconds(), self._settings.lease_s / 2)
            return Admission(AdmissionVerdict.WAIT, self.job.status, True, reason, seconds)
        if not self._affords(message_ref, cost):
            return self._stopped()
        self._window.take()
        return Admission(AdmissionVerdict.ADMITTED, self.job.status, True)

    def _stopped(self) -> Admission:
        reason = self.job.status_reason or self.job.error or f"the job is {self.job.status}"
        return Admission(AdmissionVerdict.STOPPED, self.job.status, self._switch.in_force, reason)

    def _wait(self) -> timedelta:
        return max(self._window.wait, LIVE_MAIL_PAUSE if self._waits_for_live else timedelta())

    def _affords(self, message_ref: str, cost: Micros | None) -> bool:
        """Reserve the cost; if there is no room, the job gets the status that says so."""
        if cost == 0:
            return True
        if cost is None or cost > self.job.cap:
            self.job = move_job(
                self._tx, self.job, BackfillEvent.LOSE_METER, SYSTEM, self._now, error=self._why_unmetered(cost)
            )
            return False
        day = ledger.day_of(self._now, self._settings.zone)
        if ledger.reserve(self._tx, self.job, message_ref, cost, day, self._now):
            return True
        self.job = ledger.stop_at_cap(self._tx, self._settings, self.job, cost, self._now)
        return False

    def _why_unmetered(self, cost: Micros | None) -> str:
        if cost is None:
            return "what a message costs is not known, so nothing is spent: name a model that has a price, then resume"
        cap = format_dollars(self.job.cap)
        return f"one message may cost {format_dollars(cost)}, more than the cap of {cap} a day: use a cheaper model"

    def _keep_lease(self) -> None:
        """A message that asks to come in also renews the lease; written at most twice a lease."""
        lease = timedelta(seconds=self._settings.lease_s)
        expires = self.job.lease_expires_at
        if expires is None or expires - self._now < lease / 2:
            self.job = change_job(self._tx, self.job, self._now, lease_expires_at=self._now + lease)


def open_gate(tx: Tx, settings: BackfillSettings, job_id: str, endpoint_identity: str, now: datetime) -> AdmissionGate:
    """The gate of the job that an envelope names. A job admits mail of its own mailbox only."""
    job = find_job(tx, job_id, lock=True)
    if job.endpoint_identity != endpoint_identity:
        raise BadInput("control.backfill_job_id", f"is a job for {job.endpoint_identity}, not for {endpoint_identity}")
    return AdmissionGate(tx, settings, job, now)


_MORE = "#"
_AT_ONCE = 8


class JobSpending:
    def __init__(self, settings: BackfillSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock

    def afford(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> bool:
        """Make sure that so much in all is reserved for the message; False, and nothing done, if there is no room."""
        job = find_job(tx, job_id, lock=True)
        rows = _rows(tx, job.id, message_ref)
        missing = total - sum(_worth(row) for row in rows)
        if missing <= 0:
            return True
        now = self._clock.now()
        ref = message_ref if not rows else f"{message_ref}{_MORE}{len(rows)}"
        return ledger.reserve(tx, job, ref, Micros(missing), ledger.day_of(now, self._settings.zone), now)

    def settle(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> None:
        """So much in all was spent on the message; what was reserved beyond it is released."""
        now = self._clock.now()
        rows = _rows(tx, find_job(tx, job_id, lock=True).id, message_ref)
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
    """The job and message that a reservation belongs to."""
    return reservation.partition(_MORE)[0]


def _rows(tx: Tx, job_id: str, message_ref: str) -> list[Row[Any]]:
    """The message's reservations, oldest first. Looked up by their exact names, which are numbered: a prefix search
    would scan all of the job's."""
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
