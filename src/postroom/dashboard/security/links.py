"""One-time links: whoever can read the terminal may set the passphrase, once and within the hour."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, select, update

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.security import browser_secrets as secrets
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_links as table
from postroom.domain.errors import NotAllowed
from postroom.domain.ids import new_id

PATH = "/welcome"
LIFE = timedelta(hours=1)


class LinkSpent(NotAllowed):
    """This link was used already, or its hour is over. `postroom token link` prints a fresh one."""


def make_link(tx: Tx, who: Actor, now: datetime) -> str:
    """The secret of a fresh link; those that were made before and not used end with it."""
    tx.lock_table(table)
    tx.execute(delete(table).where(table.c.used_at.is_(None)))
    secret, link_id = secrets.fresh(secrets.LINK), new_id()
    tx.execute(table.insert().values(id=link_id, sha256=secrets.digest(secret), created_at=now, expires_at=now + LIFE))
    audit.record(tx, who, "dashboard.link", ("dashboard", link_id), now)
    return secret


def is_good(tx: Tx, secret: str, now: datetime) -> bool:
    if not secrets.has_form(secret, secrets.LINK):
        return False
    query = select(table.c.id).where(table.c.sha256 == secrets.digest(secret), *_unspent(now))
    return tx.execute(query).first() is not None


def spend(tx: Tx, secret: str, now: datetime) -> None:
    """One of those who come with it at the same time gets in."""
    matches = table.c.sha256 == secrets.digest(secret)
    if tx.execute(update(table).where(matches, *_unspent(now)).values(used_at=now)).rowcount != 1:
        raise LinkSpent()


def url_of(base: str, secret: str) -> str:
    return f"{base.rstrip('/')}{PATH}?link={secret}"


def _unspent(now: datetime) -> tuple[ColumnElement[bool], ...]:
    return table.c.used_at.is_(None), table.c.expires_at > now
