"""Searches of mail that were saved under a name."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Instant

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    op.create_table(
        "saved_searches",
        sa.Column("key", sa.Text, nullable=False, comment="the name in lower case"),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("query", sa.Text, nullable=False),
        sa.Column("mailbox", sa.Text, comment="null: every mailbox"),
        sa.Column("saved_by", sa.Text, nullable=False),
        sa.Column("saved_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("key", name="saved_searches_pkey"),
    )
