"""What a seal covers, the keys that make seals, and the rows of the chain.

A seal is an HMAC-SHA256 over its position, the seal before it, and every column of its entry as the database stores
it: a row that was changed, replaced, moved or exchanged no longer matches. The keys are in the vault, by their ids.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

from sqlalchemy import Row, func, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.db import Dialect, Tx
from postroom.db.database import driver_sql
from postroom.db.tables.access import audit_chain, audit_log, audit_pending
from postroom.domain.clock import utc_text
from postroom.domain.errors import Fatal
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
