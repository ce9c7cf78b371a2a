"""Senders whose remote pictures are fetched, and lists that the owner left."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    op.create_table(
        "picture_senders",
        sa.Column("address", sa.Text, nullable=False, comment="in its compared form"),
        sa.Column("allowed_by", sa.Text, nullable=False),
        sa.Column("allowed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("address", name="picture_senders_pkey"),
    )
    op.create_table(
        "unsubscriptions",
        sa.Column("mailbox", sa.Text, nullable=False),
        sa.Column("sender", sa.Text, nullable=False, comment="in its compared form"),
        sa.Column("way", sa.Text, nullable=False),
        sa.Column("asked_at", Instant, nullable=False),
        sa.Column("asked_by", sa.Text, nullable=False),
        sa.Column("action_id", Id, comment="that asked; null: the owner opened the link"),
        sa.PrimaryKeyConstraint("mailbox", "sender", name="unsubscriptions_pkey"),
        sa.CheckConstraint("way IN ('one_click', 'mail', 'link')", name="way"),
    )
