"""Counts what each month of each account holds in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession
from postroom.archive.postgres.schema import Partition, partitions
from postroom.archive.statistics import (
    SIZE_NUMBER,
    Groups,
    ShardStatistics,
    StatisticsBy,
    all_groups,
    by_prefix,
    size_name,
)

_TALLY = "count(*), coalesce(sum(m.size), 0), count(*) FILTER (WHERE m.has_attachment)"
_DATE = "timezone('UTC', to_timestamp(m.date_ms / 1000.0))"
_STATEMENTS = {
    StatisticsBy.SENDER: f"SELECT r.value ->> 1, {_TALLY} FROM archive.{{table}} m, "
    "jsonb_array_elements(m.recipients) r WHERE r.value ->> 0 = 'from' GROUP BY 1",
    StatisticsBy.MONTH: f"SELECT to_char({_DATE}, 'YYYY-MM'), {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.HOUR: f"SELECT to_char({_DATE}, 'HH24'), {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.SIZE: f"SELECT {SIZE_NUMBER.format(size='m.size')}, {_TALLY} FROM archive.{{table}} m GROUP BY 1",
    StatisticsBy.LABEL: f"SELECT l.name, {_TALLY} FROM archive.{{table}} m JOIN archive.message_labels ml "
    "ON ml.account = m.account AND ml.id = m.id JOIN archive.labels l USING (label) GROUP BY 1",
    StatisticsBy.TYPE: "SELECT a.value ->> 0, count(DISTINCT m.id), coalesce(sum((a.value ->> 2)::bigint), 0), "
    "count(*) FROM archive.{table} m, jsonb_array_elements(m.attachments) a GROUP BY 1",
}
_STAMPS = """
    SELECT p.account, p.low, count(t.id), coalesce(sum(t.id % 1000003 * t.label), 0)
    FROM archive.partitions p LEFT JOIN (
        SELECT account, id, 1 AS label FROM archive.register
        UNION ALL SELECT account, id, 1 + label FROM archive.message_labels
    ) t ON t.account = p.account AND t.id >= p.low AND t.id < p.high
    GROUP BY p.account, p.low"""


def count_partitions(connections: ArchiveConnections, known: Mapping[str, str]) -> Iterator[ShardStatistics]:
    with connections.session() as session:
        emails: dict[int, str] = dict(session.query("SELECT account, email FROM archive.accounts"))
        stamps = {(account, low): f"{number}-{total}" for account, low, number, total in session.query(_STAMPS)}
        for partition in partitions(session, list(emails)):
            email, stamp = emails[partition.account], stamps.get((partition.account, partition.low), "")
            shard = f"{email}/{partition.shown}"
            groups = None if known.get(shard) == stamp else _groups(session, partition)
            yield ShardStatistics(email, shard, stamp, groups)


def _groups(session: ArchiveSession, partition: Partition) -> Groups:
    if session.query("SELECT to_regclass(%s)", (f"archive.{partition.table}",)) == [(None,)]:
        return {kind: {} for kind in StatisticsBy}  # `verify` reports that it is missing
    statements = {kind: sql.replace("{table}", partition.table) for kind, sql in _STATEMENTS.items()}
    groups = all_groups(session.query, statements)
    return groups | {StatisticsBy.SIZE: by_prefix(groups[StatisticsBy.SIZE], size_name)}
