"""The passphrase that opens the dashboard, and the one-time links that set it.

Only the scrypt hash is stored, with its parameters. A link is printed in the terminal of the host, works once and
for an hour; it is how the owner gets in for the first time, or after forgetting the passphrase.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import unicodedata
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update

from postroom import audit
from postroom.app.installation import App
from postroom.audit import Actor
from postroom.dashboard.security import sessions as secrets
from postroom.dashboard.security.sessions import end_all_sessions
from postroom.db import Tx
from postroom.db.database import insert
from postroom.db.tables.access import dashboard_links, dashboard_passphrases
from postroom.domain.errors import BadInput, Fatal, NotAllowed
from postroom.domain.ids import new_id

OWNER = "owner"
SHORTEST, LONGEST = 12, 1_000

_LOG_N, _R, _P = 15, 8, 1
_MEMORY = 64 * 1024 * 1024
_SALT_BYTES, _HASH_BYTES = 16, 32


class PassphraseHasher:
    """scrypt on threads, a few at a time: each takes 32 MB and a tenth of a second, and anybody may ask for one."""

    def __init__(self, at_once: int = 2) -> None:
        self._places = asyncio.Semaphore(at_once)

    async def make(self, passphrase: str) -> str:
        async with self._places:
            return await asyncio.to_thread(_made, passphrase)

    async def matches(self, passphrase: str, stored: str) -> bool:
        async with self._places:
            return await asyncio.to_thread(_matches, passphrase, stored)


def check_passphrase(passphrase: str, repeated: str) -> None:
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
    return tx.execute(select(dashboard_passphrases.c.hash).where(dashboard_passphrases.c.name == OWNER)).scalar()


def require_unchanged(tx: Tx, proven: str, field: str) -> None:
    """That what somebody has proved to know still holds; whoever changes it waits for this transaction."""
    if (
        tx.execute(
            tx.locking(select(dashboard_passphrases.c.hash).where(dashboard_passphrases.c.name == OWNER))
        ).scalar()
        != proven
    ):
        raise BadInput(field, "was changed by somebody else meanwhile")


def set_hash(tx: Tx, made: str, who: Actor, now: datetime, *, but: str | None = None) -> int:
    """From now on this one opens; all logins but this session are ended. How many there were."""
    values = {"hash": made, "changed_at": now}
    row = insert(tx, dashboard_passphrases).values(name=OWNER, **values)
    tx.execute(row.on_conflict_do_update(index_elements=[dashboard_passphrases.c.name], set_=values))
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


LINK_PATH = "/welcome"
LINK_LIFE = timedelta(hours=1)


class LinkSpent(NotAllowed):
    """This link was used already, or its hour is over. `postroom token link` prints a fresh one."""


def make_link(tx: Tx, who: Actor, now: datetime) -> str:
    """The secret of a fresh link; those that were made before and not used end with it."""
    tx.lock_table(dashboard_links)
    tx.execute(delete(dashboard_links).where(dashboard_links.c.used_at.is_(None)))
    secret, link_id = secrets.fresh_secret(secrets.LINK), new_id()
    tx.execute(
        dashboard_links.insert().values(
            id=link_id, sha256=secrets.secret_digest(secret), created_at=now, expires_at=now + LINK_LIFE
        )
    )
    audit.record(tx, who, "dashboard.link", ("dashboard", link_id), now)
    return secret


def is_good_link(tx: Tx, secret: str, now: datetime) -> bool:
    if not secrets.has_secret_form(secret, secrets.LINK):
        return False
    query = select(dashboard_links.c.id).where(
        dashboard_links.c.sha256 == secrets.secret_digest(secret), *_unspent(now)
    )
    return tx.execute(query).first() is not None


def spend_link(tx: Tx, secret: str, now: datetime) -> None:
    """One of those who come with it at the same time gets in."""
    matches = dashboard_links.c.sha256 == secrets.secret_digest(secret)
    if tx.execute(update(dashboard_links).where(matches, *_unspent(now)).values(used_at=now)).rowcount != 1:
        raise LinkSpent()


def link_url(base: str, secret: str) -> str:
    return f"{base.rstrip('/')}{LINK_PATH}?link={secret}"


def _unspent(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return dashboard_links.c.used_at.is_(None), dashboard_links.c.expires_at > now


async def fresh_link(app: App, served_at: str, who: Actor) -> str:
    """A link that sets the passphrase, by the address that people use."""
    secret = await app.database.write(lambda tx: make_link(tx, who, app.clock.now()))
    return link_url(app.settings.dashboard.url or served_at, secret)


async def first_link(app: App, served_at: str, who: Actor) -> str | None:
    """The same while nobody has set a passphrase; afterwards none."""
    if await app.database.read(stored_hash) is not None:
        return None
    return await fresh_link(app, served_at, who)
