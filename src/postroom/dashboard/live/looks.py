"""For each topic a look at the database that differs whenever the topic changed. Cheap: indexes and small tables only.

To add a topic, add a function here and mark the part of the page with `data-live="topic"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, func, select

from postroom.dashboard.reading.queue import CONDITIONS, Standing
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.db.tables.backfill import BACKFILL_JOBS, backfill_rate, backfill_spend
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.switchboard import audit_log, connectors, switches
from postroom.db.tables.sync import sync_states
from postroom.db.tables.triage import directions, model_rules
from postroom.db.tables.web import backfill_runs, discovered_items, evidence
from postroom.triage.rules.store import version as rules_version
from postroom.websources.jobs import sentinel_job

Look = Callable[[Tx], object]


def _queue(tx: Tx) -> object:
    """The newest job, who is at work, and what ended last in each way."""
    newest = tx.execute(select(jobs.c.id).order_by(jobs.c.id.desc()).limit(1)).scalar()
    running = tx.execute(select(func.count(), func.max(jobs.c.fence)).where(CONDITIONS[Standing.RUNNING])).one()
    ended = [
        tx.execute(
            select(jobs.c.finished_at).where(CONDITIONS[standing]).order_by(jobs.c.finished_at.desc()).limit(1)
        ).scalar()
        for standing in (Standing.COMPLETED, Standing.FAILED, Standing.CANCELED)
    ]
    return newest, tuple(running), ended


def _actions(tx: Tx) -> object:
    """The newest, what ended last, and how many wait for an answer or are under way."""
    newest = tx.execute(select(actions.c.id).order_by(actions.c.id.desc()).limit(1)).scalar()
    ended = tx.execute(select(func.max(actions.c.finished_at))).scalar()
    open_ones = [
        tx.execute(select(func.count()).where(actions.c.status == status)).scalar()
        for status in ("approved_pending", "queued", "executing")
    ]
    return newest, ended, open_ones


def _backfill(tx: Tx) -> object:
    """What the jobs say of themselves, what they spent, the newest message that was let in, and the kill switch."""
    spent = select(func.sum(backfill_spend.c.reserved_microdollars), func.sum(backfill_spend.c.settled_microdollars))
    admitted = select(backfill_rate.c.id).order_by(backfill_rate.c.id.desc()).limit(1)
    jobs_changed = _newest(tx, BACKFILL_JOBS[tx.dialect].c.updated_at)
    return (
        jobs_changed,
        tuple(tx.execute(spent).one()),
        tx.execute(admitted).scalar(),
        _newest(tx, switches.c.changed_at),
    )


def _rules(tx: Tx) -> object:
    """All three tables are small."""
    told = [
        tuple(tx.execute(select(func.count(), func.max(table.c.updated_at)).select_from(table)).one())
        for table in (directions, model_rules)
    ]
    return rules_version(tx), told


def _newest(tx: Tx, column: Column[Any]) -> object:
    return tx.execute(select(func.max(column))).scalar()


def _web(tx: Tx) -> object:
    """What the runs say of themselves, the newest page that was found and the newest that was kept, the last look."""
    newest = [
        tx.execute(select(table.c.id).order_by(table.c.id.desc()).limit(1)).scalar()
        for table in (discovered_items, evidence)
    ]
    look = select(jobs.c.state, jobs.c.updated_at).where(jobs.c.idempotency_key == sentinel_job().key)
    return _newest(tx, backfill_runs.c.updated_at), newest, [tuple(row) for row in tx.execute(look)]


LOOKS: dict[str, Look] = {
    "queue": _queue,
    "mail": lambda tx: tx.execute(select(messages.c.id).order_by(messages.c.id.desc()).limit(1)).scalar(),
    "actions": _actions,
    "rules": _rules,
    "backfill": _backfill,
    "connectors": lambda tx: _newest(tx, connectors.c.last_heartbeat_at),
    "sync": lambda tx: _newest(tx, sync_states.c.updated_at),
    "web": _web,
    "audit": lambda tx: tx.execute(select(audit_log.c.id).order_by(audit_log.c.id.desc()).limit(1)).scalar(),
}
