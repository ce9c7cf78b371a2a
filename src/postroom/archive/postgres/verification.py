"""Proves the archive in PostgreSQL: every byte against its hash, every month against the register, every index entry
against its text; repairs what it can.

`verify` only reads. Each problem is a finding and none stops the run, except that a lost connection ends it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from postroom.archive.coverage import joined_text
from postroom.archive.messages import IncomingMail, Provenance, account_name
from postroom.archive.postgres.attachment_texts import readings_of
from postroom.archive.postgres.connections import ArchiveConnections, ArchiveSession
from postroom.archive.postgres.reader import raw_of
from postroom.archive.postgres.reindexing import pending_below
from postroom.archive.postgres.schema import Partition, find_account, lock_account, partitions
from postroom.archive.postgres.words import indexed
from postroom.archive.preparing import prepare
from postroom.archive.status import ArchiveFinding, ArchiveFlaw, Progress, Repair, Salvaged, ShardInfo, VerifyReport
from postroom.archive.words.tokens import indexed_words, words_of
from postroom.domain.errors import Fatal

_AT_ONCE = 200
_HELD = (
    "SELECT p.low, (SELECT count(*) FROM archive.register r WHERE r.account = p.account AND r.id >= p.low "
    "AND r.id < p.high), pg_total_relation_size(to_regclass('archive.' || p.name)) "
    "FROM archive.partitions p WHERE p.account = %s"
)
_LOST = (ArchiveFlaw.SHARD_MISSING, ArchiveFlaw.SHARD_SHORT, ArchiveFlaw.BYTES_WRONG)


class PostgresVerification:
    def __init__(self, connections: ArchiveConnections) -> None:
        self._connections = connections
        self._old_below: dict[int, int] = {}

    def verify(self, email: str | None, progress: Progress) -> VerifyReport:
        report = VerifyReport()
        wanted = None if email is None else account_name(email)
        for name, account in _accounts(self._connections).items():
            if wanted is None or name == wanted:
                with self._connections.session() as session:
                    months = partitions(session, [account])
                    self._old_below[account] = pending_below(session, account)
                for month in reversed(months):
                    report.findings += self._month(name, month, report, progress)
        return report

    def _month(
        self, email: str, month: Partition, report: VerifyReport, progress: Progress
    ) -> Iterator[ArchiveFinding]:
        shard = f"{email}/{month.shown}"
        with self._connections.session() as session:
            registered = _registered(session, month)
            is_there = session.query("SELECT to_regclass(%s)", (f"archive.{month.table}",)) != [(None,)]
        if month.lost:
            detail = f"{month.lost} messages were lost when this month was repaired; fetch them again from the source"
            yield ArchiveFinding(ArchiveFlaw.LOST_BEFORE, shard, detail)
        if not is_there:
            yield ArchiveFinding(
                ArchiveFlaw.SHARD_MISSING, shard, f"the table is gone, and with it {registered} messages"
            )
            return
        report.shards += 1
        found = 0
        for row in self._rows(month):
            found += 1
            report.bytes += row[2]
            yield from self._message(shard, month.account, row)
            if found % _AT_ONCE == 0:
                progress(_AT_ONCE)
        progress(found % _AT_ONCE)
        report.messages += found
        if found < registered:
            yield ArchiveFinding(
                ArchiveFlaw.SHARD_SHORT, shard, f"{found} messages are there, {registered} were stored"
            )

    def _rows(self, month: Partition) -> Iterator[tuple[Any, ...]]:
        sql = (
            "SELECT m.id, m.key, m.size, m.body, (SELECT tsvector_to_array(tokens) FROM archive.entries e "
            "WHERE e.account = m.account AND e.id = m.id) FROM archive.messages m "
            "WHERE m.account = %s AND m.id > %s AND m.id < %s ORDER BY m.id LIMIT %s"
        )
        last = month.low - 1
        while rows := self._connections.query(sql, (month.account, last, month.high, _AT_ONCE)):
            yield from rows
            last = rows[-1][0]

    def _message(self, shard: str, account: int, row: tuple[Any, ...]) -> Iterator[ArchiveFinding]:
        row_id, key, _, body, tokens = row
        raw: bytes | None = None
        try:
            with self._connections.session() as session:
                raw = raw_of(session, account, row_id)
        except Fatal as error:
            yield ArchiveFinding(ArchiveFlaw.BYTES_WRONG, shard, error.message, key)
        if not _is_indexed(raw, body, tokens, is_old=row_id < self._old_below.get(account, 0)):
            detail = "words of its text are not in the search index; `postroom verify --repair` makes it anew"
            yield ArchiveFinding(ArchiveFlaw.INDEX_WRONG, shard, detail, key)

    def repair(self, report: VerifyReport) -> Repair:
        """Index entries are made anew; messages whose bytes are wrong go into quarantine, and the next sync fetches
        them again."""
        accounts = _accounts(self._connections)
        by_shard: dict[str, list[ArchiveFinding]] = {}
        for finding in report.findings:
            by_shard.setdefault(finding.shard, []).append(finding)
        rebuilt = []
        for shard, findings in by_shard.items():
            account = accounts[shard.rpartition("/")[0]]
            wrong = [finding.key for finding in findings if finding.flaw is ArchiveFlaw.BYTES_WRONG and finding.key]
            stale = [finding.key for finding in findings if finding.flaw is ArchiveFlaw.INDEX_WRONG and finding.key]
            for key in stale:
                if key not in wrong:
                    self._index_again(account, key)
            lost = sum(self._set_aside(account, key) for key in wrong)
            if wrong or stale:
                rebuilt.append(Salvaged(shard, len(set(stale) - set(wrong)), lost, "archive.quarantine"))
        lacking = {finding.shard.rpartition("/")[0] for finding in report.findings if finding.flaw in _LOST}
        return Repair(rebuilt, [email for email in sorted(lacking) if self._forget_mark(accounts[email])])

    def _index_again(self, account: int, key: str) -> None:
        with self._connections.session() as session, session.transaction():
            lock_account(session, account)
            rows = session.query("SELECT id FROM archive.register WHERE account = %s AND key = %s", (account, key))
            for (row_id,) in rows:
                texts = prepare(IncomingMail(raw_of(session, account, row_id), Provenance.IMPORT)).texts
                entry = indexed(texts, joined_text(readings_of(session, account, row_id)))
                session.query(
                    "INSERT INTO archive.entries (account, id, size, has_attachment, tokens, folded) "
                    "SELECT account, id, size, has_attachment, %s::tsvector, %s FROM archive.messages "
                    "WHERE account = %s AND id = %s "
                    "ON CONFLICT (account, id) DO UPDATE SET tokens = excluded.tokens, folded = excluded.folded",
                    (entry.tokens, entry.folded, account, row_id),
                )
                session.query(
                    "UPDATE archive.messages SET body = %s WHERE account = %s AND id = %s",
                    (texts.body, account, row_id),
                )

    def _set_aside(self, account: int, key: str) -> bool:
        """Unless it is whole now: a sync may have fetched it again since it was looked at."""
        with self._connections.session() as session, session.transaction():
            lock_account(session, account)
            if self._is_whole(account, key):
                return False
            session.query(
                "WITH gone AS (DELETE FROM archive.messages WHERE account = %s AND key = %s RETURNING *) "
                "INSERT INTO archive.quarantine (account, message) "
                "SELECT account, to_jsonb(gone) FROM gone",
                (account, key),
            )
            for table in ("entries", "message_labels", "readings"):
                session.query(
                    f"DELETE FROM archive.{table} t USING archive.register r "
                    "WHERE r.account = %s AND r.key = %s AND t.account = r.account AND t.id = r.id",
                    (account, key),
                )
            session.query(
                "UPDATE archive.partitions p SET lost = lost + 1 FROM archive.register r "
                "WHERE r.account = %s AND r.key = %s AND p.account = r.account AND r.id >= p.low AND r.id < p.high",
                (account, key),
            )
            session.query("DELETE FROM archive.register WHERE account = %s AND key = %s", (account, key))
        return True

    def _is_whole(self, account: int, key: str) -> bool:
        """On a connection of its own: what the server cannot read would end a transaction."""
        sql = "SELECT id FROM archive.messages WHERE account = %s AND key = %s"
        try:
            with self._connections.session() as session:
                for (row_id,) in session.query(sql, (account, key)):
                    raw_of(session, account, row_id)
        except Fatal:
            return False
        return True

    def _forget_mark(self, account: int) -> bool:
        return bool(
            self._connections.query("DELETE FROM archive.sync_marks WHERE account = %s RETURNING 1", (account,))
        )

    def shards(self, email: str) -> list[ShardInfo]:
        with self._connections.session() as session:
            account = find_account(session, account_name(email))
            months = [] if account is None else partitions(session, [account])
            held = {} if account is None else {low: rest for low, *rest in session.query(_HELD, (account,))}
        return [_shard(month, *held[month.low]) for month in months if month.low in held]


def _shard(month: Partition, stored: int, size: int | None) -> ShardInfo:
    name, year = month.shown, int(month.shown[:4])
    if size is None:
        return ShardInfo(name, year, 0, month.lost, None, "The table is missing. Restore it from a backup.")
    return ShardInfo(name, year, stored, month.lost, int(size), None)


def _is_indexed(raw: bytes | None, body: str, tokens: Sequence[str] | None, *, is_old: bool) -> bool:
    """Where words of the text lack, they may be those for which the index had no room: then all of it is made anew.
    An old entry, which waits to be made anew, has the words as they were cut before."""
    if tokens is None:
        return False
    if set(indexed_words(body)) <= set(tokens) or (is_old and set(words_of(body)) <= set(tokens)):
        return True
    if raw is None:
        return False
    texts = prepare(IncomingMail(raw, Provenance.IMPORT)).texts
    return texts.body == body and indexed(texts).lexemes <= set(tokens)


def _registered(session: ArchiveSession, month: Partition) -> int:
    sql = "SELECT count(*) FROM archive.register WHERE account = %s AND id >= %s AND id < %s"
    return int(session.query(sql, (month.account, month.low, month.high))[0][0])


def _accounts(connections: ArchiveConnections) -> dict[str, int]:
    return dict(connections.query("SELECT email, account FROM archive.accounts ORDER BY email"))
