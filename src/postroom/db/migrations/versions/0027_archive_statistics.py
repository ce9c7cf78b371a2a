"""Counts of what the archive holds, by sender, domain, month, size, label and type."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Instant

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "archive_statistics",
        sa.Column("account", sa.Text, nullable=False, comment="empty: all accounts"),
        sa.Column("shard", sa.Text, nullable=False, comment="empty: all of the account"),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("stamp", sa.Text, nullable=False, comment="of the shard as it was counted"),
        sa.Column("counted_at", Instant, nullable=False),
        sa.Column("counts", sa.LargeBinary, nullable=False, comment="JSON, packed with zlib"),
        sa.PrimaryKeyConstraint("account", "shard", "kind", name="archive_statistics_pkey"),
    )
