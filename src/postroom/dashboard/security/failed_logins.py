"""Failed logins in the audit log: at most one entry a minute for an address, with a count, never with the guess."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from postroom import audit
from postroom.audit import Actor
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.telemetry import logs

log = logs.get(__name__)

ACTION = "dashboard.login_failed"
EVERY = timedelta(minutes=1)
OTHERS = "other addresses"
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
        return self.count > 0 and (self.recorded_at is None or now - self.recorded_at >= EVERY)

    def is_over(self, now: datetime) -> bool:
        return self.count == 0 and self.recorded_at is not None and now - self.recorded_at >= EVERY


class FailedLogins:
    """The first failure of an address is recorded at once; those of the minute after it together."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._failures: dict[str, _Failures] = {}

    async def note(self, address: str, *, is_refused: bool = False) -> None:
        if address not in self._failures and len(self._failures) >= _MOST_ADDRESSES:
            address = OTHERS
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
                audit.record(tx, Actor("stranger", address), ACTION, ("dashboard", "login"), now, after=told)

        try:
            await self._database.write(write)
        except PostroomError as error:
            log.error("dashboard.failed_logins_not_recorded", failures=list(taken.values()), error=error.message)
