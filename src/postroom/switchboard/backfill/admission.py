"""One message of a backfill job: admitted under switch, status, rate, and the number that is still undecided.

Admission happens in the transaction of ingest. A refusal is a value, not an exception, because it may move the job,
and that must commit. Money plays no part here: it is reserved when a model is asked (`switchboard/spending.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from postroom import kill_switch
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.terms import BackfillMode, BackfillStatus
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill import job as switch
from postroom.switchboard.backfill.job import BackfillJob, change_job, find_job
from postroom.switchboard.backfill.leases import live_mail_waits, obstacle
from postroom.switchboard.backfill.rate import RateWindow
from postroom.switchboard.backfill.undecided import backlog


class AdmissionVerdict(StrEnum):
    ADMITTED = "admitted"
    WAIT = "wait"
    """Not now: the hour is full, live mail goes first, or much is undecided. `retry_after` says when."""
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
        self._undecided = backlog(tx, job.id, now)

    def admit(self) -> Admission:
        """Whether one more message may come in."""
        if not self._switch.in_force and self.job.status is BackfillStatus.ACTIVE:
            self.job = switch.switch_off(self._tx, self.job, self._switch, self._now)
        if self.job.status is not BackfillStatus.ACTIVE:
            return self._stopped()
        self._keep_lease()
        if blocked := obstacle(self.job, self._window.wait, self._waits_for_live, self._undecided):
            seconds = min(blocked.wait.total_seconds(), self._settings.lease_s / 2)
            return Admission(AdmissionVerdict.WAIT, self.job.status, True, blocked.why, seconds)
        self._window.take()
        self._undecided = self._undecided.with_one_more
        return Admission(AdmissionVerdict.ADMITTED, self.job.status, True)

    def _stopped(self) -> Admission:
        reason = self.job.status_reason or self.job.error or f"the job is {self.job.status}"
        return Admission(AdmissionVerdict.STOPPED, self.job.status, self._switch.in_force, reason)

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
