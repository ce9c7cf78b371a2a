"""What is counted for pages and digests: series over time, in buckets of a minute, an hour and a day; what the archive
holds, by sender, month, label and so on, of each shard, of each account and of all; and the digests sent to the owner.

A digest is sent in steps that survive a crash: the draft's id is written down before it is sent.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Date, Double, Integer, LargeBinary, Table, Text

from postroom.db.types import Id, Instant, metadata

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


digests = Table(
    "digests",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("first_day", Date, primary_key=True),
    Column("account_id", Id, nullable=False, comment="the mailbox that sends it to itself"),
    Column("state", Text, nullable=False),
    Column("draft_id", Text),
    Column("sent_message_id", Text),
    Column("reason", Text, comment="why it was not sent, or is not known to be"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("kind IN ('day', 'week')", name="kind"),
    CheckConstraint("state IN ('composing', 'drafted', 'sending', 'sent', 'unclear', 'given_up')", name="state"),
)
