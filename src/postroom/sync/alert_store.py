"""Alerts in the control database: since when, told when, over when. Here it is decided who is told what, how often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, update

from postroom.db import Tx
from postroom.db.tables.accounts import troubled_messages
from postroom.db.tables.sync import sync_alerts, sync_windows
from postroom.sync.alerts import Alert, Condition, Level, OutcomeWindow

QUIET = timedelta(hours=1)
"""How long nobody is told again of the same condition."""
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class AlertRecord:
    condition: Condition
    level: Level
    message: str
    raised_at: datetime
    last_seen_at: datetime
    last_told_at: datetime | None
    cleared_at: datetime | None

    @property
    def is_in_force(self) -> bool:
        return self.cleared_at is None


@dataclass(frozen=True, slots=True)
class Settled:
    """What is to be told now, and what is over."""

    to_tell: tuple[Alert, ...]
    over: tuple[Condition, ...]


def alerts_of(tx: Tx, account_id: str) -> list[AlertRecord]:
    """Every alert that the account ever had, each condition once; those in force first, the newest first."""
    rows = tx.execute(select(sync_alerts).where(sync_alerts.c.account_id == account_id)).all()
    records = sorted((_record(row) for row in rows), key=lambda each: each.raised_at, reverse=True)
    return sorted(records, key=lambda each: not each.is_in_force)


def settle(tx: Tx, account_id: str, in_force: Sequence[Alert], now: datetime) -> Settled:
    """Record what is in force and what no longer is. Whoever calls tells what is to be told: it counts as told. Comes
    after `add_outcomes`, whose lock keeps others from raising the same alert."""
    query = tx.locking(select(sync_alerts).where(sync_alerts.c.account_id == account_id))
    known = {record.condition: record for record in map(_record, tx.execute(query).all())}
    to_tell = tuple(alert for alert in in_force if _is_news(known.get(alert.condition), now))
    for alert in in_force:
        _record_alert(tx, account_id, alert, known.get(alert.condition), now, is_told=alert in to_tell)
    still = {alert.condition for alert in in_force}
    over = tuple(each.condition for each in known.values() if each.is_in_force and each.condition not in still)
    if over:
        tx.execute(update(sync_alerts).where(_is(account_id, over)).values(cleared_at=now))
    return Settled(to_tell, over)


def add_outcomes(tx: Tx, account_id: str, size: int, messages: int, bad: int, now: datetime) -> OutcomeWindow:
    """How these went joins the window of the last ones; returns it as it is then."""
    mine = sync_windows.c.account_id == account_id
    tx.insert_missing(sync_windows, {"account_id": account_id, "outcomes": "[]", "updated_at": now})
    text = tx.execute(tx.locking(select(sync_windows.c.outcomes).where(mine))).scalar_one()
    window = OutcomeWindow(size, tuple((each[0], each[1]) for each in json.loads(text)))
    if messages:
        window = window.with_more(messages, bad)
        tx.execute(update(sync_windows).where(mine).values(outcomes=json.dumps(window.parts), updated_at=now))
    return window


def bad_within_an_hour(tx: Tx, account_id: str, now: datetime) -> int:
    query = select(func.count()).where(
        troubled_messages.c.account_id == account_id, troubled_messages.c.first_seen > now - HOUR
    )
    return int(tx.execute(query).scalar_one())


def _is_news(known: AlertRecord | None, now: datetime) -> bool:
    """Also where the clock was set back: a told time that lies ahead would otherwise silence it for long."""
    if known is None or known.last_told_at is None:
        return True
    return not timedelta() <= now - known.last_told_at < QUIET


def _record_alert(
    tx: Tx, account_id: str, alert: Alert, known: AlertRecord | None, now: datetime, *, is_told: bool
) -> None:
    values: dict[str, Any] = {"level": alert.level, "message": alert.message, "last_seen_at": now, "cleared_at": None}
    if known is None or not known.is_in_force:
        values["raised_at"] = now
    if is_told:
        values["last_told_at"] = now
    if known is None:
        tx.execute(sync_alerts.insert().values(account_id=account_id, condition=alert.condition, **values))
    else:
        tx.execute(update(sync_alerts).where(_is(account_id, [alert.condition])).values(**values))


def _is(account_id: str, conditions: Sequence[Condition]) -> Any:
    return (sync_alerts.c.account_id == account_id) & sync_alerts.c.condition.in_(conditions)


def _record(row: Row[*tuple[Any, ...]]) -> AlertRecord:
    return AlertRecord(
        condition=Condition(row.condition),
        level=Level(row.level),
        message=row.message,
        raised_at=row.raised_at,
        last_seen_at=row.last_seen_at,
        last_told_at=row.last_told_at,
        cleared_at=row.cleared_at,
    )
