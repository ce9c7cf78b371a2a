"""Removal certificates in PostgreSQL. No row of theirs ever changes: the tables refuse it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Self

from postroom.archive.certificates import (
    LEDGER_COLUMNS,
    Certificate,
    Proof,
    Removal,
    Result,
    certificate_of,
)
from postroom.archive.layout import account_name
from postroom.archive.postgres.connections import Connections, Rows, Session
from postroom.archive.postgres.schema import account_number, find_account, lock_account

_OUTCOME = "INSERT INTO archive.outcomes (certificate, result, detail, recorded_at) VALUES (%s, %s, %s, %s)"


class DatabaseBook:
    """An account's certificates, to be added to."""

    def __init__(self, connections: Connections, email: str) -> None:
        self._connections = connections
        with connections.session() as session:
            self._account = account_number(session, account_name(email))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """It holds nothing open."""

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[Proof], watermark: int, now: datetime
    ) -> list[Certificate]:
        with self._connections.session() as session, session.transaction():
            lock_account(session, self._account)
            numbers = [self._certificate(session, batch, removal, proof, watermark, now) for proof in proofs]
            session.many(_OUTCOME, [(number, Result.INTENDED, f"batch {batch}", now) for number in numbers])
        sql = f"SELECT {LEDGER_COLUMNS} FROM archive.ledger WHERE certificate = ANY(%s) ORDER BY certificate"
        return _read(self._connections.query(sql, (numbers,)))

    def settle(self, certificates: Iterable[Certificate], result: Result, detail: str, now: datetime) -> None:
        with self._connections.session() as session, session.transaction():
            session.many(_OUTCOME, [(certificate.number, result, detail, now) for certificate in certificates])

    def open(self) -> list[Certificate]:
        intended = "account = %s AND result = 'intended' ORDER BY certificate"
        sql = f"SELECT {LEDGER_COLUMNS} FROM archive.ledger WHERE {intended}"
        return _read(self._connections.query(sql, (self._account,)))

    def _certificate(
        self, session: Session, batch: str, removal: Removal, proof: Proof, watermark: int, now: datetime
    ) -> int:
        """Equal bytes certified before keep their one certificate."""
        identity = (self._account, proof.gmail_id, removal.action, removal.label, proof.sha256)
        found = session.query(
            "SELECT certificate FROM archive.certificates WHERE account = %s AND gmail_id = %s AND action = %s "
            "AND label = %s AND sha256 = %s",
            identity,
        )
        if found:
            return int(found[0][0])
        rest = (batch, proof.key, proof.size, proof.shard, proof.row_id, proof.provenance, watermark, now)
        made = session.query(
            "INSERT INTO archive.certificates (account, gmail_id, action, label, sha256, batch, key, size, shard, "
            f"row_id, provenance, watermark, certified_at) VALUES ({', '.join(['%s'] * 13)}) RETURNING certificate",
            (*identity, *rest),
        )
        return int(made[0][0])


class DatabaseLedger:
    def __init__(self, connections: Connections, email: str) -> None:
        self._connections = connections
        self._email = account_name(email)

    def certified(self, gmail_ids: Sequence[str]) -> set[str]:
        rows = self._rows("DISTINCT gmail_id", "gmail_id = ANY(%s)", list(gmail_ids))
        return {gmail_id for (gmail_id,) in rows}

    def removed_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
        condition = "gmail_id = ANY(%s) AND action = %s AND label = %s AND result IN ('removed', 'gone')"
        rows = self._rows("gmail_id", condition, list(gmail_ids), removal.action, removal.label)
        return {gmail_id for (gmail_id,) in rows}

    def intended_among(self, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
        condition = "gmail_id = ANY(%s) AND action = %s AND label = %s AND result = 'intended'"
        rows = self._rows("certificate", condition, list(gmail_ids), removal.action, removal.label)
        return {number for (number,) in rows}

    def certificates(
        self,
        *,
        result: Result | None = None,
        gmail_id: str | None = None,
        before: int | None = None,
        limit: int = 50,
    ) -> list[Certificate]:
        wanted = {"result = %s": result, "gmail_id = %s": gmail_id, "certificate < %s": before}
        conditions = [condition for condition, value in wanted.items() if value is not None]
        values = [value for value in wanted.values() if value is not None]
        where = " AND ".join(conditions) or "TRUE"
        return _read(self._rows(LEDGER_COLUMNS, f"{where} ORDER BY certificate DESC LIMIT %s", *values, limit))

    def counts(self) -> dict[Result, int]:
        rows = self._rows("result, count(*)", "TRUE GROUP BY result")
        return {Result(result): count for result, count in rows}

    def _rows(self, columns: str, condition: str, *values: object) -> Rows:
        with self._connections.session() as session:
            account = find_account(session, self._email)
            if account is None:
                return []
            sql = f"SELECT {columns} FROM archive.ledger WHERE account = %s AND {condition}"
            return session.query(sql, (account, *values))


def _read(rows: Rows) -> list[Certificate]:
    return [certificate_of(row, lambda moment: moment.astimezone(UTC)) for row in rows]
