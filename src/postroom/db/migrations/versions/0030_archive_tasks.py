"""Work that is handed to the process that owns the archive: imports, and repairs."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    op.create_table(
        "archive_tasks",
        sa.Column("id", Id, nullable=False, comment="sorts by time"),
        sa.Column("home", sa.Text, nullable=False, comment="the home folder whose Switchboard does it"),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("arguments", Json, nullable=False),
        sa.Column("progress", Json, comment="how far it is; null: not begun"),
        sa.Column("result", Json),
        sa.Column("error", sa.Text),
        sa.Column("requested_by", sa.Text, nullable=False),
        sa.Column("stop_requested", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.CheckConstraint("state IN ('queued', 'running', 'completed', 'failed', 'stopped')", name="state"),
        sa.PrimaryKeyConstraint("id", name="archive_tasks_pkey"),
    )
    op.create_index("archive_tasks_home_idx", "archive_tasks", ["home", "kind", "state", "id"])
