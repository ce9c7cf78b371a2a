"""How often a passphrase may be guessed. An attempt is written down before it is checked, so that guesses made at the
same time count too; a right one lifts what its sender had against them.

Each address has a few guesses. A browser that was logged in before is counted by itself, by its device cookie, so that
the guesses of others cannot lock its owner out. Many guesses from many addresses slow down all but such browsers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from postroom.dashboard.security.passphrase import OWNER
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_attempts as table
from postroom.db.tables.dashboard import dashboard_passphrases
from postroom.domain.errors import Retryable
from postroom.domain.ids import new_id
from postroom.webserver.limits import address_block

WINDOW = timedelta(minutes=15)
FROM_AN_ADDRESS = 5
"""Also from a remembered browser."""
BEFORE_SLOWING = 50
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.25, 8.0
_DOUBLED_EVERY = 10
_SLOWED_AT_ONCE = 32


class TooManyAttempts(Retryable):
    """Too many wrong passphrases. Wait, or make a fresh link with `postroom token link`."""


@dataclass(frozen=True, slots=True)
class Guesser:
    """Who tries: an address, or a browser that was logged in before."""

    address: str
    device: str | None = None

    @property
    def key(self) -> str:
        return f"device {self.device}" if self.device else address_block(self.address)


@dataclass(frozen=True, slots=True)
class Attempt:
    guesser: Guesser
    delay_s: float
    """How long its answer is held back."""


def admit(tx: Tx, guesser: Guesser, now: datetime) -> Attempt:
    """Count an attempt; to be forgiven if the passphrase is right."""
    tx.execute(tx.locking(select(dashboard_passphrases.c.name).where(dashboard_passphrases.c.name == OWNER)))
    tx.execute(delete(table).where(table.c.at <= now - WINDOW))
    own = select(func.count(), func.min(table.c.at)).where(table.c.address == guesser.key)
    made, oldest = tx.execute(own).one()
    if made >= FROM_AN_ADDRESS:
        raise TooManyAttempts(retry_after=max(oldest + WINDOW - now, timedelta(seconds=1)))
    together = tx.execute(select(func.count()).select_from(table)).scalar_one()
    tx.execute(table.insert().values(id=new_id(), address=guesser.key, at=now))
    return Attempt(guesser, 0.0 if guesser.device else delay_after(together))


def delay_after(attempts: int) -> float:
    """Seconds that a stranger's attempt is held back after so many wrong ones from anywhere."""
    if attempts < BEFORE_SLOWING:
        return 0.0
    doublings = min((attempts - BEFORE_SLOWING) / _DOUBLED_EVERY, 10)
    return float(min(_FIRST_DELAY_S * 2**doublings, _LONGEST_DELAY_S))


def lift(tx: Tx, guesser: Guesser) -> None:
    """Nothing counts against this browser and its address any more."""
    tx.execute(delete(table).where(table.c.address.in_([guesser.key, address_block(guesser.address)])))


class Slowing:
    """Holds attempts back, a bounded number at a time."""

    def __init__(self) -> None:
        self._places = _SLOWED_AT_ONCE

    async def hold(self, attempt: Attempt) -> None:
        if not attempt.delay_s:
            return
        if not self._places:
            raise TooManyAttempts(retry_after=timedelta(seconds=_LONGEST_DELAY_S))
        self._places -= 1
        try:
            await asyncio.sleep(attempt.delay_s)
        finally:
            self._places += 1
