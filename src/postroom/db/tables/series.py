"""Series over time, in buckets of a minute, an hour and a day."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Double, Integer, Table, Text

from postroom.db.types import Instant, metadata

series_buckets = Table(
    "series_buckets",
    metadata,
    Column("resolution", Text, primary_key=True),
    Column("start", Instant, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("bound", Integer, primary_key=True, autoincrement=False, comment="of a histogram; 0: not a length of time"),
    Column("count", BigInteger, nullable=False),
    Column("total", Double, nullable=False),
    Column("most", Double, nullable=False),
    CheckConstraint("resolution IN ('minute', 'hour', 'day')", name="resolution"),
)
