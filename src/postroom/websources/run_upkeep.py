"""What time alone does to runs: one that nobody drives, or that nobody may drive, becomes FAILED and says why."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, select

from postroom import kill_switch
from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.tables.queue import jobs
from postroom.db.tables.web import backfill_runs
from postroom.queue.model import FINISHED
from postroom.settings import BackfillSettings
from postroom.websources.jobs import backfill_job
from postroom.websources.run_model import Run, Status, read_run
from postroom.websources.runs import SILENCE, SILENT, fail


def fail_silent(tx: Tx, now: datetime) -> list[Run]:
    """Every running run whose process is gone."""
    silent = _locked(tx, Status.RUNNING, backfill_runs.c.heartbeat_at < now - SILENCE)
    return [fail(tx, run, SILENT, SYSTEM, now) for run in silent]


def fail_abandoned(tx: Tx, now: datetime) -> list[Run]:
    """Every run that waits for a worker although its job has ended, as when somebody cancelled the job."""
    waiting = _locked(tx, Status.PENDING, backfill_runs.c.updated_at < now - SILENCE)
    keys = {backfill_job(run.id).key: run for run in waiting}
    alive = select(jobs.c.idempotency_key).where(jobs.c.idempotency_key.in_(keys), jobs.c.state.not_in(list(FINISHED)))
    for key in tx.execute(alive).scalars():
        del keys[key]
    return [fail(tx, run, "its job ended before it began", SYSTEM, now) for run in keys.values()]


def fail_switched_off(tx: Tx, settings: BackfillSettings, now: datetime) -> list[Run]:
    """While backfill is switched off no run is running; each can be resumed when it is on again."""
    switch = kill_switch.state(tx, settings)
    if switch.in_force:
        return []
    running = _locked(tx, Status.RUNNING)
    return [fail(tx, run, f"backfill is off: {switch.reason}", SYSTEM, now) for run in running]


def _locked(tx: Tx, status: Status, *conditions: ColumnElement[bool]) -> list[Run]:
    query = select(backfill_runs).where(backfill_runs.c.status == status, *conditions)
    return [read_run(row) for row in tx.execute(tx.locking(query, skip_locked=True)).all()]
