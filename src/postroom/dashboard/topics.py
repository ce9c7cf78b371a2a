"""The topics of live updates: for each, a cheap query whose result differs whenever the topic changed.

To add one, add a function to `TOPICS` and mark the part of a page with `data-live="topic"`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, func, select

from postroom.dashboard.live_updates import TopicState
from postroom.dashboard.queue import PHASE_CONDITIONS, JobPhase
from postroom.db import Tx
from postroom.db.tables.access import audit_log, connectors, switches
from postroom.db.tables.accounts import sync_states
from postroom.db.tables.mail import BACKFILL_JOBS, backfill_rate, backfill_spend, messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, directions, model_rules
from postroom.db.tables.web import backfill_runs, discovered_items, evidence
from postroom.triage.rules.store import version as rules_version
from postroom.web.sentinel import sentinel_job


def _queue(tx: Tx) -> object:
    """The newest job, the running ones, and the last that completed, failed or was canceled."""
    newest = tx.execute(select(jobs.c.id).order_by(jobs.c.id.desc()).limit(1)).scalar()
    running = tx.execute(select(func.count(), func.max(jobs.c.fence)).where(PHASE_CONDITIONS[JobPhase.RUNNING])).one()
    ended = [
        tx.execute(
            select(jobs.c.finished_at).where(PHASE_CONDITIONS[phase]).order_by(jobs.c.finished_at.desc()).limit(1)
        ).scalar()
        for phase in (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.CANCELED)
    ]
    return newest, tuple(running), ended


def _actions(tx: Tx) -> object:
    """The newest, the last that finished, and how many need approval or are under way."""
    newest = tx.execute(select(actions.c.id).order_by(actions.c.id.desc()).limit(1)).scalar()
    ended = tx.execute(select(func.max(actions.c.finished_at))).scalar()
    open_ones = [
        tx.execute(select(func.count()).where(actions.c.status == status)).scalar()
        for status in ("approved_pending", "queued", "executing")
    ]
    return newest, ended, open_ones


def _backfill(tx: Tx) -> object:
    """The last change of a job, what jobs spent, the newest admitted message, and the kill switch."""
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
    guidance = [
        tuple(tx.execute(select(func.count(), func.max(table.c.updated_at)).select_from(table)).one())
        for table in (directions, model_rules)
    ]
    return rules_version(tx), guidance


def _newest(tx: Tx, column: Column[Any]) -> object:
    return tx.execute(select(func.max(column))).scalar()


def _web(tx: Tx) -> object:
    """The last change of a run, the newest discovered and kept page, and the last check of the sources."""
    newest = [
        tx.execute(select(table.c.id).order_by(table.c.id.desc()).limit(1)).scalar()
        for table in (discovered_items, evidence)
    ]
    check = select(jobs.c.state, jobs.c.updated_at).where(jobs.c.idempotency_key == sentinel_job().key)
    return _newest(tx, backfill_runs.c.updated_at), newest, [tuple(row) for row in tx.execute(check)]


TOPICS: dict[str, TopicState] = {
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
