"""Keeps the counts of what the archive holds in the control database, so that a page reads them in milliseconds.

A recurring job counts the shards that changed and adds up all of them; years that are over are counted once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from sqlalchemy import delete, select

from postroom.archive.backend import ArchiveBackend
from postroom.archive.layout import account_name
from postroom.archive.statistics import (
    IN_ORDER,
    SIZES,
    Ranking,
    ShardStatistics,
    StatisticsBy,
    merged,
    packed,
    ranked,
    search_for,
    unpacked,
)
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.archive_statistics import archive_statistics
from postroom.domain.clock import Clock
from postroom.queue import Handler, JobContext
from postroom.queue.job import Json

_TABLE = archive_statistics.c
_WHOLE = ""
_EVERY_VALUE = 10**9


@dataclass(frozen=True, slots=True)
class StatisticsRow:
    value: str
    messages: int
    bytes: int
    attachments: int
    search: str | None
    """The search that finds these messages."""


@dataclass(frozen=True, slots=True)
class ArchiveStatistics:
    by: StatisticsBy
    account: str | None
    rows: list[StatisticsRow]
    values: int
    """How many there are in all."""
    counted_at: datetime | None
    """None: nothing was counted yet."""


def read_statistics(tx: Tx, by: StatisticsBy, account: str | None, limit: int) -> ArchiveStatistics:
    """Most messages first; times and sizes in their own order, the newest first."""
    of_account = _WHOLE if account is None else account_name(account)
    mine = (_TABLE.account == of_account, _TABLE.shard == _WHOLE, _TABLE.kind == by)
    row = tx.execute(select(_TABLE.counts, _TABLE.counted_at).where(*mine)).one_or_none()
    if row is None:
        return ArchiveStatistics(by, account, [], 0, None)
    found = unpacked(row.counts)
    rows = [StatisticsRow(value, *tally, search_for(by, value)) for value, tally in found.counts.items()]
    return ArchiveStatistics(by, account, in_order(by, rows)[:limit], found.values, row.counted_at)


def statistics_accounts(tx: Tx) -> list[str]:
    """The accounts whose mail was counted."""
    query = select(_TABLE.account).where(_TABLE.shard == _WHOLE, _TABLE.account != _WHOLE).distinct()
    return sorted(tx.execute(query).scalars())


def in_order(by: StatisticsBy, rows: Sequence[StatisticsRow]) -> list[StatisticsRow]:
    names = [name for name, _, _ in SIZES]
    match by:
        case StatisticsBy.SIZE:
            return sorted(rows, key=lambda row: names.index(row.value))
        case StatisticsBy.HOUR:
            return sorted(rows, key=lambda row: row.value)
        case _ if by in IN_ORDER:
            return sorted(rows, key=lambda row: row.value, reverse=True)
        case _:
            return sorted(rows, key=lambda row: (-row.messages, -row.bytes, row.value))


async def count_archive(database: Database, archive: ArchiveBackend, clock: Clock) -> int:
    """Count what changed, and add up; returns how many shards were counted."""
    known = await database.read(_stamps)
    shards = archive.statistics({shard: stamp for (_, shard), stamp in known.items()})
    seen: set[tuple[str, str]] = set()
    counted = 0
    while (part := await asyncio.to_thread(next, shards, None)) is not None:
        seen.add((part.account, part.shard))
        if part.groups is not None:
            rows = await asyncio.to_thread(_rows, part, clock.now())
            await database.write(partial(_put, rows=rows))
            counted += 1
    gone = known.keys() - seen
    if counted or gone or not await database.read(_has_whole):
        await database.write(lambda tx: _forget(tx, gone))
        await _add_up(database, sorted({account for account, _ in seen}), clock)
    return counted


def statistics_handler(archive: ArchiveBackend) -> Handler:
    async def handle(context: JobContext) -> Json:
        return {"shards": await count_archive(context.queue.database, archive, context.queue.clock)}

    return handle


async def _add_up(database: Database, accounts: Sequence[str], clock: Clock) -> None:
    """A kind at a time, so that no more than one is in memory."""
    for kind in StatisticsBy:
        parts = await database.read(partial(_parts, kind=kind))
        rows = await asyncio.to_thread(_summed, kind, parts, accounts, clock.now())
        await database.write(partial(_put, rows=rows))


def _summed(
    kind: StatisticsBy, parts: Sequence[tuple[str, bytes]], accounts: Sequence[str], now: datetime
) -> list[Mapping[str, object]]:
    by_account: dict[str, list[bytes]] = defaultdict(list)
    for account, counts in parts:
        by_account[account].append(counts)
    sums = {account: merged(unpacked(part).counts for part in by_account[account]) for account in accounts}
    sums[_WHOLE] = merged(sums.values()) if len(sums) != 1 else next(iter(sums.values()))
    return [_row(account, _WHOLE, kind, "", now, ranked(counts)) for account, counts in sums.items()]


def _rows(part: ShardStatistics, now: datetime) -> list[Mapping[str, object]]:
    groups = part.groups or {}
    return [
        _row(part.account, part.shard, kind, part.stamp, now, ranked(counts, _EVERY_VALUE))
        for kind, counts in groups.items()
    ]


def _row(account: str, shard: str, kind: str, stamp: str, now: datetime, found: Ranking) -> Mapping[str, object]:
    place = {"account": account, "shard": shard, "kind": kind}
    return {**place, "stamp": stamp, "counted_at": now, "counts": packed(found)}


def _put(tx: Tx, rows: Sequence[Mapping[str, object]]) -> None:
    statement = insert(tx, archive_statistics)
    new = {name: statement.excluded[name] for name in ("stamp", "counted_at", "counts")}
    tx.execute(statement.on_conflict_do_update(index_elements=["account", "shard", "kind"], set_=new), list(rows))


def _stamps(tx: Tx) -> dict[tuple[str, str], str]:
    """Of the last kind that is written for each shard."""
    query = select(_TABLE.account, _TABLE.shard, _TABLE.stamp).where(
        _TABLE.shard != _WHOLE, _TABLE.kind == StatisticsBy.YEAR
    )
    return {(account, shard): stamp for account, shard, stamp in tx.execute(query)}


def _parts(tx: Tx, kind: StatisticsBy) -> list[tuple[str, bytes]]:
    query = select(_TABLE.account, _TABLE.counts).where(_TABLE.shard != _WHOLE, _TABLE.kind == kind)
    return [(account, counts) for account, counts in tx.execute(query)]


def _has_whole(tx: Tx) -> bool:
    return tx.execute(select(_TABLE.kind).where(_TABLE.account == _WHOLE).limit(1)).first() is not None


def _forget(tx: Tx, gone: Iterable[tuple[str, str]]) -> None:
    """Shards that are no longer there, and accounts of which none is left."""
    for account, shard in gone:
        tx.execute(delete(archive_statistics).where(_TABLE.account == account, _TABLE.shard == shard))
    left = select(_TABLE.account).where(_TABLE.shard != _WHOLE)
    empty = (_TABLE.shard == _WHOLE, _TABLE.account != _WHOLE, _TABLE.account.not_in(left))
    tx.execute(delete(archive_statistics).where(*empty))
