"""Suggested rules that the owner dismissed."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Instant

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.create_table(
        "dismissed_suggestions",
        sa.Column("key", sa.Text, nullable=False, comment="a hash of the kind of mail and the action"),
        sa.Column("dismissed_by", sa.Text, nullable=False),
        sa.Column("dismissed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", name="dismissed_suggestions_pkey"),
    )
