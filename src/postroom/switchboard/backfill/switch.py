"""What the kill switch does to backfill jobs: each one at work waits, and its connector is told so."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

from postroom import kill_switch
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.kill_switch import SwitchState
from postroom.settings import BackfillSettings
from postroom.switchboard.backfill.model import BackfillJob, move, read, table
from postroom.switchboard.backfill.transitions import Event, Status


def turn(tx: Tx, settings: BackfillSettings, on: bool, who: Actor, now: datetime) -> SwitchState:
    changed = kill_switch.turn(tx, settings, on, who, now)
    if not changed.in_force:
        stop_running(tx, changed, now)
    return changed


def stop_running(tx: Tx, why: SwitchState, now: datetime) -> list[BackfillJob]:
    jobs = table(tx)
    running = tx.execute(tx.locking(select(jobs).where(jobs.c.status == Status.ACTIVE).order_by(jobs.c.id))).all()
    return [switch_off(tx, read(row), why, now) for row in running]


def switch_off(tx: Tx, job: BackfillJob, why: SwitchState, now: datetime) -> BackfillJob:
    return move(tx, job, Event.SWITCH_OFF, SYSTEM, now, status_reason=f"backfill is off: {why.reason}")
