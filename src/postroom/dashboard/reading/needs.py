"""What needs a person: each thing once, with where to see to it. None of it is stored; it is how things stand now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from urllib.parse import quote

from sqlalchemy import select

from postroom import kill_switch
from postroom.accounts.history import live_trouble
from postroom.accounts.store import AccountStatus, list_accounts
from postroom.accounts.troubled import troubled_number
from postroom.dashboard.reading.connectors import connector_rows
from postroom.dashboard.reading.counting import bounded
from postroom.dashboard.reading.filters import Freshness, contact_state
from postroom.dashboard.reading.queue import CONDITIONS, Line, Standing
from postroom.dashboard.wording import duration
from postroom.db import Tx
from postroom.db.tables.actions import actions
from postroom.db.tables.backfill import BACKFILL_JOBS
from postroom.db.tables.queue import jobs
from postroom.domain.actions import ActionStatus
from postroom.settings import Settings
from postroom.switchboard.backfill.transitions import Status
from postroom.sync.alert_store import alerts_of

_NO_WORKER_AFTER = timedelta(minutes=2)
_OPEN = (Status.PENDING, Status.ACTIVE, Status.PAUSED, Status.COST_CAPPED)


class Level(StrEnum):
    BAD = "bad"
    WARN = "warn"
    ASK = "ask"
    """Nothing is wrong; somebody waits for an answer."""


@dataclass(frozen=True, slots=True)
class Need:
    level: Level
    text: str
    href: str


def needs(tx: Tx, settings: Settings, lines: list[Line], now: datetime, model_problem: str | None = None) -> list[Need]:
    """The worst first."""
    found = [
        *_answers(tx),
        *_worker(lines, now),
        *_failures(tx),
        *_accounts(tx),
        *_connectors(tx, now),
        *_backfill(tx, settings),
        *_model(tx, model_problem),
    ]
    order = list(Level)
    return sorted(found, key=lambda need: order.index(need.level))


def _answers(tx: Tx) -> Iterator[Need]:
    waiting = bounded(tx, select(actions.c.id).where(actions.c.status == ActionStatus.APPROVED_PENDING), 1_000)
    if waiting.number:
        yield Need(Level.ASK, f"Actions wait for your approval: {waiting}", "/approvals")


def _worker(lines: list[Line], now: datetime) -> Iterator[Need]:
    since = min((line.first_since for line in lines if line.first_since is not None), default=None)
    if since is not None and not any(line.running for line in lines) and now - since > _NO_WORKER_AFTER:
        text = f"Jobs have waited for {duration(now - since)} and none runs; start a worker: `postroom worker`"
        yield Need(Level.BAD, text, "/queue?state=waiting")


def _failures(tx: Tx) -> Iterator[Need]:
    failed = bounded(tx, select(jobs.c.id).where(CONDITIONS[Standing.FAILED]), 1_000)
    if failed.number:
        yield Need(Level.BAD, f"Failed jobs: {failed}", "/queue?state=failed")
    undone = bounded(tx, select(actions.c.id).where(actions.c.status == ActionStatus.FAILED), 1_000)
    if undone.number:
        yield Need(Level.BAD, f"Failed actions: {undone}", "/actions?status=failed")


def _accounts(tx: Tx) -> Iterator[Need]:
    for account in list_accounts(tx):
        if account.status is AccountStatus.LOGIN_ENDED:
            text = f"{account.email}: the login has ended and its jobs wait. Log in again"
            yield Need(Level.BAD, text, f"/settings/accounts/new?email={quote(account.email)}")
        elif account.status is AccountStatus.FAILING:
            yield Need(Level.BAD, f"{account.email}: {account.last_error or 'its last check failed'}", "/settings")
        if (trouble := live_trouble(tx, account.id)) is not None:
            yield Need(Level.BAD, f"{account.email}: {trouble.message}", "/archive")
        if number := troubled_number(tx, account.id):
            messages = "1 message gave" if number == 1 else f"{number:,} messages gave"
            yield Need(
                Level.WARN, f"{account.email}: {messages} trouble", f"/archive/bad?account={quote(account.email)}"
            )
        for alert in (alert for alert in alerts_of(tx, account.id) if alert.is_in_force):
            level = Level.BAD if alert.level == "critical" else Level.WARN
            yield Need(level, f"{account.email}: {alert.message}", "/archive")


def _connectors(tx: Tx, now: datetime) -> Iterator[Need]:
    rows = connector_rows(tx, now)
    for row in (row for row in rows if not row.is_alive):
        silent = duration(now - row.last_heartbeat_at)
        yield Need(Level.WARN, f"The connector of {row.endpoint_identity} has been silent for {silent}", "/connectors")
    state = contact_state(tx, now)
    if rows and state.freshness is not Freshness.FRESH:
        said = "were never exported" if state.generated_at is None else "are too old to be used"
        yield Need(Level.WARN, f"Known contacts {said}: mail from people you know is not put first", "/filters")


def _model(tx: Tx, problem: str | None) -> Iterator[Need]:
    if problem is not None:
        yield Need(Level.BAD, f"The model is not asked, rules decide alone: {problem}", "/settings#model")
    switch = kill_switch.model_switch(tx)
    if not switch.on:
        text = f"The model is off ({switch.reason}): what no rule decides goes to review"
        yield Need(Level.WARN, text, "/settings#model")


def _backfill(tx: Tx, settings: Settings) -> Iterator[Need]:
    switch = kill_switch.state(tx, settings.backfill)
    table = BACKFILL_JOBS[tx.dialect]
    wanted = bounded(tx, select(table.c.id).where(table.c.status.in_(_OPEN)), 100)
    if wanted.number and not switch.in_force:
        yield Need(Level.WARN, f"Backfill is off ({switch.reason}), and jobs wait for it: {wanted}", "/backfill")
    broken = bounded(tx, select(table.c.id).where(table.c.status == Status.ERROR), 100)
    if broken.number:
        yield Need(Level.BAD, f"Backfill jobs that stopped with an error: {broken}", "/backfill")
