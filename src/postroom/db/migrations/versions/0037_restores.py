"""Mail that is put back from the archive into a mailbox."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0037"
down_revision = "0036"

_RUN_STATES = "'proposed', 'rejected', 'running', 'completed', 'stopped', 'failed', 'undoing', 'undone'"
_ITEM_STATES = "'planned', 'appending', 'untrashing', 'appended', 'verified', 'already_there', 'failed', 'trashed'"


def upgrade() -> None:
    op.create_table(
        "restore_runs",
        sa.Column("id", Id, nullable=False, comment="sorts by time"),
        sa.Column("source", sa.Text, nullable=False, comment="whose archived mail, by address"),
        sa.Column("target_account_id", Id, nullable=False, comment="which may be removed"),
        sa.Column("target", sa.Text, nullable=False, comment="its address"),
        sa.Column("query", sa.Text, nullable=False, comment="the search that chooses the mail; empty: all"),
        sa.Column("folder", sa.Text, comment="one folder or label for all of it; null: where it was"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column(
            "is_planned", sa.Boolean, nullable=False, server_default=sa.false(), comment="every message has its item"
        ),
        sa.Column("cursor", sa.Text, comment="where the search for messages goes on; null: at its start"),
        sa.Column(
            "left_out", sa.Integer, nullable=False, server_default="0", comment="drafts and chats, and equal copies"
        ),
        sa.Column("reason", sa.Text, comment="why it is not at work, or why it was proposed; for people"),
        sa.Column("certificate", Json, comment="what was read back at the end; null: not at its end"),
        sa.Column("requested_by", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("finished_at", Instant),
        sa.CheckConstraint(f"state IN ({_RUN_STATES})", name="state"),
        sa.PrimaryKeyConstraint("id", name="restore_runs_pkey"),
    )
    op.create_index("restore_runs_target_idx", "restore_runs", ["target_account_id", "state"])
    op.create_table(
        "restore_items",
        sa.Column("run_id", Id, nullable=False),
        sa.Column("position", sa.Integer, nullable=False, comment="newest first; worked off from the oldest on"),
        sa.Column("key", sa.Text, nullable=False, comment="of the archived message"),
        sa.Column("sha256", sa.Text, nullable=False, comment="of its exact bytes"),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("date", Instant, nullable=False),
        sa.Column("labels", Json, nullable=False, comment="by name, as it shall have them"),
        sa.Column("thread_id", sa.Text, nullable=False, comment="in the archive"),
        sa.Column("message_id", sa.Text),
        sa.Column("source_id", sa.Text, comment="at the provider, if it may still be there"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("target_id", sa.Text, comment="at the provider, once it is known"),
        sa.Column("target_thread", sa.Text),
        sa.Column("since", sa.Text, comment="a place in the target's history from before it was appended"),
        sa.Column("detail", sa.Text, comment="why it failed, for people"),
        sa.Column("differences", Json, comment="what is not as in the archive, as read back"),
        sa.Column("updated_at", Instant, nullable=False),
        sa.CheckConstraint(f"state IN ({_ITEM_STATES})", name="state"),
        sa.ForeignKeyConstraint(["run_id"], ["restore_runs.id"], name="restore_items_run_id_fkey", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "position", name="restore_items_pkey"),
    )
    op.create_index("restore_items_bytes_idx", "restore_items", ["run_id", "sha256"], unique=True)
    op.create_index("restore_items_state_idx", "restore_items", ["run_id", "state", "position"])
    op.create_index("restore_items_thread_idx", "restore_items", ["run_id", "thread_id"])
    op.create_index("restore_items_sha256_idx", "restore_items", ["sha256"])
