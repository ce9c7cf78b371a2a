"""Mailboxes that have mail in the archive but no account; their troubled messages are listed too."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0015"
down_revision = "0014"

_OWNER = "of an account or of an archived mailbox"


def upgrade() -> None:
    op.create_table(
        "archived_mailboxes",
        sa.Column("id", Id, nullable=False),
        sa.Column("email", sa.Text, nullable=False, comment="in lower case"),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="archived_mailboxes_pkey"),
    )
    op.create_index("archived_mailboxes_email_idx", "archived_mailboxes", ["email"], unique=True)
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("troubled_messages_account_id_fkey", "troubled_messages", type_="foreignkey")
        op.alter_column("troubled_messages", "account_id", comment=_OWNER)
    else:
        _rebuild_on_sqlite()


def _rebuild_on_sqlite() -> None:
    """SQLite cannot drop a foreign key."""
    op.rename_table("troubled_messages", "troubled_messages_before")
    op.create_table(
        "troubled_messages",
        sa.Column("account_id", Id, nullable=False, comment=_OWNER),
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
        sa.CheckConstraint("lane IN ('live', 'backfill', 'on demand', 'sync', 'import')", name="lane"),
        sa.CheckConstraint("kind IN ('fetch', 'read', 'intake')", name="kind"),
    )
    columns = "account_id, message_key, lane, kind, archived, reason, first_seen, last_tried, tries, reader_version"
    op.execute(
        f"INSERT INTO troubled_messages ({columns}) SELECT {columns} FROM troubled_messages_before"  # noqa: S608
    )
    op.drop_table("troubled_messages_before")
