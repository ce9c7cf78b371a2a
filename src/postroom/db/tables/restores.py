"""Mail that is put back from the archive into a mailbox: runs, and a journal of what became of each message."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    PrimaryKeyConstraint,
    Table,
    Text,
    false,
)

from postroom.db.types import Id, Instant, Json, metadata

restore_runs = Table(
    "restore_runs",
    metadata,
    Column("id", Id, primary_key=True, comment="sorts by time"),
    Column("source", Text, nullable=False, comment="whose archived mail, by address"),
    Column("target_account_id", Id, nullable=False, comment="which may be removed"),
    Column("target", Text, nullable=False, comment="its address"),
    Column("query", Text, nullable=False, comment="the search that chooses the mail; empty: all"),
    Column("folder", Text, comment="one folder or label for all of it; null: where it was"),
    Column("state", Text, nullable=False),
    Column("is_planned", Boolean, nullable=False, server_default=false(), comment="every message has its item"),
    Column("cursor", Text, comment="where the search for messages goes on; null: at its start"),
    Column("left_out", Integer, nullable=False, server_default="0", comment="drafts and chats, and equal copies"),
    Column("reason", Text, comment="why it is not at work, or why it was proposed; for people"),
    Column("certificate", Json, comment="what was read back at the end; null: not at its end"),
    Column("requested_by", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("finished_at", Instant),
    CheckConstraint(
        "state IN ('proposed', 'rejected', 'running', 'completed', 'stopped', 'failed', 'undoing', 'undone')",
        name="state",
    ),
    Index("restore_runs_target_idx", "target_account_id", "state"),
)

restore_items = Table(
    "restore_items",
    metadata,
    Column("run_id", Id, ForeignKey("restore_runs.id", ondelete="CASCADE"), nullable=False),
    Column("position", Integer, nullable=False, comment="newest first; worked off from the oldest on"),
    Column("key", Text, nullable=False, comment="of the archived message"),
    Column("sha256", Text, nullable=False, comment="of its exact bytes"),
    Column("wire_sha256", Text, comment="of these with CRLF line ends, as some mailboxes keep them"),
    Column("size", BigInteger, nullable=False),
    Column("date", Instant, nullable=False),
    Column("labels", Json, nullable=False, comment="by name, as it shall have them"),
    Column("thread_id", Text, nullable=False, comment="in the archive"),
    Column("message_id", Text),
    Column("source_id", Text, comment="at the provider, if it may still be there"),
    Column("state", Text, nullable=False),
    Column("target_id", Text, comment="at the provider, once it is known"),
    Column("target_thread", Text),
    Column("since", Text, comment="a place in the target's history from before it was appended"),
    Column("detail", Text, comment="why it failed, for people"),
    Column("differences", Json, comment="what is not as in the archive, as read back"),
    Column("updated_at", Instant, nullable=False),
    PrimaryKeyConstraint("run_id", "position"),
    CheckConstraint(
        "state IN ('planned', 'appending', 'untrashing', 'appended', 'verified', 'already_there', 'failed', 'trashed')",
        name="state",
    ),
    Index("restore_items_bytes_idx", "run_id", "sha256", unique=True),
    Index("restore_items_state_idx", "run_id", "state", "position"),
    Index("restore_items_thread_idx", "run_id", "thread_id"),
    Index("restore_items_sha256_idx", "sha256"),
    Index("restore_items_wire_sha256_idx", "wire_sha256"),
)
