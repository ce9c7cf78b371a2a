"""What the archive holds, counted by sender, month, label and so on: of each shard, of each account and of all."""

from __future__ import annotations

from sqlalchemy import Column, LargeBinary, Table, Text

from postroom.db.types import Instant, metadata

archive_statistics = Table(
    "archive_statistics",
    metadata,
    Column("account", Text, primary_key=True, comment="empty: all accounts"),
    Column("shard", Text, primary_key=True, comment="empty: all of the account"),
    Column("kind", Text, primary_key=True),
    Column("stamp", Text, nullable=False, comment="of the shard as it was counted"),
    Column("counted_at", Instant, nullable=False),
    Column("counts", LargeBinary, nullable=False, comment="JSON, packed with zlib"),
)
