"""How often a passphrase may be guessed. An attempt is written down before it is checked, so that guesses made at the
same time count too; a right one is taken off again."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from postroom.dashboard.security.passphrase import OWNER
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_attempts as table
from postroom.db.tables.dashboard import dashboard_passphrases
from postroom.domain.errors import Retryable
from postroom.domain.ids import new_id

WINDOW = timedelta(minutes=15)
FROM_AN_ADDRESS = 5
FROM_ANYWHERE = 50


class TooManyAttempts(Retryable):
    """Too many wrong passphrases. Wait, or make a fresh link with `postroom token link`."""


def admit(tx: Tx, address: str, now: datetime) -> str:
    """The attempt's id, to be forgiven if the passphrase is right."""
    tx.execute(tx.locking(select(dashboard_passphrases.c.name).where(dashboard_passphrases.c.name == OWNER)))
    tx.execute(delete(table).where(table.c.at <= now - WINDOW))
    _refuse_above(tx, FROM_AN_ADDRESS, now, address)
    _refuse_above(tx, FROM_ANYWHERE, now, None)
    attempt = new_id()
    tx.execute(table.insert().values(id=attempt, address=address, at=now))
    return attempt


def forgive(tx: Tx, attempt: str) -> None:
    tx.execute(delete(table).where(table.c.id == attempt))


def _refuse_above(tx: Tx, most: int, now: datetime, address: str | None) -> None:
    where = [] if address is None else [table.c.address == address]
    made, oldest = tx.execute(select(func.count(), func.min(table.c.at)).where(*where)).one()
    if made >= most:
        raise TooManyAttempts(retry_after=max(oldest + WINDOW - now, timedelta(seconds=1)))
