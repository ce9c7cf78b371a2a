"""The gap in a mailbox's history that is owed, when each slice was listed and under which history, and how far a walk
has come."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    op.add_column(
        "history_cursors", sa.Column("seen_at", Instant, comment="when all changes up to then were last known to be in")
    )
    op.add_column(
        "history_cursors",
        sa.Column("epoch", sa.Integer, nullable=False, server_default="0", comment="raised where the history broke"),
    )
    op.execute("UPDATE history_cursors SET seen_at = moved_at")
    op.create_table(
        "history_gaps",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("step", sa.Integer, nullable=False, comment="raised with each step, which must name it"),
        sa.Column("since_s", sa.BigInteger, nullable=False, comment="mail received from then on is to be taken in"),
        sa.Column("stage", sa.Text, nullable=False),
        sa.Column("before_s", sa.BigInteger, comment="what was received then or later is done; null: nothing is"),
        sa.Column("mark", sa.Text, comment="where in the current stretch the stage has come to"),
        sa.Column("opened_at", Instant, nullable=False),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="history_gaps_account_id_fkey", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("account_id", name="history_gaps_pkey"),
        sa.CheckConstraint("stage IN ('arrivals', 'labels', 'older')", name="stage"),
    )
    op.add_column("sync_slices", sa.Column("listed_at", Instant, comment="null: before this was recorded, or not yet"))
    op.add_column("sync_slices", sa.Column("epoch", sa.Integer, comment="of the history, as it was listed"))
    op.add_column("sync_states", sa.Column("progress", sa.Text, comment="JSON; null: nothing was counted yet"))
