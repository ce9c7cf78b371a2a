"""Counts what each shard file holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from postroom.archive.layout import ShardName, path_of
from postroom.archive.shards.reader import ShardReader, shards_on_disk
from postroom.archive.statistics import (
    SIZE_NUMBER,
    Groups,
    ShardStatistics,
    StatisticsBy,
    all_groups,
    by_prefix,
    size_name,
)

_TALLY = "count(*), sum(m.size), sum(m.has_attachment)"
_STATEMENTS = {
    StatisticsBy.SENDER: f"SELECT r.address, {_TALLY} FROM messages m JOIN recipients r USING (id) "
    "WHERE r.kind = 'from' GROUP BY r.address",
    StatisticsBy.MONTH: f"SELECT strftime('%Y-%m', m.date_ms / 1000, 'unixepoch') AS month, {_TALLY} "
    "FROM messages m GROUP BY month",
    StatisticsBy.HOUR: f"SELECT strftime('%H', m.date_ms / 1000, 'unixepoch') AS hour, {_TALLY} "
    "FROM messages m GROUP BY hour",
    StatisticsBy.SIZE: f"SELECT {SIZE_NUMBER.format(size='m.size')} AS number, {_TALLY} "
    "FROM messages m GROUP BY number",
    StatisticsBy.LABEL: f"SELECT l.name, {_TALLY} FROM message_labels ml JOIN labels l USING (label) "
    "JOIN messages m ON m.id = ml.id GROUP BY l.label",
    StatisticsBy.TYPE: "SELECT filename, count(DISTINCT id), sum(size), count(*) FROM attachments GROUP BY filename",
}


def count_shards(root: Path, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
    for name in shards_on_disk(root):
        stamp = _stamp(path_of(root, name))
        groups = None if known.get(str(name)) == stamp else _groups(root, name)
        yield ShardStatistics(name.account, str(name), stamp, groups)


def _stamp(path: Path) -> str:
    """Taken before counting, so that a change meanwhile is counted next time."""
    parts = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            found = file.stat()
            parts.append(f"{found.st_mtime_ns:x}.{found.st_size:x}" if found.st_size else "none")
        except FileNotFoundError:
            parts.append("none")  # an empty log means the same; a reader may make one
    return "-".join(parts)


def _groups(root: Path, name: ShardName) -> Groups:
    shard = ShardReader(root, name)
    try:
        groups = all_groups(shard.query, _STATEMENTS)
    finally:
        shard.close()
    return groups | {StatisticsBy.SIZE: by_prefix(groups[StatisticsBy.SIZE], size_name)}
