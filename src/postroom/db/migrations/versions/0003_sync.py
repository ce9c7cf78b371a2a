"""The history cursor of each account, and how far its mail has been brought into the archive."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_table(
        "history_cursors",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("duty", sa.Text, nullable=False),
        sa.Column("history_id", sa.Text, comment="null: nobody has read one yet"),
        sa.Column("holder", sa.Text, comment="who reads now, in words for a person"),
        sa.Column("fence", sa.Integer, nullable=False, comment="raised with each change of holder"),
        sa.Column("lease_expires_at", Instant),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "duty", name="history_cursors_pkey"),
        sa.CheckConstraint("duty IN ('changes', 'walk')", name="duty"),
        _of_account("history_cursors"),
    )
    op.create_table(
        "sync_states",
        sa.Column("account_id", Id, nullable=False),
        sa.Column(
            "walk", sa.Integer, nullable=False, comment="1 is the first sync; an expired history id begins another"
        ),
        sa.Column("walk_started_at", Instant, nullable=False),
        sa.Column("walked_at", Instant, comment="null while the walk is under way"),
        sa.Column(
            "compared_walk",
            sa.Integer,
            nullable=False,
            comment="the last walk whose labels and deletions were compared",
        ),
        sa.Column("granularity", sa.Text, nullable=False),
        sa.Column("until", sa.BigInteger, nullable=False, comment="where the newest slice with an end has its end"),
        sa.Column(
            "frontier",
            sa.BigInteger,
            nullable=False,
            comment="all slices of this walk that end at or before it are done",
        ),
        sa.Column(
            "watermark", sa.BigInteger, nullable=False, comment="the largest frontier of any walk; never goes back"
        ),
        sa.Column("counters", sa.Text, nullable=False, comment="JSON"),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name="sync_states_pkey"),
        sa.CheckConstraint("granularity IN ('day', 'week', 'month')", name="granularity"),
        _of_account("sync_states"),
    )
    op.create_table(
        "sync_slices",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("start_s", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("end_s", sa.BigInteger, comment="null: has no end, and so moves no frontier"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("messages", sa.Integer, nullable=False, comment="as listed"),
        sa.PrimaryKeyConstraint("account_id", "start_s", name="sync_slices_pkey"),
        sa.CheckConstraint("state IN ('open', 'done')", name="state"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["sync_states.account_id"], name="sync_slices_account_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "sync_bad_messages",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("gmail_id", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("first_seen", Instant, nullable=False),
        sa.Column("last_tried", Instant, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("reader_version", sa.Integer, nullable=False, comment="of the code that could not read it"),
        sa.PrimaryKeyConstraint("account_id", "gmail_id", name="sync_bad_messages_pkey"),
        _of_account("sync_bad_messages"),
    )
    op.create_table(
        "sync_alerts",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("condition", sa.Text, nullable=False),
        sa.Column("level", sa.Text, nullable=False),
        sa.Column("message", sa.Text, nullable=False),
        sa.Column("raised_at", Instant, nullable=False),
        sa.Column("last_seen_at", Instant, nullable=False),
        sa.Column("last_told_at", Instant, comment="null: nobody was told"),
        sa.Column("cleared_at", Instant),
        sa.PrimaryKeyConstraint("account_id", "condition", name="sync_alerts_pkey"),
        sa.CheckConstraint("level IN ('warning', 'critical')", name="level"),
        _of_account("sync_alerts"),
    )
    op.create_table(
        "sync_labels",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("label_id", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "label_id", "name", name="sync_labels_pkey"),
        _of_account("sync_labels"),
    )
    op.create_table(
        "sync_windows",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("outcomes", sa.Text, nullable=False, comment="JSON: [messages, bad ones of them], oldest first"),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", name="sync_windows_pkey"),
        _of_account("sync_windows"),
    )


def _of_account(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=f"{table}_account_id_fkey", ondelete="CASCADE")
