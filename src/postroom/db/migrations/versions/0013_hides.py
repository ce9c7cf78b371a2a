"""Mail that was taken out of sight without a person, counted by the hour."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.create_table(
        "hides",
        sa.Column("action_id", Id, primary_key=True),
        sa.Column("account_id", Id, sa.ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
        sa.Column("lane", sa.Text, nullable=False),
        sa.Column("at", Instant, nullable=False, comment="when its execution began"),
        sa.CheckConstraint("lane IN ('live', 'backfill')", name="lane"),
    )
    op.create_index("hides_account_idx", "hides", ["account_id", "lane", "at"])
