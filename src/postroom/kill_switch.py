"""The kill switch of all backfill, mail and web: the environment AND the switch in the database have to allow it.

Filling a gap after an expired history id is live work: it belongs to no backfill job, and nobody asks here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.switchboard import switches
from postroom.db.upsert import insert
from postroom.domain.errors import NotAllowed
from postroom.settings import BackfillSettings

NAME = "backfill_enabled"


class SwitchedOff(NotAllowed):
    """Backfill is switched off: set BACKFILL_ENABLED=true (or backfill.enabled), and turn the dashboard's switch on."""


@dataclass(frozen=True, slots=True)
class SwitchState:
    environment: bool
    database: bool
    changed_at: datetime | None = None
    changed_by: str | None = None

    @property
    def in_force(self) -> bool:
        return self.environment and self.database

    @property
    def reason(self) -> str:
        """Why backfill does not run, in words for a person; empty while it does."""
        if not self.environment:
            return "BACKFILL_ENABLED is not true"
        return "" if self.database else f"switched off by {self.changed_by}"


def state(tx: Tx, settings: BackfillSettings) -> SwitchState:
    row = tx.execute(select(switches).where(switches.c.name == NAME)).one_or_none()
    if row is None:
        return SwitchState(settings.enabled, True)
    return SwitchState(settings.enabled, row.value, row.changed_at, row.changed_by)


def require_on(tx: Tx, settings: BackfillSettings) -> None:
    if not state(tx, settings).in_force:
        raise SwitchedOff()


def turn(tx: Tx, settings: BackfillSettings, on: bool, who: Actor, now: datetime) -> SwitchState:
    """Turn the switch in the database. Whatever runs is stopped by whoever runs it."""
    tx.lock_table(switches)
    before = state(tx, settings)
    values = {"value": on, "changed_at": now, "changed_by": who.name}
    row = insert(tx, switches).values(name=NAME, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[switches.c.name], set_=values))
    then, now_is = {"value": before.database}, {"value": on}
    audit.record(tx, who, "switch.change", ("switch", NAME), now, before=then, after=now_is)
    return state(tx, settings)
