"""What the archive says of messages by their ids at the source, read some at a time: needs no owner, blocks nobody."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from postroom.archive.model import KnownId
from postroom.archive.reading import ArchiveReader

_AT_ONCE = 1_000


def all_ids(reader: ArchiveReader, email: str) -> Iterator[list[KnownId]]:
    """Every message of the account that has a Gmail id, in portions."""
    query = (
        "SELECT id, gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
        "WHERE id > ? AND gmail_id IS NOT NULL ORDER BY id LIMIT ?"
    )
    for shard in reader.shards(email):
        last = -1
        while rows := shard.query(query, (last, _AT_ONCE)):
            yield [KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for _, gmail_id, date_ms, deleted in rows]
            last = rows[-1][0]


def look_up(reader: ArchiveReader, email: str, gmail_ids: Sequence[str]) -> Mapping[str, KnownId]:
    """Those of the ids that the archive has."""
    query = (
        "SELECT gmail_id, date_ms, deleted_at_source IS NOT NULL FROM messages "
        "WHERE key IN (SELECT value FROM json_each(?)) AND gmail_id IS NOT NULL"
    )
    wanted = json.dumps(list(gmail_ids))
    rows = (row for shard in reader.shards(email) for row in shard.query(query, (wanted,)))
    return {gmail_id: KnownId(gmail_id, date_ms // 1_000, bool(deleted)) for gmail_id, date_ms, deleted in rows}
