"""The dashboard: its passphrase, one-time links, sessions, and logins that failed."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "dashboard_passphrases",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("hash", sa.Text, nullable=False, comment="scrypt, with its parameters and salt"),
        sa.Column("changed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("name", name="dashboard_passphrases_pkey"),
    )
    op.create_table(
        "dashboard_links",
        sa.Column("id", Id, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False, comment="of the secret in the link, in hex"),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("used_at", Instant),
        sa.PrimaryKeyConstraint("id", name="dashboard_links_pkey"),
    )
    op.create_index("dashboard_links_sha256_idx", "dashboard_links", ["sha256"], unique=True)
    op.create_index("dashboard_links_expires_at_idx", "dashboard_links", ["expires_at"])
    op.create_table(
        "dashboard_sessions",
        sa.Column("id", Id, nullable=False),
        sa.Column("sha256", sa.Text, nullable=False, comment="of the cookie, in hex"),
        sa.Column("client", sa.Text, nullable=False, comment="what the browser calls itself"),
        sa.Column("address", sa.Text, nullable=False, comment="from where the login came"),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant, nullable=False),
        sa.Column("expires_at", Instant, nullable=False),
        sa.Column("ended_at", Instant),
        sa.Column("notice", Json, comment="what the next page says once"),
        sa.PrimaryKeyConstraint("id", name="dashboard_sessions_pkey"),
    )
    op.create_index("dashboard_sessions_sha256_idx", "dashboard_sessions", ["sha256"], unique=True)
    op.create_index("dashboard_sessions_expires_at_idx", "dashboard_sessions", ["expires_at"])
    op.create_table(
        "dashboard_attempts",
        sa.Column("id", Id, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="dashboard_attempts_pkey"),
    )
    op.create_index("dashboard_attempts_at_idx", "dashboard_attempts", ["at"])
