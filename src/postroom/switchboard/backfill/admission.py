"""The way in for a job's messages: switch, status, rate and budget are asked here, within the transaction of ingest.

A refusal is an answer, not an exception, because it may move the job (to `cost_capped`, say), and that must commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.money import Micros, format_dollars
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import ledger, switch
from postroom.switchboard.backfill.leases import LIVE_MAIL_PAUSE, live_mail_waits
from postroom.switchboard.backfill.model import BackfillJob, Mode, change, find, move
from postroom.switchboard.backfill.rate import Window
from postroom.switchboard.backfill.transitions import Event, Status


class Verdict(StrEnum):
    ADMITTED = "admitted"
    WAIT = "wait"
    """Not now: the hour is full, or live mail comes first. `retry_after` says when."""
    STOPPED = "stopped"
    """The job is not at work; the connector stops."""


@dataclass(frozen=True, slots=True)
class Admission:
    verdict: Verdict
    status: Status
    backfill_enabled: bool
    reason: str | None = None
    retry_after: float | None = None

    @property
    def is_admitted(self) -> bool:
        return self.verdict is Verdict.ADMITTED


class Gate:
    """One job's gate within one transaction, which holds the job's lock until it ends."""

    def __init__(self, tx: Tx, settings: BackfillSettings, job: BackfillJob, now: datetime) -> None:
        self._tx, self._settings, self._now = tx, settings, now
        self.job = job
        self._switch = kill_switch.state(tx, settings)
        self._window = Window(tx, job.id, job.rate_limit_per_hour, now)
        self._waits_for_live = job.mode is Mode.BACKGROUND and live_mail_waits(tx)

    def admit(self, message_ref: str, cost: Micros | None) -> Admission:
        """May this message come in? `cost` is the most that its model call can cost: 0 where no model is asked, None
        where nobody knows, and then nothing comes in."""
        if not self._switch.in_force and self.job.status is Status.ACTIVE:
            self.job = switch.switch_off(self._tx, self.job, self._switch, self._now)
        if self.job.status is not Status.ACTIVE:
            return self._stopped()
        self._keep_lease()
        if wait := self._wait():
            reason = "live mail comes first" if self._waits_for_live else "the limit of this hour is reached"
            seconds = min(wait.total_seconds(), self._settings.lease_s / 2)
            return Admission(Verdict.WAIT, self.job.status, True, reason, seconds)
        if not self._affords(message_ref, cost):
            return self._stopped()
        self._window.take()
        return Admission(Verdict.ADMITTED, self.job.status, True)

    def _stopped(self) -> Admission:
        reason = self.job.status_reason or self.job.error or f"the job is {self.job.status}"
        return Admission(Verdict.STOPPED, self.job.status, self._switch.in_force, reason)

    def _wait(self) -> timedelta:
        return max(self._window.wait, LIVE_MAIL_PAUSE if self._waits_for_live else timedelta())

    def _affords(self, message_ref: str, cost: Micros | None) -> bool:
        """Reserve the cost; where that cannot be, the job is moved to where it belongs."""
        if cost == 0:
            return True
        if cost is None or cost > self.job.cap:
            self.job = move(self._tx, self.job, Event.LOSE_METER, SYSTEM, self._now, error=self._why_unmetered(cost))
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
        """Whoever brings mail is not silent. Written at most twice a lease."""
        lease = timedelta(seconds=self._settings.lease_s)
        expires = self.job.lease_expires_at
        if expires is None or expires - self._now < lease / 2:
            self.job = change(self._tx, self.job, self._now, lease_expires_at=self._now + lease)


def open_gate(tx: Tx, settings: BackfillSettings, job_id: str, endpoint_identity: str, now: datetime) -> Gate:
    """The gate of the job that an envelope names. A job admits mail of its own mailbox only."""
    job = find(tx, job_id, lock=True)
    if job.endpoint_identity != endpoint_identity:
        raise BadInput("control.backfill_job_id", f"is a job for {job.endpoint_identity}, not for {endpoint_identity}")
    return Gate(tx, settings, job, now)
