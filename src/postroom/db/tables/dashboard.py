"""Who is logged in to the dashboard, and how they got in. Of tokens and passphrases only hashes are here."""

from __future__ import annotations

from sqlalchemy import Column, Index, Table, Text

from postroom.db.tables.base import metadata
from postroom.db.types import Id, Instant, Json

# One row, once a passphrase is set.
dashboard_passphrases = Table(
    "dashboard_passphrases",
    metadata,
    Column("name", Text, primary_key=True),
    Column("hash", Text, nullable=False, comment="scrypt, with its parameters and salt"),
    Column("changed_at", Instant, nullable=False),
)

dashboard_links = Table(
    "dashboard_links",
    metadata,
    Column("id", Id, primary_key=True),
    Column("sha256", Text, nullable=False, comment="of the secret in the link, in hex"),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("used_at", Instant),
    Index("dashboard_links_sha256_idx", "sha256", unique=True),
    Index("dashboard_links_expires_at_idx", "expires_at"),
)

dashboard_sessions = Table(
    "dashboard_sessions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("sha256", Text, nullable=False, comment="of the cookie, in hex"),
    Column("client", Text, nullable=False, comment="what the browser calls itself"),
    Column("address", Text, nullable=False, comment="from where the login came"),
    Column("created_at", Instant, nullable=False),
    Column("last_seen_at", Instant, nullable=False),
    Column("expires_at", Instant, nullable=False),
    Column("ended_at", Instant),
    Column("notice", Json, comment="what the next page says once"),
    Column("proved_at", Instant, comment="when the passphrase was last given in it"),
    Index("dashboard_sessions_sha256_idx", "sha256", unique=True),
    Index("dashboard_sessions_expires_at_idx", "expires_at"),
)

# Logins that failed, or whose passphrase is being checked now.
dashboard_attempts = Table(
    "dashboard_attempts",
    metadata,
    Column("id", Id, primary_key=True),
    Column("address", Text, nullable=False),
    Column("at", Instant, nullable=False),
    Index("dashboard_attempts_at_idx", "at"),
)
