"""Accounts at mail providers, and the quota units that were granted from each account's allowance."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text

from postroom.db.tables.base import metadata
from postroom.db.types import Id, Instant

accounts = Table(
    "accounts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("provider", Text, nullable=False),
    Column("email", Text, nullable=False, comment="in lower case"),
    Column("api_base", Text, nullable=False),
    Column("quota_profile", Text, comment="null: not known"),
    Column("scopes", Text, nullable=False, comment="separated by spaces; empty: not known"),
    Column("status", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("last_checked_at", Instant),
    Column("last_error", Text),
    Column("login_ended_at", Instant, comment="null: the login is good, as far as is known"),
    CheckConstraint("provider IN ('gmail')", name="provider"),
    CheckConstraint("status IN ('active', 'failing', 'removed')", name="status"),
    CheckConstraint("quota_profile IN ('legacy', '2026')", name="quota_profile"),
    Index("accounts_provider_email_idx", "provider", "email", unique=True),
)

# A ledger with a running total: what was spent between two moments is the difference of two rows, however many lie
# between. Within an account, `granted_at` never goes back as `total` grows.
quota_grants = Table(
    "quota_grants",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("total", BigInteger, primary_key=True, autoincrement=False, comment="units granted so far, this included"),
    Column("urgent_total", BigInteger, nullable=False, comment="the same, of urgent lanes only"),
    Column("granted_at", Instant, nullable=False),
    Column("units", Integer, nullable=False),
    Column("lane", Integer, nullable=False),
    Index("quota_grants_granted_at_idx", "account_id", "granted_at"),
)

# Messages that gave trouble, in whatever lane: tried again later, and in nobody's way meanwhile.
troubled_messages = Table(
    "troubled_messages",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("message_key", Text, primary_key=True, comment="its id at the source; its archive key where it has none"),
    Column("lane", Text, nullable=False, comment="in which it first gave trouble"),
    Column("kind", Text, nullable=False),
    Column("archived", Boolean, nullable=False, comment="its exact bytes are in the archive"),
    Column("reason", Text, nullable=False),
    Column("first_seen", Instant, nullable=False),
    Column("last_tried", Instant, nullable=False),
    Column("tries", Integer, nullable=False),
    Column("reader_version", Integer, nullable=False, comment="of the code that could not read it"),
    CheckConstraint("lane IN ('live', 'backfill', 'on demand', 'sync', 'import')", name="lane"),
    CheckConstraint("kind IN ('fetch', 'read', 'intake')", name="kind"),
)
