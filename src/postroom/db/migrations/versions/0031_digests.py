"""Digests that are sent to the owner."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.create_table(
        "digests",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("first_day", sa.Date, nullable=False),
        sa.Column("account_id", Id, nullable=False, comment="the mailbox that sends it to itself"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("draft_id", sa.Text),
        sa.Column("sent_message_id", sa.Text),
        sa.Column("reason", sa.Text, comment="why it was not sent, or is not known to be"),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.CheckConstraint("kind IN ('day', 'week')", name="kind"),
        sa.CheckConstraint("state IN ('composing', 'drafted', 'sending', 'sent', 'unclear', 'given_up')", name="state"),
        sa.PrimaryKeyConstraint("kind", "first_day", name="digests_pkey"),
    )
