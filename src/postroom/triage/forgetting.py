"""Prompts hold mail, so they are kept only where that is wanted, and no longer than wanted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from sqlalchemy import select, update

from postroom.db import Database, Tx
from postroom.db.tables.triage import model_calls

_AT_ONCE = 1_000


def forgetting(database: Database, keep: timedelta) -> Callable[[datetime], Awaitable[int]]:
    """What forgets prompts that are older than this; with no time at all, every one."""

    async def forget(now: datetime) -> int:
        total = 0
        while count := await database.write(lambda tx: _forget(tx, now - keep)):
            total += count
        return total

    return forget


def _forget(tx: Tx, before: datetime) -> int:
    kept = model_calls.c.prompt.is_not(None) & (model_calls.c.created_at <= before)
    some = select(model_calls.c.id).where(kept).order_by(model_calls.c.created_at).limit(_AT_ONCE)
    return tx.execute(update(model_calls).where(model_calls.c.id.in_(some)).values(prompt=None)).rowcount
