"""Where claims begin to read, on PostgreSQL; running jobs by the number of their claim; keys only of jobs with one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0044"
down_revision = "0043"

_LINES = [
    f"{queue}/{tier}" for queue in ("live", "work", "history") for tier in ("high_priority", "interactive", "default")
]


def upgrade() -> None:
    op.drop_index("jobs_running_idx", "jobs")
    running = sa.text("state = 'running'")
    op.create_index("jobs_running_idx", "jobs", ["fence"], postgresql_where=running, sqlite_where=running)
    op.drop_index("jobs_idem_idx", "jobs")
    keyed = sa.text("idempotency_key IS NOT NULL")
    op.create_index(
        "jobs_idem_idx", "jobs", ["idempotency_key"], unique=True, postgresql_where=keyed, sqlite_where=keyed
    )
    if op.get_context().dialect.name != "postgresql":
        return
    marks = op.create_table(
        "queue_marks",
        sa.Column("line", sa.Text, nullable=False),
        sa.Column("value", sa.BigInteger, nullable=False, comment="no ready job of the line has a lower seq"),
        sa.PrimaryKeyConstraint("line", name="queue_marks_pkey"),
    )
    op.bulk_insert(marks, [{"line": line, "value": 0} for line in (*_LINES, "running")])
    op.create_table(
        "queue_returned",
        sa.Column("line", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    op.execute("CREATE SEQUENCE jobs_fence")
    op.execute("SELECT setval('jobs_fence', (SELECT COALESCE(max(fence), 0) + 1 FROM jobs), FALSE)")
