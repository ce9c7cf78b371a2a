"""How often a passphrase may be guessed, and failed logins in the audit log.

An attempt is counted before it is checked, so that parallel guesses count too. Each address has a few guesses; a
browser that was logged in before is counted by its device cookie, so that strangers cannot lock its owner out; many
guesses from many addresses slow down everybody else. The audit log gets at most one entry a minute for an address,
with a count, never with the guess.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import delete, func, select

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.security.passphrase import OWNER
from postroom.db import Database, Tx
from postroom.db.tables.access import dashboard_attempts, dashboard_passphrases
from postroom.domain.backoff import Backoff
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError, Retryable
from postroom.domain.ids import new_id
from postroom.telemetry import logs
from postroom.webserver.limits import address_block

WINDOW = timedelta(minutes=15)
FROM_AN_ADDRESS = 5
"""Also from a remembered browser."""
BEFORE_SLOWING = 50
_SLOWING = Backoff(0.25, 8.0)
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
class LoginAttempt:
    guesser: Guesser
    delay_s: float
    """How long its answer is held back."""


def admit_attempt(tx: Tx, guesser: Guesser, now: datetime) -> LoginAttempt:
    """Count an attempt; to be forgiven if the passphrase is right."""
    tx.execute(tx.locking(select(dashboard_passphrases.c.name).where(dashboard_passphrases.c.name == OWNER)))
    tx.execute(delete(dashboard_attempts).where(dashboard_attempts.c.at <= now - WINDOW))
    own = select(func.count(), func.min(dashboard_attempts.c.at)).where(dashboard_attempts.c.address == guesser.key)
    made, oldest = tx.execute(own).one()
    if made >= FROM_AN_ADDRESS:
        raise TooManyAttempts(retry_after=max(oldest + WINDOW - now, timedelta(seconds=1)))
    together = tx.execute(select(func.count()).select_from(dashboard_attempts)).scalar_one()
    tx.execute(dashboard_attempts.insert().values(id=new_id(), address=guesser.key, at=now))
    return LoginAttempt(guesser, 0.0 if guesser.device else delay_after(together))


def delay_after(attempts: int) -> float:
    """Seconds that a stranger's attempt is held back after so many wrong ones from anywhere."""
    if attempts < BEFORE_SLOWING:
        return 0.0
    return _SLOWING.delay_s(1 + (attempts - BEFORE_SLOWING) / _DOUBLED_EVERY)


def forgive_attempts(tx: Tx, guesser: Guesser) -> None:
    """Nothing counts against this browser and its address any more."""
    tx.execute(
        delete(dashboard_attempts).where(
            dashboard_attempts.c.address.in_([guesser.key, address_block(guesser.address)])
        )
    )


class LoginDelay:
    """Holds attempts back, a bounded number at a time."""

    def __init__(self) -> None:
        self._places = _SLOWED_AT_ONCE

    async def hold(self, attempt: LoginAttempt) -> None:
        if not attempt.delay_s:
            return
        if not self._places:
            raise TooManyAttempts(retry_after=timedelta(seconds=_SLOWING.longest_s))
        self._places -= 1
        try:
            await asyncio.sleep(attempt.delay_s)
        finally:
            self._places += 1


log = logs.get(__name__)

FAILED_LOGIN = "dashboard.login_failed"
RECORD_EVERY = timedelta(minutes=1)
OTHER_ADDRESSES = "other addresses"
"""Stands for all that come while so many are counted one by one."""

_MOST_ADDRESSES = 60
_LOOK_EVERY_S = 20.0


@dataclass
class _Failures:
    count: int = 0
    refused: int = 0
    """Of these, turned away unchecked because there had been too many."""
    recorded_at: datetime | None = None

    def is_due(self, now: datetime) -> bool:
        return self.count > 0 and (self.recorded_at is None or now - self.recorded_at >= RECORD_EVERY)

    def is_over(self, now: datetime) -> bool:
        return self.count == 0 and self.recorded_at is not None and now - self.recorded_at >= RECORD_EVERY


class FailedLogins:
    """The first failure of an address is recorded at once; those of the minute after it together."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    async def note(self, address: str, *, is_refused: bool = False) -> None:
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            address = OTHER_ADDRESSES
        failures = self._failures.setdefault(address, _Failures())
        failures.count += 1
        failures.refused += is_refused
        await self.record_due()

    async def record_due(self) -> None:
        now = self._clock.now()
        await self._record([address for address, failures in self._failures.items() if failures.is_due(now)], now)
        for address in [address for address, failures in self._failures.items() if failures.is_over(now)]:
            del self._failures[address]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Records what has gathered, also when nobody tries again, and the rest at the end."""
        task = asyncio.create_task(self._keep_recording(), name="failed logins")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            left = [address for address, failures in self._failures.items() if failures.count]
            await self._record(left, self._clock.now())

    async def _keep_recording(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            await self.record_due()

    async def _record(self, addresses: list[str], now: datetime) -> None:
        taken: dict[str, dict[str, str | int]] = {}
        for address in addresses:
            failures = self._failures[address]
            taken[address] = {"address": address, "count": failures.count, "refused": failures.refused}
            self._failures[address] = _Failures(recorded_at=now)
        if not taken:
            return

        def write(tx: Tx) -> None:
            for address, told in taken.items():
                audit.record(tx, Actor("stranger", address), FAILED_LOGIN, ("dashboard", "login"), now, after=told)

        try:
            await self._database.write(write)
        except PostroomError as error:
            log.error("dashboard.failed_logins_not_recorded", failures=list(taken.values()), error=error.message)
