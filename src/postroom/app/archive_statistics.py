"""Keeps the counts of what the archive holds in the control database, so that a page reads them in milliseconds.

A recurring job counts the shards that changed and adds up all of them; years that are over are counted once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from opentelemetry.metrics import CallbackOptions, Observation
from sqlalchemy import delete, select

from postroom.archive import statistics
from postroom.archive.backend import ArchiveBackend, MailReader
from postroom.archive.coverage import PartState, TextCoverage, added_up
from postroom.archive.messages import account_name
from postroom.archive.service import read_apart
from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.reports import archive_statistics
from postroom.domain.clock import Clock
from postroom.queue import Handler, JobContext, Postponed
from postroom.queue.job import Json
from postroom.reading.documents import EXTRACTOR_VERSION
from postroom.telemetry.metrics import meter

_TABLE = archive_statistics.c
_WHOLE = ""
_EVERY_VALUE = 10**9
_COUNTED = "all mail "
"""Begins the stamps of shards whose counts have response times and mail without a sender."""
_UNTIL_MAIL = timedelta(seconds=30)


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
    by: statistics.StatisticsBy
    account: str | None
    rows: list[StatisticsRow]
    values: int
    """How many there are in all."""
    counted_at: datetime | None
    """None: nothing was counted yet."""


def read_statistics(tx: Tx, by: statistics.StatisticsBy, account: str | None, limit: int) -> ArchiveStatistics:
    """Most messages first; times and sizes in their own order, the newest first."""
    of_account = _WHOLE if account is None else account_name(account)
    mine = (_TABLE.account == of_account, _TABLE.shard == _WHOLE, _TABLE.kind == by)
    row = tx.execute(select(_TABLE.counts, _TABLE.counted_at).where(*mine)).one_or_none()
    if row is None:
        return ArchiveStatistics(by, account, [], 0, None)
    found = statistics.unpacked(row.counts)
    rows = [StatisticsRow(value, *tally, statistics.search_for(by, value)) for value, tally in found.counts.items()]
    return ArchiveStatistics(by, account, in_order(by, rows)[:limit], found.values, row.counted_at)


@dataclass(frozen=True, slots=True)
class ResponseRow:
    person: str
    """Empty: everyone together."""
    owner: statistics.ResponseTimes | None
    """How long the owner takes to reply."""
    others: statistics.ResponseTimes | None
    """How long it takes until the owner has a reply."""
    search: str
    """Finds the mail from and to that person."""

    @property
    def replies(self) -> int:
        return sum(each.replies for each in (self.owner, self.others) if each is not None)


@dataclass(frozen=True, slots=True)
class ResponseStatistics:
    account: str | None
    rows: list[ResponseRow]
    people: int
    """How many there are in all."""
    counted_at: datetime | None
    """None: nothing was counted yet."""


def read_responses(tx: Tx, account: str | None, limit: int) -> ResponseStatistics:
    """Everyone together, then those with the most replies."""
    of_account = _WHOLE if account is None else account_name(account)
    mine = (_TABLE.account == of_account, _TABLE.shard == _WHOLE, _TABLE.kind == statistics.RESPONSES)
    row = tx.execute(select(_TABLE.counts, _TABLE.counted_at).where(*mine)).one_or_none()
    if row is None:
        return ResponseStatistics(account, [], 0, None)
    people = statistics.responses_by_person(statistics.unpacked(row.counts).counts)
    rows = [
        ResponseRow(
            person,
            times.get(statistics.Responder.OWNER),
            times.get(statistics.Responder.OTHERS),
            statistics.search_for_person(person),
        )
        for person, times in people.items()
    ]
    rows.sort(key=lambda each: (each.person != "", -each.replies, each.person))
    return ResponseStatistics(account, rows[: limit + 1], max(0, len(rows) - 1), row.counted_at)


def statistics_accounts(tx: Tx) -> list[str]:
    """The accounts whose mail was counted."""
    query = select(_TABLE.account).where(_TABLE.shard == _WHOLE, _TABLE.account != _WHOLE).distinct()
    return sorted(tx.execute(query).scalars())


def in_order(by: statistics.StatisticsBy, rows: Sequence[StatisticsRow]) -> list[StatisticsRow]:
    names = [name for name, _, _ in statistics.SIZES]
    match by:
        case statistics.StatisticsBy.SIZE:
            return sorted(rows, key=lambda row: names.index(row.value))
        case statistics.StatisticsBy.HOUR:
            return sorted(rows, key=lambda row: row.value)
        case _ if by in statistics.IN_ORDER:
            return sorted(rows, key=lambda row: row.value, reverse=True)
        case _:
            return sorted(rows, key=lambda row: (-row.messages, -row.bytes, row.value))


COVERAGE = "coverage"
"""How many parts of an account's mail are in each state: texts of messages, and attachments."""


@dataclass(frozen=True, slots=True)
class CountedCoverage:
    accounts: dict[str, TextCoverage]
    counted_at: datetime | None
    """None: nothing was counted yet."""

    @property
    def whole(self) -> TextCoverage:
        return added_up(self.accounts.values())


def read_coverage(tx: Tx) -> CountedCoverage:
    """As last counted."""
    query = select(_TABLE.account, _TABLE.counts, _TABLE.counted_at).where(
        _TABLE.shard == _WHOLE, _TABLE.kind == COVERAGE
    )
    rows = tx.execute(query.order_by(_TABLE.account)).all()
    accounts = {row.account: _coverage(statistics.unpacked(row.counts).counts) for row in rows}
    return CountedCoverage(accounts, min((row.counted_at for row in rows), default=None))


def _coverage(counts: statistics.Counts) -> TextCoverage:
    return TextCoverage(
        {PartState(state): tally.messages for state, tally in counts.items() if tally.messages},
        {PartState(state): tally.attachments for state, tally in counts.items() if tally.attachments},
    )


_shown: dict[PartState, int] = {}


def _show_coverage(coverage: TextCoverage) -> None:
    """As a metric of this process."""
    _shown.update(coverage.by_state)


def _observe(options: CallbackOptions) -> Iterable[Observation]:
    return [Observation(count, {"state": state.value}) for state, count in _shown.items()]


meter.create_observable_gauge(
    "postroom.archive.parts",
    [_observe],
    unit="{part}",
    description="parts of archived mail, by whether they are indexed or why not, as last counted",
)


async def count_coverage(
    database: Database, archive: ArchiveBackend, clock: Clock, version: int = EXTRACTOR_VERSION
) -> CountedCoverage:
    """Count the parts of all mail, and keep that for pages and metrics. `version` is that of what reads attachments."""

    def count(reader: MailReader) -> dict[str, TextCoverage]:
        return {account: reader.coverage(account, version) for account in reader.accounts()}

    found, now = await read_apart(archive, count), clock.now()
    if found:
        rows = [_coverage_row(account, coverage, now) for account, coverage in found.items()]
        await database.write(partial(_put, rows=rows))
    _show_coverage(added_up(found.values()))
    return CountedCoverage(found, now)


def _coverage_row(account: str, coverage: TextCoverage, now: datetime) -> Mapping[str, object]:
    counts = {
        str(state): statistics.Tally(coverage.bodies.get(state, 0), 0, coverage.attachments.get(state, 0))
        for state in PartState
    }
    return _row(account, _WHOLE, COVERAGE, "", now, statistics.Ranking(counts, len(counts)))


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
        counted = await count_archive(context.queue.database, archive, context.queue.clock)
        if not await context.queue.database.read(_stamps):  # so that the first mail is counted soon
            raise Postponed(_UNTIL_MAIL, "the archive has no mail yet")
        return {"shards": counted}

    return handle


async def _add_up(database: Database, accounts: Sequence[str], clock: Clock) -> None:
    """A kind at a time, so that no more than one is in memory."""
    for kind in (*statistics.StatisticsBy, statistics.RESPONSES):
        parts = await database.read(partial(_parts, kind=kind))
        rows = await asyncio.to_thread(_summed, kind, parts, accounts, clock.now())
        await database.write(partial(_put, rows=rows))


def _summed(
    kind: str, parts: Sequence[tuple[str, bytes]], accounts: Sequence[str], now: datetime
) -> list[Mapping[str, object]]:
    by_account: dict[str, list[bytes]] = defaultdict(list)
    for account, counts in parts:
        by_account[account].append(counts)
    sums = {
        account: statistics.merged(statistics.unpacked(part).counts for part in by_account[account])
        for account in accounts
    }
    sums[_WHOLE] = statistics.merged(sums.values()) if len(sums) != 1 else next(iter(sums.values()))
    if kind == statistics.RESPONSES:
        sums = {account: statistics.response_times(counts) for account, counts in sums.items()}
    return [_row(account, _WHOLE, kind, "", now, statistics.ranked(counts)) for account, counts in sums.items()]


def _rows(part: statistics.ShardStatistics, now: datetime) -> list[Mapping[str, object]]:
    groups = part.groups or {}
    return [
        _row(part.account, part.shard, kind, _COUNTED + part.stamp, now, statistics.ranked(counts, _EVERY_VALUE))
        for kind, counts in groups.items()
    ]


def _row(
    account: str, shard: str, kind: str, stamp: str, now: datetime, found: statistics.Ranking
) -> Mapping[str, object]:
    place = {"account": account, "shard": shard, "kind": kind}
    return {**place, "stamp": stamp, "counted_at": now, "counts": statistics.packed(found)}


def _put(tx: Tx, rows: Sequence[Mapping[str, object]]) -> None:
    statement = insert(tx, archive_statistics)
    new = {name: statement.excluded[name] for name in ("stamp", "counted_at", "counts")}
    tx.execute(statement.on_conflict_do_update(index_elements=["account", "shard", "kind"], set_=new), list(rows))


def _stamps(tx: Tx) -> dict[tuple[str, str], str]:
    """Of every shard. One that was counted as an older Postroom did has none, so it is counted again."""
    counted = (_TABLE.shard != _WHOLE, _TABLE.kind == statistics.StatisticsBy.YEAR)
    rows = tx.execute(select(_TABLE.account, _TABLE.shard, _TABLE.stamp).where(*counted))
    return {
        (account, shard): stamp.removeprefix(_COUNTED) if stamp.startswith(_COUNTED) else ""
        for account, shard, stamp in rows
    }


def _parts(tx: Tx, kind: str) -> list[tuple[str, bytes]]:
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
