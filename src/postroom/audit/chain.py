"""What a seal covers, the keys that make seals, the rows of the chain, and the file of its heads.

A seal is an HMAC-SHA256 over its position, the seal before it, and every column of its entry as the database stores it:
a row that was changed, replaced, moved or exchanged no longer matches. The keys are in the vault, by their ids.

The file beside the archive has the end of the chain once an hour, one line of JSON each. It tells when entries and
their seals were removed from the end together. A copy of it that is kept elsewhere also tells when the file itself was
cut.
"""

from __future__ import annotations

import hmac
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from sqlalchemy import Row, func, select, update
from sqlalchemy.engine import URL

from postroom import audit
from postroom.audit import Actor
from postroom.db import Dialect, Tx
from postroom.db.database import driver_sql
from postroom.db.tables.access import audit_chain, audit_log, audit_pending
from postroom.domain.clock import utc_text
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.vault import Vault

FIRST_MAC = "0" * 64
"""What the first seal covers in place of the one before it."""
_FORMAT = b"postroom-audit-1"
_KEY_BYTES = 32
_ROW = 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_COLUMNS = ("id", "at", "actor_role", "actor_name", "action", "subject_type", "subject_id", "before", "after")
_AT = _COLUMNS.index("at")


class AuditKeyMissing(Fatal):
    """The vault of this home folder does not hold the key that seals the audit log."""


@dataclass(frozen=True, slots=True)
class SealKey:
    id: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """The end of the chain at some moment."""

    position: int
    mac: str
    key_id: str
    at: str
    entries: int | None = None
    """How many entries the log held then, sealed or not; None where it was not counted."""


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as the database stores it: the raw bytes of each column, None for NULL. No values at all: no row."""

    values: tuple[bytes | None, ...] = ()

    @property
    def is_missing(self) -> bool:
        return not self.values

    @property
    def id(self) -> str:
        return (self.values[0] or b"").decode("utf-8", "replace")

    @property
    def at(self) -> datetime | None:
        """None where the column no longer holds a time."""
        return _moment((self.values[_AT] or b"").decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class AuditSeal:
    position: int
    entry_id: str
    key_id: str
    sealed_at: str
    mac: str


def mac_of(key: SealKey, position: int, previous: str, entry_id: str, sealed_at: str, entry: StoredEntry) -> str:
    covered = [
        _FORMAT,
        str(position).encode(),
        previous.encode(),
        key.id.encode(),
        entry_id.encode(),
        sealed_at.encode(),
    ]
    return hmac.digest(key.secret, _canonical([*covered, *entry.values]), "sha256").hex()


def _canonical(values: Sequence[bytes | None]) -> bytes:
    """Each value with its length before it, so that no two lists read the same."""
    return b"".join(b"-;" if value is None else b"%d:%b;" % (len(value), value) for value in values)


class KeyRing:
    """The keys of the audit log in a vault."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._known: dict[str, SealKey] = {}

    def find(self, key_id: str) -> SealKey | None:
        """None where this vault does not hold it; a vault that cannot be opened raises its own error."""
        if key_id not in self._known:
            secret = self._vault.get(_entry_name(key_id))
            if secret is None:
                return None
            self._known[key_id] = SealKey(key_id, secret)
        return self._known[key_id]

    def get(self, key_id: str) -> SealKey:
        key = self.find(key_id)
        if key is None:
            raise AuditKeyMissing(
                f"The audit log is sealed with key {key_id}, and the vault of this home folder does not hold it. "
                "Another host may hold it, or restore the folder `vault` from a backup. If the key is lost, "
                "`postroom audit new-key` seals new entries with a new one; older seals can then not be checked."
            )
        return key

    def make(self) -> SealKey:
        secret = os.urandom(_KEY_BYTES)
        key = SealKey(hmac.digest(secret, b"postroom audit key id", "sha256").hex()[:16], secret)
        self._vault.put(_entry_name(key.id), secret)
        self._known[key.id] = key
        return key


def _entry_name(key_id: str) -> str:
    return f"audit-key:{key_id[:200]}"


# Reading rows as they are stored


def raw_columns(dialect: Dialect) -> str:
    """The columns of an entry `a`, each as its bytes or text. SQLite's own types of them come last: it holds any type
    in any column."""
    if dialect is Dialect.POSTGRESQL:
        special = {"at": "extract(epoch FROM a.at)::text", "id": "a.id::text"}
        json = {name: f'a."{name}"::text' for name in ("before", "after")}
        return ", ".join((special | json).get(name, f"a.{name}") for name in _COLUMNS)
    raw = [f'CAST(a."{name}" AS BLOB)' for name in _COLUMNS]
    kinds = " || ' ' || ".join(f'typeof(a."{name}")' for name in _COLUMNS)
    return ", ".join([*raw, f"CAST({kinds} AS BLOB)"])


def stored_entry(values: Sequence[Any]) -> StoredEntry:
    """Of the columns that `raw_columns` reads; an entry that a join did not find has no id."""
    if values[0] is None:
        return StoredEntry()
    return StoredEntry(tuple(value.encode() if isinstance(value, str) else value for value in values))


def plain_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def as_text(dialect: Dialect, column: str) -> str:
    """A text column that may hold anything: SQLite would refuse to read what is not UTF-8."""
    return f"{column}::text" if dialect is Dialect.POSTGRESQL else f"CAST({column} AS BLOB)"


def run(tx: Tx, sql: str, **parameters: Any) -> Sequence[Sequence[Any]]:
    return tx.rows(driver_sql(tx.dialect, sql), parameters)


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if "T" in text else _EPOCH + timedelta(microseconds=_microseconds(text))
    except (ValueError, OverflowError, InvalidOperation):
        return None


def _microseconds(text: str) -> int:
    return int(Decimal(text) * 1_000_000)


# The one row of the chain


@dataclass(frozen=True, slots=True)
class ChainStatus:
    """For people: how far the log is sealed, and when that was last checked."""

    sealed: int
    sealed_at: datetime | None
    waiting: int
    waiting_since: datetime | None
    verified_at: datetime | None
    verified: int | None
    problems: int | None


def chain_row(tx: Tx, *, lock: bool = False) -> Row[*tuple[Any, ...]] | None:
    query = select(audit_chain).where(audit_chain.c.id == _ROW)
    return tx.execute(tx.locking(query) if lock else query).one_or_none()


def locked_chain(tx: Tx) -> Row[*tuple[Any, ...]]:
    """The row, made if need be; a sealer waits here for another one's transaction."""
    tx.insert_missing(audit_chain, {"id": _ROW, "position": 0, "mac": FIRST_MAC, "fence": 0})
    row = chain_row(tx, lock=True)
    assert row is not None  # noqa: S101 - it was there, or it is now
    return row


def set_chain(tx: Tx, values: Mapping[str, object]) -> None:
    tx.execute(update(audit_chain).where(audit_chain.c.id == _ROW).values(**values))


def head_of(tx: Tx) -> Head | None:
    """None where nothing was sealed yet."""
    row = chain_row(tx)
    if row is None or row.position == 0:
        return None
    entries = tx.execute(select(func.count()).select_from(audit_log)).scalar_one()
    return Head(row.position, row.mac, str(row.key_id), utc_text(row.sealed_at), entries)


def chain_status(tx: Tx) -> ChainStatus:
    row = chain_row(tx)
    waiting = tx.execute(select(func.count()).select_from(audit_pending)).scalar_one()
    oldest = select(audit_pending.c.entry_id).order_by(audit_pending.c.entry_id).limit(1)
    since = select(audit_log.c.at).where(audit_log.c.id == oldest.scalar_subquery())
    since_at = tx.execute(since).scalar() if waiting else None
    if row is None:
        return ChainStatus(0, None, waiting, since_at, None, None, None)
    verified = (row.verified_at, row.verified_position, row.verified_problems)
    return ChainStatus(row.position, row.sealed_at, waiting, since_at, *verified)


def begin_new_key(tx: Tx, key: SealKey, who: Actor, now: datetime) -> str | None:
    """Seal new entries with this key from now on; returns the id of the one before."""
    row = locked_chain(tx)
    set_chain(tx, {"key_id": key.id})
    before = None if row.key_id is None else {"key": row.key_id}
    audit.record(tx, who, "audit.new_key", ("audit_key", key.id), now, before=before, after={"key": key.id})
    return None if row.key_id is None else str(row.key_id)


HEADS_FILE = "audit-heads.jsonl"
_TAIL_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class RecordedHead:
    head: Head
    moment: datetime
    """When it was written down."""
    source: str
    """Where it was found, in words for a person."""


class HeadsFile:
    def __init__(self, archive: Path) -> None:
        self.path = archive / HEADS_FILE

    def append(self, head: Head, now: datetime) -> RecordedHead:
        """On disk when this returns."""
        line = json.dumps(head_line(head, now)).encode() + b"\n"
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "r+b", buffering=0) as file:
                if not _ends_a_line(descriptor):
                    line = b"\n" + line
                file.write(line)
                os.fsync(descriptor)
        except OSError as error:
            raise Fatal(f"{self.path} cannot be written: {error.strerror}. Check the folder and its disk.") from error
        return RecordedHead(head, now, HEADS_FILE)

    def last(self) -> RecordedHead | None:
        """The latest that can be read; a line that a crash cut short is passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Fatal(f"{self.path} cannot be read: {error.strerror}.") from error
        return next((found for line in reversed(lines) if (found := _read_line(line, HEADS_FILE))), None)

    def read(self) -> Iterator[RecordedHead]:
        return read_heads(self.path) if self.path.exists() else iter(())


def read_heads(path: Path) -> Iterator[RecordedHead]:
    """Of a file of heads, of a copy of one, or of a backup's manifest; lines that are none are passed over."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadInput("--heads", f"{path} cannot be read: {error.strerror}") from error
    lines = [_head_in_manifest(content)] if b'"audit_head"' in content else content.splitlines()
    return filter(None, (_read_line(line, path.name) for line in lines))


def head_line(head: Head, now: datetime) -> dict[str, object]:
    """A head as it is written down, here and in the manifest of a backup."""
    line = {"position": head.position, "mac": head.mac, "key": head.key_id, "sealed_at": head.at}
    return {**line, "entries": head.entries, "recorded_at": utc_text(now)}


# The end of the chain in a database that is not opened as ours: one that is being backed up, or its copy.

_END = "SELECT position, mac, key_id, sealed_at, (SELECT count(*) FROM audit_log) FROM audit_chain WHERE position > 0"


def head_in_sqlite(path: Path) -> Head | None:
    """None where nothing was sealed, or the schema is from before seals."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'audit_chain'").fetchone():
            return None
        row = connection.execute(_END).fetchone()
    return None if row is None else Head(*row)


def head_in_postgres(url: URL) -> Head | None:
    import psycopg  # only where there is a PostgreSQL

    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        with psycopg.connect(address, autocommit=True) as connection:
            if connection.execute("SELECT to_regclass('audit_chain')").fetchone() == (None,):
                return None
            row = connection.execute(_END).fetchone()
    except psycopg.Error as error:
        raise Retryable(f"The database could not be asked for the end of the audit log: {error}".rstrip()) from error
    return None if row is None else Head(row[0], row[1], row[2], utc_text(row[3]), row[4])


def _head_in_manifest(content: bytes) -> bytes:
    try:
        return json.dumps(json.loads(content)["audit_head"]).encode()
    except (ValueError, KeyError, TypeError):
        return b""


def _read_line(line: bytes, source: str) -> RecordedHead | None:
    try:
        found = json.loads(line)
        end = (int(found["position"]), str(found["mac"]), str(found["key"]), str(found["sealed_at"]))
        moment = datetime.fromisoformat(found["recorded_at"])
        entries = None if found.get("entries") is None else int(found["entries"])
    except (ValueError, KeyError, TypeError):
        return None
    return None if moment.tzinfo is None else RecordedHead(Head(*end, entries), moment, source)


def _ends_a_line(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
