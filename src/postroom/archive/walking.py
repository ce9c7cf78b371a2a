"""Archived mail as a source: many messages by their keys, a stretch of time page by page, or all of an account.

Reads only what a shard keeps beside the bytes, and headers where they are asked for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from heapq import merge
from itertools import groupby, islice
from pathlib import Path

from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.reading import MESSAGE_COLUMNS, ArchiveReader, ShardReader, shards_on_disk
from postroom.archive.rowids import first_id
from postroom.domain.errors import BadInput

PORTION = 500
_DAY_MS = 86_400_000
Place = tuple[int, int]
"""A row's id and its shard's part: where a walk is, among all shards of its year."""


@dataclass(frozen=True, slots=True)
class _Step:
    message: ArchivedMessage
    place: Place


def find_many(archive: ArchiveReader, email: str, keys: Sequence[str]) -> dict[str, ArchivedMessage]:
    """Those of the keys that the archive has. Newest shards are asked first; most mail that is asked for is new."""
    found: dict[str, ArchivedMessage] = {}
    query = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE key IN (SELECT value FROM json_each(?))"
    missing = set(keys)
    for shard in archive.shards(email):
        if not missing:
            break
        for row in shard.query(query, (json.dumps(sorted(missing)),)):
            message = shard.read_row(row)
            found[message.key] = message
        missing -= found.keys()
    return found


def walk(
    archive: ArchiveReader, email: str, date_from: date, date_to: date, after: str | None, limit: int
) -> tuple[list[ArchivedMessage], str | None]:
    """Messages with a Gmail id received from the first day to the last, both included, in UTC, newest first.

    `after` is the cursor that the page before ended with; the last page ends with None.
    """
    start, end = _milliseconds(date_from), _milliseconds(date_to) + _DAY_MS
    before = _read_cursor(after) if after else (first_id(end), 0)
    steps = list(islice(_steps(archive, email, first_id(start), before, date_from.year, limit + 1), limit + 1))
    more = len(steps) > limit
    return [step.message for step in steps[:limit]], _cursor(steps[limit - 1].place) if more else None


def portions(root: Path, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
    """Those dated before `below` (seconds since 1970), or all, a few hundred at a time.

    Each portion is read afresh: no shard stays open while the caller is at work, and no old state is seen.
    """
    bound = None if below is None else first_id(below * 1_000)
    for name in shards_on_disk(root, account_name(email)):
        last = -1
        while found := _portion(ShardReader(root, name), last, bound):
            yield found
            last = found[-1].row_id


def newest_first(archive: ArchiveReader, emails: Sequence[str] | None = None) -> Iterator[ArchivedMessage]:
    """All messages of these accounts, or of all, from the newest; a few hundred of each shard are held at a time."""
    accounts = None if emails is None else {account_name(email) for email in emails}
    names = [name for name in shards_on_disk(archive.root) if accounts is None or name.account in accounts]
    by_year = sorted(names, key=lambda name: name.year, reverse=True)
    for _, group in groupby(by_year, key=lambda name: name.year):
        walks = [_backwards(archive.shard(name), name.part) for name in group]
        yield from (step.message for step in merge(*walks, key=lambda step: step.place, reverse=True))


def oldest_first(archive: ArchiveReader, email: str | None = None) -> Iterator[ArchivedMessage]:
    """All messages of an account, or of one account after the other."""
    for shard in reversed(list(archive.shards(email))):
        last = -1
        while found := _next_ones(shard, last, None):
            yield from found
            last = found[-1].row_id


def _backwards(shard: ShardReader, part: int) -> Iterator[_Step]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id < ? ORDER BY id DESC LIMIT {PORTION}"
    last = (1 << 63) - 1
    while rows := shard.query(sql, (last,)):
        yield from (_Step(shard.read_row(row), (row[0], part)) for row in rows)
        last = rows[-1][0]


def _portion(reader: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    try:
        return _next_ones(reader, after, bound)
    finally:
        reader.close()


def _next_ones(reader: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id > ? AND (? IS NULL OR id < ?) ORDER BY id LIMIT {PORTION}"
    return [reader.read_row(row) for row in reader.query(sql, (after, bound, bound))]


def _steps(
    archive: ArchiveReader, email: str, first: int, before: Place, first_year: int, most: int
) -> Iterator[_Step]:
    names = [name for name in shards_on_disk(archive.root, account_name(email)) if name.year >= first_year]
    for _, parts in groupby(reversed(names), key=lambda name: name.year):
        readers = [(name.part, archive.shard(name)) for name in parts]
        pages = [_page(shard, part, first, before, most) for part, shard in readers]
        yield from merge(*pages, key=lambda step: step.place, reverse=True)


def _page(shard: ShardReader, part: int, first: int, before: Place, most: int) -> list[_Step]:
    """Rows below the place; a row of the same id in a lower part is still to come."""
    last, last_part = before
    condition = "id <= ?" if part < last_part else "id < ?"
    rows = shard.query(
        f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id >= ? AND {condition} AND gmail_id IS NOT NULL "
        "ORDER BY id DESC LIMIT ?",
        (first, last, most),
    )
    return [_Step(shard.read_row(row), (row[0], part)) for row in rows]


def _milliseconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1_000)


def _cursor(place: Place) -> str:
    return f"{place[0]:x}.{place[1]}"


def _read_cursor(text: str) -> Place:
    row_id, _, part = text.partition(".")
    try:
        place = int(row_id, 16), int(part)
    except ValueError:
        raise BadInput("cursor", "is not one that this tool gave") from None
    if not (0 <= place[0] < 1 << 63 and 0 < place[1] < 1 << 31):
        raise BadInput("cursor", "is not one that this tool gave")
    return place
