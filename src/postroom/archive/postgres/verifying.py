"""Proves the archive in PostgreSQL: every byte against its hash, every month against the register, every index entry
against the text that it was made from. Reads only; whatever is wrong is a finding, and none stops the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from postroom.archive.layout import account_name
from postroom.archive.model import IncomingMail, Provenance
from postroom.archive.postgres.connections import Connections, Session
from postroom.archive.postgres.reading import raw_of
from postroom.archive.postgres.schema import Partition, find_account, lock_account, partitions
from postroom.archive.postgres.words import indexed, words_of
from postroom.archive.preparing import prepare
from postroom.archive.salvage import Repair, Salvaged
from postroom.archive.stock import Shard
from postroom.archive.verify import Finding, Flaw, Progress, Report
from postroom.domain.errors import PostroomError

_AT_ONCE = 200
_LOST = (Flaw.SHARD_MISSING, Flaw.SHARD_SHORT, Flaw.BYTES_WRONG)


class Verification:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    def verify(self, email: str | None, progress: Progress) -> Report:
        report = Report()
        wanted = None if email is None else account_name(email)
        for name, account in _accounts(self._connections).items():
            if wanted is None or name == wanted:
                with self._connections.session() as session:
                    months = partitions(session, [account])
                for month in reversed(months):
                    report.findings += self._month(name, month, report, progress)
        return report

    def _month(self, email: str, month: Partition, report: Report, progress: Progress) -> Iterator[Finding]:
        shard = f"{email}/{month.shown}"
        with self._connections.session() as session:
            registered = _registered(session, month)
            is_there = session.query("SELECT to_regclass(%s)", (f"archive.{month.table}",)) != [(None,)]
        if month.lost:
            detail = f"{month.lost} messages were lost when this month was repaired; fetch them again from the source"
            yield Finding(Flaw.LOST_BEFORE, shard, detail)
        if not is_there:
            yield Finding(Flaw.SHARD_MISSING, shard, f"the table is gone, and with it {registered} messages")
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
            yield Finding(Flaw.SHARD_SHORT, shard, f"{found} messages are there, {registered} were stored")

    def _rows(self, month: Partition) -> Iterator[tuple[Any, ...]]:
        sql = (
            "SELECT id, key, size, body, tsvector_to_array(tokens) FROM archive.messages "
            "WHERE account = %s AND id > %s AND id < %s ORDER BY id LIMIT %s"
        )
        last = month.low - 1
        while rows := self._connections.query(sql, (month.account, last, month.high, _AT_ONCE)):
            yield from rows
            last = rows[-1][0]

    def _message(self, shard: str, account: int, row: tuple[Any, ...]) -> Iterator[Finding]:
        row_id, key, _, body, tokens = row
        try:
            with self._connections.session() as session:
                raw_of(session, account, row_id)
        except PostroomError as error:
            yield Finding(Flaw.BYTES_WRONG, shard, error.message, key)
        if not set(words_of(body)) <= set(tokens):
            detail = "words of its text are not in the search index; `postroom verify --repair` makes it anew"
            yield Finding(Flaw.INDEX_WRONG, shard, detail, key)

    def repair(self, report: Report) -> Repair:
        """Index entries are made anew; messages whose bytes are wrong go into quarantine, and the next sync fetches
        them again."""
        accounts = _accounts(self._connections)
        by_shard: dict[str, list[Finding]] = {}
        for finding in report.findings:
            by_shard.setdefault(finding.shard, []).append(finding)
        rebuilt = []
        for shard, findings in by_shard.items():
            account = accounts[shard.rpartition("/")[0]]
            wrong = [finding.key for finding in findings if finding.flaw is Flaw.BYTES_WRONG and finding.key]
            stale = [finding.key for finding in findings if finding.flaw is Flaw.INDEX_WRONG and finding.key]
            for key in stale:
                if key not in wrong:
                    self._index_again(account, key)
            for key in wrong:
                self._set_aside(account, key)
            if wrong or stale:
                rebuilt.append(Salvaged(shard, len(set(stale) - set(wrong)), len(wrong), "archive.quarantine"))
        lacking = {finding.shard.rpartition("/")[0] for finding in report.findings if finding.flaw in _LOST}
        return Repair(rebuilt, [email for email in sorted(lacking) if self._forget_mark(accounts[email])])

    def _index_again(self, account: int, key: str) -> None:
        with self._connections.session() as session, session.transaction():
            lock_account(session, account)
            rows = session.query("SELECT id FROM archive.register WHERE account = %s AND key = %s", (account, key))
            for (row_id,) in rows:
                texts = prepare(IncomingMail(raw_of(session, account, row_id), Provenance.IMPORT)).texts
                entry = indexed(texts)
                session.query(
                    "UPDATE archive.messages SET body = %s, tokens = %s::tsvector, folded = %s "
                    "WHERE account = %s AND id = %s",
                    (texts.body, entry.tokens, entry.folded, account, row_id),
                )

    def _set_aside(self, account: int, key: str) -> None:
        with self._connections.session() as session, session.transaction():
            lock_account(session, account)
            session.query(
                "WITH gone AS (DELETE FROM archive.messages WHERE account = %s AND key = %s RETURNING *) "
                "INSERT INTO archive.quarantine (account, message) "
                "SELECT account, to_jsonb(gone) - 'tokens' - 'folded' FROM gone",
                (account, key),
            )
            session.query(
                "UPDATE archive.partitions p SET lost = lost + 1 FROM archive.register r "
                "WHERE r.account = %s AND r.key = %s AND p.account = r.account AND r.id >= p.low AND r.id < p.high",
                (account, key),
            )
            session.query("DELETE FROM archive.register WHERE account = %s AND key = %s", (account, key))

    def _forget_mark(self, account: int) -> bool:
        return bool(
            self._connections.query("DELETE FROM archive.sync_marks WHERE account = %s RETURNING 1", (account,))
        )

    def shards(self, email: str) -> list[Shard]:
        with self._connections.session() as session:
            account = find_account(session, account_name(email))
            months = [] if account is None else partitions(session, [account])
            return [_shard(session, month) for month in months]


def _shard(session: Session, month: Partition) -> Shard:
    name, year, stored = month.shown, int(month.shown[:4]), _registered(session, month)
    [(size,)] = session.query("SELECT pg_total_relation_size(to_regclass(%s))", (f"archive.{month.table}",))
    if size is None:
        return Shard(name, year, 0, month.lost, None, "The table is missing. Restore it from a backup.")
    return Shard(name, year, stored, month.lost, int(size), None)


def _registered(session: Session, month: Partition) -> int:
    sql = "SELECT count(*) FROM archive.register WHERE account = %s AND id >= %s AND id < %s"
    return int(session.query(sql, (month.account, month.low, month.high))[0][0])


def _accounts(connections: Connections) -> dict[str, int]:
    return dict(connections.query("SELECT email, account FROM archive.accounts ORDER BY email"))
