"""Every message of an account, oldest first, for whoever has to look at them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from postroom.archive import rowids
from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.reading import MESSAGE_COLUMNS, ShardReader, shards_on_disk

PORTION = 500


def portions(root: Path, email: str, below: int | None = None) -> Iterator[list[ArchivedMessage]]:
    """Those dated before `below` (seconds since 1970), or all, a few hundred at a time.

    Each portion is read afresh: no shard stays open while the caller is at work, and no old state is seen.
    """
    bound = None if below is None else rowids.first_id(below * 1_000)
    for name in shards_on_disk(root, account_name(email)):
        last = -1
        while found := _portion(ShardReader(root, name), last, bound):
            yield found
            last = found[-1].row_id


def _portion(reader: ShardReader, after: int, bound: int | None) -> list[ArchivedMessage]:
    sql = f"SELECT {MESSAGE_COLUMNS} FROM messages WHERE id > ? AND (? IS NULL OR id < ?) ORDER BY id LIMIT {PORTION}"
    try:
        return [reader.read_row(row) for row in reader.query(sql, (after, bound, bound))]
    finally:
        reader.close()
