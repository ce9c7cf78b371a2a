"""Who may call the Switchboard and log in to the dashboard, what is switched off, and the audit log of who did what.

Of tokens and passphrases only hashes are stored.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, CheckConstraint, Column, Index, Integer, Table, Text

from postroom.db.types import Id, Instant, Json, metadata

# Append-only: triggers refuse to change, replace or remove a row.
audit_log = Table(
    "audit_log",
    metadata,
    Column("id", Id, primary_key=True, comment="sorts by time"),
    Column("at", Instant, nullable=False),
    Column("actor_role", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject_type", Text, nullable=False),
    Column("subject_id", Text, nullable=False),
    Column("before", Json),
    Column("after", Json),
    Index("audit_log_subject_id_idx", "subject_id", "id"),
    Index("audit_log_subject_type_idx", "subject_type", "id"),
    Index("audit_log_action_idx", "action", "id"),
)

# Entries that no seal covers yet; written with the entry, removed with its sealing.
audit_pending = Table("audit_pending", metadata, Column("entry_id", Id, primary_key=True))

# Append-only as the log is. Each seal covers the one before it and the whole entry.
audit_seals = Table(
    "audit_seals",
    metadata,
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("entry_id", Id, nullable=False),
    Column("key_id", Text, nullable=False, comment="which key of the vault made the seal"),
    Column("sealed_at", Text, nullable=False, comment="a text because the seal covers it letter by letter"),
    Column("mac", Text, nullable=False, comment="HMAC-SHA256 in hex"),
    Index("audit_seals_entry_id_idx", "entry_id", unique=True),
)

# One row: the end of the chain, and which sealer may lengthen it.
audit_chain = Table(
    "audit_chain",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False, comment="of the last seal; 0: there is none"),
    Column("mac", Text, nullable=False),
    Column("sealed_at", Instant),
    Column("key_id", Text, comment="the key for new seals; null until the first one"),
    Column("holder", Text, comment="the sealer at work"),
    Column("fence", BigInteger, nullable=False, comment="grows with each change of sealer"),
    Column("verified_at", Instant, comment="when `postroom audit verify` last ran"),
    Column("verified_position", BigInteger),
    Column("verified_problems", Integer),
)

access_tokens = Table(
    "access_tokens",
    metadata,
    Column("id", Id, primary_key=True),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("sha256", Text, nullable=False, comment="of the token, in hex; the token itself is nowhere"),
    Column("endpoint_identity", Text, comment="good for this mailbox only; null: for all"),
    Column("created_at", Instant, nullable=False),
    Column("expires_at", Instant),
    Column("last_used_at", Instant),
    Column("revoked_at", Instant),
    Column("permissions", Json, nullable=False, server_default="[]", comment="what it may be used for, by name"),
    Column("made_by", Id, comment="the token that made it; null: the owner"),
    CheckConstraint("role IN ('dashboard', 'connector', 'agent')", name="role"),
    Index("access_tokens_sha256_idx", "sha256", unique=True),
    Index("access_tokens_made_by_idx", "made_by"),
)

connectors = Table(
    "connectors",
    metadata,
    Column("connector_type", Text, primary_key=True),
    Column("endpoint_identity", Text, primary_key=True),
    Column("instance", Text, primary_key=True, comment="a mailbox may have several connectors"),
    Column("version", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("counters", Json, nullable=False, server_default="{}"),
    Column("checkpoint", Json),
    Column("capabilities", Json, nullable=False, server_default="[]"),
    Column("first_seen_at", Instant, nullable=False),
    Column("last_heartbeat_at", Instant, nullable=False),
)

# A switch without a row is on.
switches = Table(
    "switches",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", Boolean, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", Text, nullable=False),
)


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
