"""Work on the archive that is handed to the process that owns it: imports, and repairs."""

from __future__ import annotations

from sqlalchemy import Boolean, CheckConstraint, Column, Index, Table, Text, false

from postroom.db.types import Id, Instant, Json, metadata

archive_tasks = Table(
    "archive_tasks",
    metadata,
    Column("id", Id, primary_key=True, comment="sorts by time"),
    Column("home", Text, nullable=False, comment="the home folder whose Switchboard does it"),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("arguments", Json, nullable=False),
    Column("progress", Json, comment="how far it is; null: not begun"),
    Column("result", Json),
    Column("error", Text),
    Column("requested_by", Text, nullable=False),
    Column("stop_requested", Boolean, nullable=False, server_default=false()),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'completed', 'failed', 'stopped')", name="state"),
    Index("archive_tasks_home_idx", "home", "kind", "state", "id"),
)
