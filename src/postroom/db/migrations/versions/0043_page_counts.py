"""Indexes of what pages count: the decisions of a backfill job, and jobs that failed without an action."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id

revision = "0043"
down_revision = "0042"


def upgrade() -> None:
    comment = "that of its message, so that a job's decisions are counted from an index"
    op.add_column("decisions", sa.Column("backfill_job_id", Id, comment=comment))
    op.execute(
        "UPDATE decisions SET backfill_job_id = "
        "(SELECT messages.backfill_job_id FROM messages WHERE messages.id = decisions.message_id) "
        "WHERE message_id IN (SELECT id FROM messages WHERE backfill_job_id IS NOT NULL)"
    )
    of_a_job = sa.text("backfill_job_id IS NOT NULL")
    columns = ["backfill_job_id", "source", "needs_review"]
    op.create_index("decisions_backfill_idx", "decisions", columns, postgresql_where=of_a_job, sqlite_where=of_a_job)
    failed = sa.text("status IN ('failed', 'dismissed') AND job_id IS NOT NULL")
    op.create_index("actions_failed_job_idx", "actions", ["job_id"], postgresql_where=failed, sqlite_where=failed)
