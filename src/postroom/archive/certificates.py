"""Removal certificates: before a message is removed at its source, the proof that it is here is on disk (SY-10).

An account's certificates lie beside its shards, in a plain SQLite file that only ever grows. A certificate says which
bytes were read back, where, and below which watermark; its outcomes say what became of the removal. One that still
stands as intended was interrupted: the message may or may not have been removed, and the source must be asked.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from postroom.archive.certificates_file import open_or_make, open_to_read
from postroom.archive.layout import account_name, folder_of
from postroom.archive.model import Provenance
from postroom.archive.shard import storage_error

FILE_NAME = "certificates.db"
LEDGER_COLUMNS = (
    "certificate, batch, action, label, gmail_id, key, sha256, size, shard, row_id, provenance, watermark, "
    "certified_at, result, detail, result_at"
)


class Action(StrEnum):
    LABEL = "label"
    TRASH = "trash"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Removal:
    """What is done to messages at the source; `label` names the one that is taken away, and is empty otherwise."""

    action: Action
    label: str = ""

    def __str__(self) -> str:
        match self.action:
            case Action.LABEL:
                return f"remove the label {self.label}"
            case Action.TRASH:
                return "move to the trash"
            case Action.DELETE:
                return "delete for ever"


class Result(StrEnum):
    INTENDED = "intended"
    REMOVED = "removed"
    GONE = "gone"
    """It was no longer there to be removed."""
    LEFT = "left"
    """It was not removed after all; the detail says why."""


@dataclass(frozen=True, slots=True)
class Proof:
    """That a message is here: its bytes as they were read back, and where."""

    gmail_id: str
    key: str
    sha256: str
    size: int
    shard: str
    row_id: int
    provenance: Provenance


@dataclass(frozen=True, slots=True)
class Certificate:
    number: int
    batch: str
    removal: Removal
    proof: Proof
    watermark: int
    certified_at: datetime
    result: Result
    detail: str
    result_at: datetime


class Certificates:
    """An account's certificates, to be added to. When a method returns, what it wrote is on disk."""

    def __init__(self, root: Path, email: str) -> None:
        self._path = path_of(root, email)
        self._connection = open_or_make(self._path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Certificates:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def certify(
        self, batch: str, removal: Removal, proofs: Sequence[Proof], watermark: int, now: datetime
    ) -> list[Certificate]:
        """Write down that these are about to be removed. Equal bytes certified before keep their one certificate."""
        with self._transaction():
            for proof in proofs:
                number = self._find(removal, proof) or self._insert(batch, removal, proof, watermark, now)
                self._add_outcome(number, Result.INTENDED, f"batch {batch}", now)
        wanted = {(proof.gmail_id, proof.sha256) for proof in proofs}
        intended = self._intended(removal, [proof.gmail_id for proof in proofs])
        return [each for each in intended if (each.proof.gmail_id, each.proof.sha256) in wanted]

    def settle(self, certificates: Iterable[Certificate], result: Result, detail: str, now: datetime) -> None:
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

    def _find(self, removal: Removal, proof: Proof) -> int | None:
        found = self._connection.execute(
            "SELECT certificate FROM certificates WHERE gmail_id = ? AND action = ? AND label = ? AND sha256 = ?",
            (proof.gmail_id, removal.action, removal.label, proof.sha256),
        ).fetchone()
        return None if found is None else int(found[0])

    def _insert(self, batch: str, removal: Removal, proof: Proof, watermark: int, now: datetime) -> int:
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

    def _add_outcome(self, certificate: int, result: Result, detail: str, now: datetime) -> None:
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


def path_of(root: Path, email: str) -> Path:
    return folder_of(root, account_name(email)) / FILE_NAME


def has_certificate(root: Path, email: str, gmail_ids: Sequence[str]) -> set[str]:
    """Which of these have a certificate of any kind, so that nobody lets go of what may be the only copy."""
    sql = "SELECT DISTINCT gmail_id FROM certificates WHERE gmail_id IN (SELECT value FROM json_each(?))"
    with _reading(root, email) as connection:
        rows = () if connection is None else connection.execute(sql, (json.dumps(list(gmail_ids)),))
        return {gmail_id for (gmail_id,) in rows}


def removed_among(root: Path, email: str, removal: Removal, gmail_ids: Sequence[str]) -> set[str]:
    """Which of these were removed in this way before: whoever put them back wants them there."""
    sql = (
        "SELECT gmail_id FROM ledger WHERE gmail_id IN (SELECT value FROM json_each(?)) AND action = ? AND label = ? "
        "AND result IN ('removed', 'gone')"
    )
    parameters = (json.dumps(list(gmail_ids)), removal.action, removal.label)
    with _reading(root, email) as connection:
        rows = () if connection is None else connection.execute(sql, parameters)
        return {gmail_id for (gmail_id,) in rows}


def intended_among(root: Path, email: str, removal: Removal, gmail_ids: Sequence[str]) -> set[int]:
    """The certificates of these that are in the file and stand as intended, by number."""
    sql = (
        "SELECT certificate FROM ledger WHERE gmail_id IN (SELECT value FROM json_each(?)) AND action = ? "
        "AND label = ? AND result = 'intended'"
    )
    parameters = (json.dumps(list(gmail_ids)), removal.action, removal.label)
    with _reading(root, email) as connection:
        return set() if connection is None else {number for (number,) in connection.execute(sql, parameters)}


def list_certificates(
    root: Path,
    email: str,
    *,
    result: Result | None = None,
    gmail_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[Certificate]:
    """The newest certificates of an account, or those before a number, read without disturbing anybody."""
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


def count_certificates(root: Path, email: str) -> dict[Result, int]:
    """How many certificates stand at each result."""
    with _reading(root, email) as connection:
        last = None if connection is None else connection.execute("SELECT max(outcome) FROM outcomes").fetchone()[0]
    if last is None:
        return {}
    file = path_of(root, email).stat()
    return dict(_count_until(root, email, last, (file.st_dev, file.st_ino)))


@lru_cache(maxsize=32)
def _count_until(root: Path, email: str, last: int, file: tuple[int, int]) -> Mapping[Result, int]:
    """Holds as long as nothing was added, because no row ever changes; `file` tells one from another in its place."""
    sql = (
        "SELECT result, count(*) FROM "
        "(SELECT result, max(outcome) FROM outcomes WHERE outcome <= ? GROUP BY certificate) GROUP BY result"
    )
    with _reading(root, email) as connection:
        rows = () if connection is None else connection.execute(sql, (last,))
        return {Result(result): count for result, count in rows}


@contextmanager
def _reading(root: Path, email: str) -> Iterator[sqlite3.Connection | None]:
    path = path_of(root, email)
    connection = None
    try:
        connection = open_to_read(path)
        yield connection
    except sqlite3.Error as error:
        raise storage_error(error, str(path)) from error
    finally:
        if connection is not None:
            connection.close()


def _read(connection: sqlite3.Connection, condition: str, parameters: Sequence[object]) -> list[Certificate]:
    rows = connection.execute(f"SELECT {LEDGER_COLUMNS} FROM ledger {condition}", parameters).fetchall()
    return [certificate_of(row, datetime.fromisoformat) for row in rows]


def certificate_of(row: Sequence[Any], moment: Callable[[Any], datetime]) -> Certificate:
    """A row of the ledger, whose columns stand in one order wherever it is kept; `moment` reads how it writes times."""
    number, batch, action, label, gmail_id, key, sha256, size, shard, row_id, provenance, watermark = row[:12]
    certified_at, result, detail, result_at = row[12:]
    return Certificate(
        number=number,
        batch=batch,
        removal=Removal(Action(action), label),
        proof=Proof(gmail_id, key, sha256, size, shard, row_id, Provenance(provenance)),
        watermark=watermark,
        certified_at=moment(certified_at),
        result=Result(result),
        detail=detail,
        result_at=moment(result_at),
    )
