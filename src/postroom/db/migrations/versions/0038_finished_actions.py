"""An index for actions of a status by the time they ended, which listings and undo of a span read."""

from __future__ import annotations

from alembic import op

revision = "0038"
down_revision = "0037"


def upgrade() -> None:
    op.create_index("actions_ended_idx", "actions", ["status", "finished_at", "id"])
