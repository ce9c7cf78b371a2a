"""Bad messages of the sync become troubled messages of every lane; a cursor knows whether it moves."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "troubled_messages",
        sa.Column("account_id", Id, nullable=False),
        sa.Column(
            "message_key", sa.Text, nullable=False, comment="its id at the source; its archive key where it has none"
        ),
        sa.Column("lane", sa.Text, nullable=False, comment="in which it first gave trouble"),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("archived", sa.Boolean, nullable=False, comment="its exact bytes are in the archive"),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("first_seen", Instant, nullable=False),
        sa.Column("last_tried", Instant, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("reader_version", sa.Integer, nullable=False, comment="of the code that could not read it"),
        sa.PrimaryKeyConstraint("account_id", "message_key", name="troubled_messages_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="troubled_messages_account_id_fkey", ondelete="CASCADE"
        ),
        sa.CheckConstraint("lane IN ('live', 'backfill', 'on demand', 'sync', 'import')", name="lane"),
        sa.CheckConstraint("kind IN ('fetch', 'read', 'intake')", name="kind"),
    )
    op.execute(
        "INSERT INTO troubled_messages (account_id, message_key, lane, kind, archived, reason, first_seen, last_tried, "
        "tries, reader_version) SELECT account_id, gmail_id, 'sync', 'fetch', false, reason, first_seen, last_tried, "
        "tries, reader_version FROM sync_bad_messages"
    )
    op.drop_table("sync_bad_messages")
    op.add_column(
        "history_cursors",
        sa.Column("moved_at", Instant, comment="when everything up to the cursor was last known to be in"),
    )
    op.add_column(
        "history_cursors",
        sa.Column(
            "unfinished",
            sa.Integer,
            nullable=False,
            server_default="0",
            comment="how often it was claimed since it moved",
        ),
    )
