"""The sealer: chains new entries of the audit log, so that those who write them wait for nothing.

Every service runs one, and one of them at a time is at work: it holds the lease in `audit_chain`. Another takes over
when entries wait and the chain has not moved for a while, by its own clock, so that clocks of hosts need not agree.
Positions come from the locked row of the chain: however a sealer dies or is overtaken, none is given twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import select

from postroom.audit import chain
from postroom.db import Database, Dialect, Prepared, Tx
from postroom.db.tables.access import audit_pending, audit_seals
from postroom.domain.clock import Clock, utc_text
from postroom.domain.errors import PostroomError
from postroom.domain.ids import new_id
from postroom.telemetry import logs

LOOK_EVERY_S = 0.4
PATIENCE_S = 0.8
"""How long entries may wait beside a chain that does not move before another sealer takes over."""
BATCH = 500
HEAD_EVERY = timedelta(hours=1)
_AFTER_TROUBLE_S = 10.0

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class _Lease:
    holder: str | None
    fence: int
    position: int
    key_id: str | None


class AuditSealer:
    """One a process. `tick` does what is to be done now; `running` calls it for as long as a block lasts."""

    def __init__(self, database: Database, keys: chain.KeyRing, heads: chain.HeadsFile, clock: Clock) -> None:
        self._database = database
        self._keys = keys
        self._heads = heads
        self._clock = clock
        self.holder = f"{socket.gethostname()[:60]} {os.getpid()} {new_id()[-6:]}"
        self._seen: tuple[_Lease, float] | None = None
        """Another sealer's lease while entries wait, and since when it stands so."""
        self._fresh_key: chain.SealKey | None = None
        self._recorded: chain.RecordedHead | None = None
        self._problem: str | None = None
        """The last problem logged, so that it is logged once and not every few seconds."""
        self._has_sealed = True
        """Something may have been sealed since the last head was recorded."""

    async def tick(self) -> int:
        """Seal what waits, if it is this sealer's turn; returns how many entries it sealed."""
        if await self._database.read(_something_waits):
            return await self._seal_if_due()
        self._seen = None
        return 0

    async def _seal_if_due(self) -> int:
        lease = await self._database.read(_lease)
        if lease.holder not in (None, self.holder) and not self._is_silent(lease):
            return 0
        self._seen = None
        key = await asyncio.to_thread(self._key, lease.key_id)
        sealed = 0
        while True:
            done = await self._database.write(lambda tx, lease=lease: self._seal_batch(tx, key, lease))  # type: ignore[misc]
            if done is None:  # another one was quicker, or the key is another now
                return sealed
            sealed, lease = sealed + done.count, done.lease
            self._has_sealed = True
            if done.count < BATCH:
                return sealed

    def _key(self, key_id: str | None) -> chain.SealKey:
        if key_id is not None:
            return self._keys.get(key_id)
        self._fresh_key = self._fresh_key or self._keys.make()
        return self._fresh_key

    def _is_silent(self, lease: _Lease) -> bool:
        now = self._clock.monotonic()
        if self._seen is None or self._seen[0] != lease:
            self._seen = (lease, now)
        return now - self._seen[1] >= PATIENCE_S

    def _seal_batch(self, tx: Tx, key: chain.SealKey, lease: _Lease) -> _Sealed | None:
        row = chain.locked_chain(tx)
        if row.fence != lease.fence or row.key_id not in (None, key.id):
            return None
        fence = row.fence if row.holder == self.holder else row.fence + 1
        waiting = _waiting(tx, BATCH)
        position, previous = _end(tx, row.position, row.mac)
        now = self._clock.now()
        seals = chained(key, position, previous, utc_text(now), waiting)
        if seals:
            _write_seals(tx, seals)
            position, previous = seals[-1].position, seals[-1].mac
            head = {"position": position, "mac": previous, "sealed_at": now, "key_id": key.id}
            chain.set_chain(tx, {**head, "holder": self.holder, "fence": fence})
        return _Sealed(len(seals), _Lease(self.holder, fence, position, key.id))

    async def record_head(self, *, at_once: bool = False) -> chain.Head | None:
        """Write the end of the chain to the log and to the file of heads, once an hour; returns what it wrote."""
        if not self._has_sealed:
            return None
        self._recorded = last = self._recorded or await asyncio.to_thread(self._heads.last)
        now = self._clock.now()
        if last is not None and not at_once and now - last.moment < HEAD_EVERY:
            return None
        self._has_sealed = False
        head = await self._database.read(lambda tx: _next_head(tx, last))
        if head is not None:
            log.info("audit.head", position=head.position, mac=head.mac, key=head.key_id, entries=head.entries)
            self._recorded = await asyncio.to_thread(self._heads.append, head, now)
        return head

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Seal for as long as the block lasts, and what is left when it ends. Trouble is logged, and stops nothing."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._turn(is_last=True)

    def _release(self, tx: Tx) -> None:
        """Let the next sealer begin at once."""
        row = chain.chain_row(tx, lock=True)
        if row is not None and row.holder == self.holder:
            chain.set_chain(tx, {"holder": None, "fence": row.fence + 1})

    async def _run(self) -> None:
        while True:
            went_well = await self._turn()
            await asyncio.sleep(LOOK_EVERY_S if went_well else _AFTER_TROUBLE_S)

    async def _turn(self, *, is_last: bool = False) -> bool:
        try:
            await self.tick()
            await self.record_head(at_once=is_last)
            if is_last:
                await self._database.write(self._release)
        except PostroomError as error:
            if error.message != self._problem:
                log.warning("audit.not_sealed", problem=error.message)
            self._problem = error.message
            return False
        except Exception:
            log.exception("audit.not_sealed")
            return False
        self._problem = None
        return True


@dataclass(frozen=True, slots=True)
class _Sealed:
    count: int
    lease: _Lease


def chained(
    key: chain.SealKey, position: int, previous: str, sealed_at: str, entries: Sequence[tuple[str, chain.StoredEntry]]
) -> list[chain.AuditSeal]:
    """The seals of these entries, after the one at `position`."""
    seals = []
    for entry_id, entry in entries:
        position += 1
        previous = chain.mac_of(key, position, previous, entry_id, sealed_at, entry)
        seals.append(chain.AuditSeal(position, entry_id, key.id, sealed_at, previous))
    return seals


_FIRST_PENDING = Prepared(select(audit_pending.c.entry_id).limit(1))  # made once: it is asked for all the time


def _something_waits(tx: Tx) -> bool:
    return bool(tx.run(_FIRST_PENDING, {}))


def _lease(tx: Tx) -> _Lease:
    row = chain.chain_row(tx)
    return _Lease(None, 0, 0, None) if row is None else _Lease(row.holder, row.fence, row.position, row.key_id)


def _waiting(tx: Tx, limit: int) -> list[tuple[str, chain.StoredEntry]]:
    """The oldest that wait. One whose entry is gone is sealed as gone, so that its loss stays on record."""
    sql = (
        f"SELECT {chain.as_text(tx.dialect, 'p.entry_id')}, {chain.raw_columns(tx.dialect)} FROM audit_pending p "  # noqa: S608
        "LEFT JOIN audit_log a ON a.id = p.entry_id ORDER BY p.entry_id LIMIT :limit"
    )
    return [(chain.plain_text(row[0]), chain.stored_entry(row[1:])) for row in chain.run(tx, sql, limit=limit)]


def _end(tx: Tx, position: int, mac: str) -> tuple[int, str]:
    """Where to go on. Seals that were removed from the end leave a gap; the row of the chain remembers them."""
    found: Sequence[Sequence[Any]] = chain.run(
        tx, "SELECT position, mac FROM audit_seals ORDER BY position DESC LIMIT 1"
    )
    if found and isinstance(found[0][0], int) and found[0][0] > position:
        log.error("audit.chain_behind_its_seals", position=position, found=found[0][0])
        return found[0][0], str(found[0][1])
    return position, mac


def _next_head(tx: Tx, last: chain.RecordedHead | None) -> chain.Head | None:
    """The end of the chain, if it is not the one that was recorded last. Also tells when that one is gone."""
    if last is not None:
        kept = select(audit_seals.c.mac).where(audit_seals.c.position == last.head.position)
        if tx.execute(kept).scalar() != last.head.mac:
            log.error("audit.chain_broken", position=last.head.position, recorded_at=utc_text(last.moment))
    head = chain.head_of(tx)
    is_known = head is not None and last is not None and last.head.mac == head.mac
    return None if is_known else head


def _write_seals(tx: Tx, seals: Sequence[chain.AuditSeal]) -> None:
    chain.run(tx, _INSERT[tx.dialect], rows=json.dumps([asdict(seal) for seal in seals]))
    chain.run(tx, _CLEAR, first=seals[0].position)


# All rows of a batch as one parameter: on PostgreSQL a statement for each costs seven times as much.
_INSERT = {
    Dialect.SQLITE: (
        "INSERT INTO audit_seals (position, entry_id, key_id, sealed_at, mac) "
        "SELECT value ->> 'position', value ->> 'entry_id', value ->> 'key_id', value ->> 'sealed_at', value ->> 'mac' "
        "FROM json_each(:rows)"
    ),
    Dialect.POSTGRESQL: (
        "INSERT INTO audit_seals (position, entry_id, key_id, sealed_at, mac) SELECT * FROM "
        "jsonb_to_recordset(CAST(:rows AS jsonb)) AS r(position bigint, entry_id uuid, key_id text, sealed_at text, "
        "mac text)"
    ),
}
_CLEAR = "DELETE FROM audit_pending WHERE entry_id IN (SELECT entry_id FROM audit_seals WHERE position >= :first)"
