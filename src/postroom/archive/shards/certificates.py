"""Removal certificates: before a message is removed at its source, the proof that it is here is on disk (SY-10).

An account's certificates are in `certificates.db` beside its shards. No row of that SQLite file ever changes.
A certificate says which bytes were read back, where, and below which watermark; its outcomes say what became of the
removal. A certificate without an outcome was interrupted: only the source can say whether the message is still there.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from postroom.archive.certificates import (
    LEDGER_COLUMNS,
    ArchiveProof,
    Certificate,
    Removal,
    RemovalResult,
    certificate_of,
)
from postroom.archive.messages import account_name, folder_of
from postroom.archive.shards.shard_file import storage_error, uri_path
from postroom.domain.errors import Fatal, NewerSchema

APPLICATION_ID = 0x506F7343  # "PosC"
VERSION = 1
_BUSY_TIMEOUT_S = 30.0

_TABLES = (
    """
    CREATE TABLE certificates (
        certificate INTEGER PRIMARY KEY,
        batch TEXT NOT NULL,
        gmail_id TEXT NOT NULL,
        action TEXT NOT NULL,               -- label, trash or delete
        label TEXT NOT NULL,                -- the name of the label that is taken away; else empty
        key TEXT NOT NULL,
        sha256 TEXT NOT NULL,               -- of the bytes as they were read back from disk
        size INTEGER NOT NULL,
        shard TEXT NOT NULL,
        row_id INTEGER NOT NULL,
        provenance TEXT NOT NULL,
        watermark INTEGER NOT NULL,         -- seconds since 1970, as read for this batch
        certified_at TEXT NOT NULL,
        UNIQUE (gmail_id, action, label, sha256)
    )""",
    """
    CREATE TABLE outcomes (                 -- the last one of a certificate is how it stands
        outcome INTEGER PRIMARY KEY,
        certificate INTEGER NOT NULL REFERENCES certificates (certificate),
        result TEXT NOT NULL CHECK (result IN ('intended', 'removed', 'gone', 'left')),
        detail TEXT NOT NULL,
        recorded_at TEXT NOT NULL
    )""",
    "CREATE INDEX outcomes_of_certificate ON outcomes (certificate, outcome)",
    """
    CREATE VIEW ledger AS
    SELECT c.*, o.result, o.detail, o.recorded_at AS result_at
    FROM certificates c JOIN outcomes o
        ON o.outcome = (SELECT max(outcome) FROM outcomes WHERE certificate = c.certificate)
    """,
    *(
        f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{table} are never changed'); END"
        for table in ("certificates", "outcomes")
        for verb in ("update", "delete")
    ),
    # INSERT OR REPLACE takes rows away without asking the triggers above.
    """
    CREATE TRIGGER certificates_no_replace BEFORE INSERT ON certificates
    WHEN EXISTS (SELECT 1 FROM certificates WHERE certificate = NEW.certificate OR (
        gmail_id = NEW.gmail_id AND action = NEW.action AND label = NEW.label AND sha256 = NEW.sha256))
    BEGIN SELECT RAISE(ABORT, 'certificates are never changed'); END
    """,
    """
    CREATE TRIGGER outcomes_no_replace BEFORE INSERT ON outcomes
    WHEN EXISTS (SELECT 1 FROM outcomes WHERE outcome = NEW.outcome)
    BEGIN SELECT RAISE(ABORT, 'outcomes are never changed'); END
    """,
)


def open_certificates(path: Path) -> sqlite3.Connection:
    """For writing. WAL and FULL: a commit is on disk when it returns, even if the power fails."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = _connect(path, "rwc")
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 0:
        for statement in _TABLES:
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
    connection.execute("COMMIT")
    if version == 0:
        _sync_folder(path.parent)
    if version > VERSION:
        raise NewerSchema(f"{path} was written by a newer Postroom (version {version}). Upgrade Postroom.")
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise Fatal(f"{path} does not hold Postroom's certificates; move it elsewhere.")


def _sync_folder(folder: Path) -> None:
    """A file that was just made has to be found again after the power fails, and so has its name to be on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_certificates_to_read(path: Path) -> sqlite3.Connection | None:
    """None where nothing was ever certified, or where the first to do so was killed before it could."""
    if not path.exists():
        return None
    connection = _connect(path, "ro")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    if version == 0:
        connection.close()
        return None
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"file:{uri_path(path)}?mode={mode}",
        uri=True,
        isolation_level=None,
        timeout=_BUSY_TIMEOUT_S,
        check_same_thread=False,
    )


CERTIFICATES_FILE = "certificates.db"


class Certificates:
    """An account's certificates, to be added to. When a method returns, what it wrote is on disk."""

    def __init__(self, root: Path, email: str) -> None:
        self._path = certificates_path(root, email)
        self._connection = open_certificates(self._path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Certificates:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[ArchiveProof], watermark: int, now: datetime
    ) -> list[Certificate]:
        """Write down that these are about to be removed. Equal bytes certified before keep their one certificate."""
        with self._transaction():
            for proof in proofs:
                number = self._find(removal, proof) or self._insert(batch, removal, proof, watermark, now)
                self._add_outcome(number, RemovalResult.INTENDED, f"batch {batch}", now)
        wanted = {(proof.gmail_id, proof.sha256) for proof in proofs}
        intended = self._intended(removal, [proof.gmail_id for proof in proofs])
        return [each for each in intended if (each.proof.gmail_id, each.proof.sha256) in wanted]

    def settle(self, certificates: Iterable[Certificate], result: RemovalResult, detail: str, now: datetime) -> None:
        """Write down what became of removals."""
        with self._transaction():
            for certificate in certificates:
                self._add_outcome(certificate.number, result, detail, now)

    def open(self) -> list[Certificate]:
        """Those that a run left behind without saying what became of them."""
        return self._certificates("WHERE result = 'intended' ORDER BY certificate", ())

    def _intended(self, removal: Removal, gmail_ids: Sequence[str]) -> list[Certificate]:
        condition = (
            "WHERE gmail_id IN (SELECT value FROM json_each(?)) AND action = ? AND label = ? AND result = 'intended' "
            "ORDER BY certificate"
        )
        return self._certificates(condition, (json.dumps(list(gmail_ids)), removal.action, removal.label))

    def _certificates(self, condition: str, parameters: Sequence[object]) -> list[Certificate]:
        try:
            return _read(self._connection, condition, parameters)
        except sqlite3.Error as error:
            raise storage_error(error, str(self._path)) from error

    def _find(self, removal: Removal, proof: ArchiveProof) -> int | None:
        found = self._connection.execute(
            "SELECT certificate FROM certificates WHERE gmail_id = ? AND action = ? AND label = ? AND sha256 = ?",
            (proof.gmail_id, removal.action, removal.label, proof.sha256),
        ).fetchone()
        return None if found is None else int(found[0])

    def _insert(self, batch: str, removal: Removal, proof: ArchiveProof, watermark: int, now: datetime) -> int:
        made = self._connection.execute(
            "INSERT INTO certificates (batch, action, label, gmail_id, key, sha256, size, shard, row_id, provenance, "
            "watermark, certified_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                batch,
                removal.action,
                removal.label,
                proof.gmail_id,
                proof.key,
                proof.sha256,
                proof.size,
                proof.shard,
                proof.row_id,
                proof.provenance,
                watermark,
                now.isoformat(),
            ),
        )
        return int(made.lastrowid or 0)

    def _add_outcome(self, certificate: int, result: RemovalResult, detail: str, now: datetime) -> None:
        self._connection.execute(
            "INSERT INTO outcomes (certificate, result, detail, recorded_at) VALUES (?, ?, ?, ?)",
            (certificate, result, detail, now.isoformat()),
        )

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise storage_error(error, str(self._path)) from error


def certificates_path(root: Path, email: str) -> Path:
    return folder_of(root, account_name(email)) / CERTIFICATES_FILE


def has_certificate(root: Path, email: str, gmail_ids: Sequence[str]) -> set[str]:
    """Which of these have a certificate of any kind, because the archive may then hold the only copy."""
    sql = "SELECT DISTINCT gmail_id FROM certificates WHERE gmail_id IN (SELECT value FROM json_each(?))"
    return {gmail_id for (gmail_id,) in _rows(root, email, sql, json.dumps(list(gmail_ids)))}


def removed_among(root: Path, email: str, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
    """Which of these were removed in this way before: if they are back, the owner wants them there."""
    sql = (
        "SELECT gmail_id FROM ledger WHERE gmail_id IN (SELECT value FROM json_each(?)) AND action = ? AND label = ? "
        "AND result IN ('removed', 'gone')"
    )
    parameters = (json.dumps(list(gmail_ids)), removal.action, removal.label)
    return {gmail_id for (gmail_id,) in _rows(root, email, sql, *parameters)}


def intended_among(root: Path, email: str, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
    """The certificates of these that are in the file and stand as intended, by number."""
    sql = (
        "SELECT certificate FROM ledger WHERE gmail_id IN (SELECT value FROM json_each(?)) AND action = ? "
        "AND label = ? AND result = 'intended'"
    )
    parameters = (json.dumps(list(gmail_ids)), removal.action, removal.label)
    return {number for (number,) in _rows(root, email, sql, *parameters)}


def list_certificates(
    root: Path,
    email: str,
    *,
    result: RemovalResult | None = None,
    gmail_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Certificate]:
    """The newest certificates of an account, or those before a number, read without blocking a writer."""
    if result is not None:
        # Without that bound, a result that few certificates have is looked for among all of them.
        limit = min(limit, count_certificates(root, email).get(result, 0))
    wanted = {"result": result, "gmail_id": gmail_id}
    conditions = [f"{name} = ?" for name, value in wanted.items() if value is not None]
    parameters: list[object] = [value for value in wanted.values() if value is not None]
    if before is not None:
        conditions.append("certificate < ?")
        parameters.append(before)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    with _reading(root, email) as connection:
        if connection is None:
            return []
        return _read(connection, f"{where}ORDER BY certificate DESC LIMIT ?", (*parameters, limit))


def count_certificates(root: Path, email: str) -> dict[RemovalResult, int]:
    """How many certificates stand at each result."""
    with _reading(root, email) as connection:
        last = None if connection is None else connection.execute("SELECT max(outcome) FROM outcomes").fetchone()[0]
    if last is None:
        return {}
    file = certificates_path(root, email).stat()
    return dict(_count_until(root, email, last, (file.st_dev, file.st_ino)))


@lru_cache(maxsize=32)
def _count_until(root: Path, email: str, last: int, file: tuple[int, int]) -> Mapping[RemovalResult, int]:
    """Holds as long as nothing was added, because no row ever changes; `file` tells one from another in its place."""
    sql = (
        "SELECT result, count(*) FROM "
        "(SELECT result, max(outcome) FROM outcomes WHERE outcome <= ? GROUP BY certificate) GROUP BY result"
    )
    return {RemovalResult(result): count for result, count in _rows(root, email, sql, last)}


def _rows(root: Path, email: str, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """No rows where the account has no certificates."""
    with _reading(root, email) as connection:
        return [] if connection is None else connection.execute(sql, parameters).fetchall()


@contextmanager
def _reading(root: Path, email: str) -> Iterator[sqlite3.Connection | None]:
    path = certificates_path(root, email)
    connection = None
    try:
        connection = open_certificates_to_read(path)
        yield connection
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    finally:
        if connection is not None:
            connection.close()


def _read(connection: sqlite3.Connection, condition: str, parameters: Sequence[object]) -> list[Certificate]:
    rows = connection.execute(f"SELECT {LEDGER_COLUMNS} FROM ledger {condition}", parameters).fetchall()
    return [certificate_of(row, datetime.fromisoformat) for row in rows]
