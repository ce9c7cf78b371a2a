"""Switches that stop work in every process at once. They are rows of the database, so all of them see a change.

Backfill, mail and web, runs only where the environment AND its switch allow it. Filling a gap after an expired history
id is live work: it belongs to no backfill job and asks for no switch. The model and local triage each have
a switch of their own, and so has putting mail back. What the owner dismissed of the first run's checklist is a switch
too, which stops nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, select

from postroom import audit
from postroom.audit import Actor
from postroom.db import Prepared, Tx
from postroom.db.database import insert
from postroom.db.tables.access import switches
from postroom.domain.errors import NotAllowed
from postroom.settings import BackfillSettings

BACKFILL_SWITCH = "backfill_enabled"
MODEL_SWITCH = "model_enabled"
LEARNING_SWITCH = "learning_enabled"
RESTORE_SWITCH = "restore_enabled"
CHECKLIST_SWITCHES = {"checklist": "setup_checklist", "model": "setup_model"}
"""Of the checklist of the first run, by what is shown: all of it, or its step about a model."""


class SwitchedOff(NotAllowed):
    """Backfill is switched off."""


@dataclass(frozen=True, slots=True)
class KillSwitch:
    """A switch as it stands in the database."""

    on: bool = True
    changed_at: datetime | None = None
    changed_by: str | None = None

    @property
    def reason(self) -> str:
        """Why it is off, in words for a person; empty while it is on."""
        return "" if self.on else f"switched off by {self.changed_by}"


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
            return "the settings do not allow it"
        return "" if self.database else f"switched off by {self.changed_by}"

    @property
    def remedy(self) -> str:
        """How to turn on the switch, or both switches, that keep it off; empty while it is on."""
        turn = "`postroom backfill switch on`, or the button on the Backfill page"
        allow = "set BACKFILL_ENABLED=true and restart Postroom, or `enabled = true` under [backfill] in postroom.toml"
        match self.environment, self.database:
            case True, True:
                return ""
            case True, False:
                return f"To turn it on: {turn}."
            case False, True:
                return f"To turn it on: {allow}."
            case _:
                return f"To turn it on: {allow}; then {turn}, because it was also switched off by {self.changed_by}."


def state(tx: Tx, settings: BackfillSettings) -> SwitchState:
    found = _found(tx, BACKFILL_SWITCH)
    return SwitchState(settings.enabled, found.on, found.changed_at, found.changed_by)


def require_on(tx: Tx, settings: BackfillSettings) -> None:
    found = state(tx, settings)
    if not found.in_force:
        raise SwitchedOff(f"Backfill is off: {found.reason}. {found.remedy}")


def turn(tx: Tx, settings: BackfillSettings, on: bool, who: Actor, now: datetime) -> SwitchState:
    """Set the switch in the database. Each process stops its own work when it sees the change."""
    _turn(tx, BACKFILL_SWITCH, on, who, now)
    return state(tx, settings)


def model_switch(tx: Tx) -> KillSwitch:
    """To be read in the transaction that begins a call of the model, or one of its actions."""
    return _found(tx, MODEL_SWITCH)


def turn_model(tx: Tx, on: bool, who: Actor, now: datetime) -> KillSwitch:
    """Turn the model off or on. A call that is under way ends; what comes of it needs approval."""
    _turn(tx, MODEL_SWITCH, on, who, now)
    return model_switch(tx)


def learning_switch(tx: Tx) -> KillSwitch:
    """Of local triage that learns; the settings can switch it off too."""
    return _found(tx, LEARNING_SWITCH)


def turn_learning(tx: Tx, on: bool, who: Actor, now: datetime) -> KillSwitch:
    """Off, it neither decides nor learns; what it has learned stays."""
    _turn(tx, LEARNING_SWITCH, on, who, now)
    return learning_switch(tx)


def restore_switch(tx: Tx) -> KillSwitch:
    """Of putting mail back into mailboxes."""
    return _found(tx, RESTORE_SWITCH)


def turn_restore(tx: Tx, on: bool, who: Actor, now: datetime) -> KillSwitch:
    """Off, every restore waits after the messages that it is at; taking one back is not held up."""
    _turn(tx, RESTORE_SWITCH, on, who, now)
    return restore_switch(tx)


def is_step_shown(tx: Tx, step: str) -> bool:
    """Whether the checklist, or its step about a model, is still wanted; see `CHECKLIST_SWITCHES`."""
    return _found(tx, CHECKLIST_SWITCHES[step]).on


def show_step(tx: Tx, step: str, shown: bool, who: Actor, now: datetime) -> None:
    _turn(tx, CHECKLIST_SWITCHES[step], shown, who, now)


_BY_NAME = Prepared(select(switches).where(switches.c.name == bindparam("name")))


def _found(tx: Tx, name: str) -> KillSwitch:
    """A switch without a row is on."""
    rows = tx.run(_BY_NAME, {"name": name})
    return KillSwitch(rows[0].value, rows[0].changed_at, rows[0].changed_by) if rows else KillSwitch()


def _turn(tx: Tx, name: str, on: bool, who: Actor, now: datetime) -> None:
    tx.lock_table(switches)
    before = _found(tx, name)
    values = {"value": on, "changed_at": now, "changed_by": who.name}
    row = insert(tx, switches).values(name=name, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[switches.c.name], set_=values))
    audit.record(tx, who, "switch.change", ("switch", name), now, before={"value": before.on}, after={"value": on})
