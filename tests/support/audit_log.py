"""An audit log with its sealers, and an intruder who has the database.

As a program it is a sealer to be killed: `python -m tests.support.audit_log URL HOME`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from postroom import audit
from postroom.audit import Actor
from postroom.audit.chain import HeadsFile, KeyRing, RecordedHead
from postroom.audit.sealing import AuditSealer
from postroom.audit.verifying import AuditFlaw, AuditVerification, verify
from postroom.db import Database, Dialect, Tx, connect
from postroom.db.tables.access import audit_log
from postroom.domain.clock import ManualClock, SystemClock
from postroom.domain.ids import new_id
from postroom.vault import Vault
from tests.support.crashes import CrashingDatabase, CrashPoint

ANN = Actor("dashboard", "ann")

_GUARDS = {
    "audit_log": ("audit_log_refuse_update", "audit_log_refuse_delete", "audit_log_refuse_replace"),
    "audit_seals": ("audit_seals_refuse_update", "audit_seals_refuse_delete", "audit_seals_refuse_replace"),
}


class SealedLog:
    def __init__(self, database: Database, home: Path, clock: ManualClock) -> None:
        self.database, self.home, self.clock = database, home, clock
        self.keys = KeyRing(Vault(home))
        self.heads = HeadsFile(home / "archive")
        self.sealer = self.new_sealer()

    def new_sealer(self, reaper: CrashPoint | None = None) -> AuditSealer:
        database = self.database if reaper is None else CrashingDatabase(self.database, reaper)
        return AuditSealer(database, KeyRing(Vault(self.home)), self.heads, self.clock)

    async def record(self, count: int = 1) -> list[str]:
        def write(tx: Tx) -> list[str]:
            now = self.clock.now()
            details: dict[str, Any] = {"n": 1, "text": "grün", "deep": {"a": [1.5, None, True]}}
            return [
                audit.record(
                    tx, ANN, "thing.change", ("thing", f"t{n}"), now, before=None if n % 2 else details, after=details
                )
                for n in range(count)
            ]

        self.clock.advance(1)
        return await self.database.write(write)

    async def record_many(self, count: int) -> None:
        """Quicker than one by one."""
        row = {"at": self.clock.now(), "actor_role": "x", "actor_name": "y", "action": "a", "subject_type": "t"}
        rows = [
            {**row, "id": new_id(), "subject_id": str(n), "after": {"n": n, "text": "x" * 200}} for n in range(count)
        ]

        def write(tx: Tx) -> None:
            tx.execute(audit_log.insert(), rows)
            tx.execute(text("INSERT INTO audit_pending SELECT id FROM audit_log"))

        await self.database.write(write)

    async def sealed(self, count: int) -> list[str]:
        """So many entries, all under seals."""
        ids = await self.record(count)
        assert await self.sealer.tick() == count
        return ids

    async def verify(self, heads: list[RecordedHead] | None = None) -> AuditVerification:
        recorded = list(self.heads.read()) if heads is None else heads
        return await verify(self.database, KeyRing(Vault(self.home)), recorded)

    async def verify_with_progress(self, progress: Callable[[int], None]) -> AuditVerification:
        return await verify(self.database, self.keys, self.heads.read(), progress)

    def new_sealer_in_turn(self) -> AuditSealer:
        """One that is at work already: it needs not wait for another to fall silent."""
        sealer = self.new_sealer()
        sealer.holder = self.sealer.holder
        return sealer

    async def tamper(self, *statements: str, **parameters: Any) -> None:
        """As someone who may do anything in the database, and has taken the guards away."""

        def run(tx: Tx) -> None:
            _unguard(tx)
            for statement in statements:
                tx.execute(text(statement), parameters)

        await self.database.write(run)

    async def scalar(self, sql: str, **parameters: Any) -> Any:
        return await self.database.read(lambda tx: tx.execute(text(sql), parameters).scalar())

    def copy_of_an_entry(self, new: str, **changed: str) -> str:
        """SQL that inserts `new`, made from the entry :id."""
        columns = ("at", "actor_role", "actor_name", "action", "subject_type", "subject_id", '"before"', '"after"')
        kept = ", ".join(changed.get(name, name) for name in columns)
        return f"INSERT INTO audit_log (id, {', '.join(columns)}) SELECT {new}, {kept} FROM audit_log WHERE id = :id"  # noqa: S608


def _unguard(tx: Tx) -> None:
    for table, triggers in _GUARDS.items():
        if tx.dialect is Dialect.POSTGRESQL:
            tx.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER ALL"))
        else:
            for trigger in triggers:
                tx.execute(text(f"DROP TRIGGER IF EXISTS {trigger}"))


def old_id(entry_id: str) -> str:
    """A fresh id whose time lies an hour before that of an entry."""
    milliseconds = int(entry_id[:8] + entry_id[9:13], 16) - 3_600_000
    stamp = f"{milliseconds:012x}"
    return f"{stamp[:8]}-{stamp[8:]}{new_id()[13:]}"


def named(found: AuditVerification) -> set[tuple[AuditFlaw, str | None]]:
    return {(problem.flaw, problem.entry_id) for problem in found.problems}


async def seal_until_killed(url: str, home: Path) -> None:
    database = await connect(url)
    sealer = AuditSealer(database, KeyRing(Vault(home)), HeadsFile(home / "archive"), SystemClock())
    async with sealer.running():
        print("sealing", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(seal_until_killed(sys.argv[1], Path(sys.argv[2])))
