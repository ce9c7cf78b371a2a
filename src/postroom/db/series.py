"""Series over time in the control database: added to, replaced, read and pruned.

What is added lands in the minute, the hour and the day at once, so that no later step can lose it. Rows are written in
one order by everyone, so that processes which write at the same time wait for each other and do not deadlock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, case, delete, or_, select

from postroom.db.database import Tx, insert
from postroom.db.tables.reports import series_buckets
from postroom.telemetry.series import Amount, Resolution, Series

Moment = tuple[datetime, Series, int]
"""When, of which series, and which bound."""
Bucket = tuple[Resolution, datetime, Series, int]
_KEY = ("resolution", "start", "name", "bound")
_VALUES = ("count", "total", "most")


@dataclass(frozen=True, slots=True)
class StoredBucket:
    start: datetime
    series: Series
    bound: int
    amount: Amount


def add_amounts(tx: Tx, amounts: Mapping[Moment, Amount]) -> None:
    """Add to what the buckets hold already, from whichever process."""
    buckets: dict[Bucket, Amount] = defaultdict(Amount)
    for (moment, series, bound), amount in amounts.items():
        for resolution in Resolution:
            buckets[resolution, resolution.start_of(moment), series, bound] += amount
    _write(tx, buckets, replace=False)


def replace_amounts(tx: Tx, buckets: Mapping[Bucket, Amount]) -> None:
    _write(tx, buckets, replace=True)


def _write(tx: Tx, buckets: Mapping[Bucket, Amount], *, replace: bool) -> None:
    if not buckets:
        return
    statement = insert(tx, series_buckets)
    stored, new = series_buckets.c, statement.excluded
    values: dict[str, Any] = {name: new[name] for name in _VALUES}
    if not replace:
        most = case((stored.most > new.most, stored.most), else_=new.most)
        values = {"count": stored.count + new["count"], "total": stored.total + new.total, "most": most}
    rows = [
        dict(zip((*_KEY, *_VALUES), (*bucket, amount.count, amount.total, amount.most), strict=True))
        for bucket, amount in sorted(buckets.items())
    ]
    tx.execute(statement.on_conflict_do_update(index_elements=_KEY, set_=values), rows)


def read_buckets(
    tx: Tx, names: Iterable[Series], resolution: Resolution, since: datetime, until: datetime
) -> list[StoredBucket]:
    """Those that start at `since` or later and before `until`, in order of time."""
    table = series_buckets.c
    query = (
        select(table.start, table.name, table.bound, table.count, table.total, table.most)
        .where(table.resolution == resolution, table.start >= since, table.start < until, table.name.in_(list(names)))
        .order_by(table.start)
    )
    return [
        StoredBucket(start, Series(name), bound, Amount(count, total, most))
        for start, name, bound, count, total, most in tx.execute(query)
    ]


def last_start(tx: Tx, series: Series, resolution: Resolution) -> datetime | None:
    table = series_buckets.c
    query = select(table.start).where(table.resolution == resolution, table.name == series)
    found: datetime | None = tx.execute(query.order_by(table.start.desc()).limit(1)).scalar()
    return found


def forget(tx: Tx, names: Iterable[Series], resolution: Resolution, since: datetime, until: datetime) -> None:
    table = series_buckets.c
    within = (table.resolution == resolution, table.start >= since, table.start < until)
    tx.execute(delete(series_buckets).where(*within, table.name.in_(list(names))))


def prune_series(tx: Tx, now: datetime) -> int:
    """Remove buckets past their time; returns how many."""
    table = series_buckets.c
    over = [and_(table.resolution == each, table.start < now - each.kept_for) for each in Resolution]
    return tx.execute(delete(series_buckets).where(or_(*over))).rowcount
