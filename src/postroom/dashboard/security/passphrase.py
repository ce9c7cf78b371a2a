"""The passphrase that opens the dashboard. Only its scrypt hash is stored, with the parameters that made it."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import unicodedata
from datetime import datetime

from sqlalchemy import select

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.security.sessions import end_all_sessions
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_passphrases as table
from postroom.db.upsert import insert
from postroom.domain.errors import BadInput, Fatal

OWNER = "owner"
SHORTEST, LONGEST = 12, 1_000

_LOG_N, _R, _P = 15, 8, 1
_MEMORY = 64 * 1024 * 1024
_SALT_BYTES, _HASH_BYTES = 16, 32


class Hashing:
    """scrypt on threads, a few at a time: each takes 32 MB and a tenth of a second, and anybody may ask for one."""

    def __init__(self, at_once: int = 2) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def make(self, passphrase: str) -> str:
        async with self._places:
            return await asyncio.to_thread(_made, passphrase)

    async def matches(self, passphrase: str, stored: str) -> bool:
        async with self._places:
            return await asyncio.to_thread(_matches, passphrase, stored)


def check(passphrase: str, repeated: str) -> None:
    """Length is what protects; any characters will do."""
    if len(_normal(passphrase)) < SHORTEST:
        raise BadInput("passphrase", f"is too short: use at least {SHORTEST} characters; a sentence is easy to keep")
    if len(passphrase) > LONGEST:
        raise BadInput("passphrase", f"is too long: {LONGEST} characters are the most")
    if len(set(passphrase)) < 5:
        raise BadInput("passphrase", "has too few different characters")
    if passphrase != repeated:
        raise BadInput("repeated", "is not the same as the passphrase")


def stored_hash(tx: Tx) -> str | None:
    return tx.execute(select(table.c.hash).where(table.c.name == OWNER)).scalar()


def require_unchanged(tx: Tx, proven: str, field: str) -> None:
    """That what somebody has proved to know still holds; whoever changes it waits for this transaction."""
    if tx.execute(tx.locking(select(table.c.hash).where(table.c.name == OWNER))).scalar() != proven:
        raise BadInput(field, "was changed by somebody else meanwhile")


def set_hash(tx: Tx, made: str, who: Actor, now: datetime, *, but: str | None = None) -> int:
    """From now on this one opens; all logins but this session are ended. How many there were."""
    values = {"hash": made, "changed_at": now}
    row = insert(tx, table).values(name=OWNER, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[table.c.name], set_=values))
    ended = end_all_sessions(tx, now, but=but)
    audit.record(tx, who, "dashboard.passphrase", ("dashboard", OWNER), now, after={"logins_ended": ended})
    return ended


def _made(passphrase: str) -> str:
    salt = os.urandom(_SALT_BYTES)
    parts = (_LOG_N, _R, _P, _text(salt), _text(_scrypt(passphrase, salt, _LOG_N, _R, _P)))
    return "$".join(("scrypt", *map(str, parts)))


def _matches(passphrase: str, stored: str) -> bool:
    try:
        scheme, log_n, r, p, salt, wanted = stored.split("$")
        if scheme != "scrypt":
            raise ValueError(scheme)
        made = _scrypt(passphrase, base64.b64decode(salt), int(log_n), int(r), int(p))
        return hmac.compare_digest(made, base64.b64decode(wanted))
    except (ValueError, binascii.Error) as error:
        raise Fatal("The stored passphrase cannot be read; `postroom token link` lets you set another.") from error


def _scrypt(passphrase: str, salt: bytes, log_n: int, r: int, p: int) -> bytes:
    secret = _normal(passphrase).encode()
    return hashlib.scrypt(secret, salt=salt, n=1 << log_n, r=r, p=p, maxmem=_MEMORY, dklen=_HASH_BYTES)


def _normal(passphrase: str) -> str:
    """Keyboards write the same letter in different ways."""
    return unicodedata.normalize("NFC", passphrase)


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()
