"""Accounts, and the quota units granted to them."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", Id, nullable=False),
        sa.Column("provider", sa.Text, nullable=False),
        sa.Column("email", sa.Text, nullable=False, comment="in lower case"),
        sa.Column("api_base", sa.Text, nullable=False),
        sa.Column("quota_profile", sa.Text, comment="null: not known"),
        sa.Column("scopes", sa.Text, nullable=False, comment="separated by spaces; empty: not known"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("last_checked_at", Instant),
        sa.Column("last_error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="accounts_pkey"),
        sa.CheckConstraint("provider IN ('gmail')", name="provider"),
        sa.CheckConstraint("status IN ('active', 'failing', 'removed')", name="status"),
        sa.CheckConstraint("quota_profile IN ('legacy', '2026')", name="quota_profile"),
    )
    op.create_index("accounts_provider_email_idx", "accounts", ["provider", "email"], unique=True)

    op.create_table(
        "quota_grants",
        sa.Column("account_id", Id, nullable=False),
        sa.Column(
            "total", sa.BigInteger, nullable=False, autoincrement=False, comment="units granted so far, this included"
        ),
        sa.Column("urgent_total", sa.BigInteger, nullable=False, comment="the same, of urgent lanes only"),
        sa.Column("granted_at", Instant, nullable=False),
        sa.Column("units", sa.Integer, nullable=False),
        sa.Column("lane", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "total", name="quota_grants_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="quota_grants_account_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("quota_grants_granted_at_idx", "quota_grants", ["account_id", "granted_at"])
