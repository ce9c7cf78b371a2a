"""One allowance of quota units for each account, shared by all processes through the database (SY-3).

In no 60 seconds are more units granted than the account has, whoever asks. The times are those of the processes'
clocks: hosts that share an account keep theirs together, as every host on a network does.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, insert, select, update

from postroom.db import Database, Tx
from postroom.db.tables.accounts import accounts, quota_grants
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotFound
from postroom.gmail.ports import Grant, Lane
from postroom.gmail.quota import MINUTE_S, QuotaProfile

WINDOW = timedelta(seconds=MINUTE_S)


class DatabaseBudget:
    """Implements `ports.UnitBudget`. `reserve` units of the allowance are only for user actions and live mail."""

    def __init__(
        self, database: Database, account_id: str, profile: QuotaProfile, clock: Clock, *, reserve: int = 0
    ) -> None:
        if not 0 <= reserve < profile.units_per_minute:
            raise BadInput("reserve", f"{reserve} is not within 0 to {profile.units_per_minute - 1} units")
        self._database = database
        self._account_id = account_id
        self._allowance = profile.units_per_minute
        self._clock = clock
        self._reserve = reserve

    async def lease(self, units: int, lane: Lane) -> Grant:
        if units < 1:
            raise BadInput("units", f"{units} units cannot be leased")
        limit = self._allowance if lane.may_use_reserve else self._allowance - self._reserve
        return await self._database.write(lambda tx: self._lease(tx, min(units, limit), limit))

    def _lease(self, tx: Tx, units: int, limit: int) -> Grant:
        _lock(tx, self._account_id)
        now = self._clock.now()
        _forget_past(tx, self._account_id, now)
        before, total = _ends(tx, self._account_id)
        granted = max(0, min(units, limit - (total - before)))
        if granted:
            row = {"account_id": self._account_id, "total": total + granted, "granted_at": now, "units": granted}
            tx.execute(insert(quota_grants).values(**row))
        if granted == units:
            return Grant(granted)
        return Grant(granted, _wait_until_past(tx, self._account_id, total + units - limit, now))


def units_in_use(tx: Tx, account_id: str, now: datetime) -> int:
    """What was granted within the last minute, for people to see."""
    recent = (quota_grants.c.account_id == account_id) & (quota_grants.c.granted_at > now - WINDOW)
    return sum(tx.execute(select(quota_grants.c.units).where(recent)).scalars())


def _lock(tx: Tx, account_id: str) -> None:
    """Processes take turns at one account; SQLite's writers do so anyway."""
    if tx.execute(select(accounts.c.id).where(accounts.c.id == account_id).with_for_update()).first() is None:
        raise NotFound("account", f"there is no account {account_id}; it was removed")


def _forget_past(tx: Tx, account_id: str, now: datetime) -> None:
    ours = quota_grants.c.account_id == account_id
    tx.execute(delete(quota_grants).where(ours, quota_grants.c.granted_at <= now - WINDOW))
    # A clock that was set back would leave grants in the future, and nothing to spend until then.
    tx.execute(update(quota_grants).where(ours, quota_grants.c.granted_at > now).values(granted_at=now))


def _ends(tx: Tx, account_id: str) -> tuple[int, int]:
    """The running totals just before the window and at its end."""
    rows = select(quota_grants.c.total, quota_grants.c.units).where(quota_grants.c.account_id == account_id).limit(1)
    oldest = tx.execute(rows.order_by(quota_grants.c.total)).first()
    newest = tx.execute(rows.order_by(quota_grants.c.total.desc())).first()
    return (0, 0) if oldest is None or newest is None else (oldest.total - oldest.units, newest.total)


def _wait_until_past(tx: Tx, account_id: str, total: int, now: datetime) -> float:
    """Seconds until the grant that reaches this total leaves the window."""
    reaching = select(quota_grants.c.granted_at).where(
        quota_grants.c.account_id == account_id, quota_grants.c.total >= total
    )
    granted_at = tx.execute(reaching.order_by(quota_grants.c.total).limit(1)).scalar_one()
    return float((granted_at + WINDOW - now).total_seconds())
