"""The job queue."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", Id, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("queue_name", sa.Text, nullable=False),
        sa.Column("policy_tier", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("seq", sa.BigInteger, nullable=False, comment="accepted order"),
        sa.Column("payload_json", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ready", sa.Boolean, nullable=False, comment="queued and ripe; false while not_before lies ahead"),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("max_attempts", sa.Integer, nullable=False, server_default="5"),
        sa.Column("not_before", Instant),
        sa.Column("idempotency_key", sa.Text),
        sa.Column("repeatable", sa.Boolean, nullable=False, comment="a finished job of this key is armed again"),
        sa.Column("fence", sa.BigInteger, nullable=False, server_default="0", comment="grows with each claim"),
        sa.Column("worker_id", sa.Text),
        sa.Column("lease_expires_at", Instant),
        sa.Column("heartbeat_at", Instant),
        sa.Column("last_error", sa.Text),
        sa.Column("result_json", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("queued_at", Instant, nullable=False, comment="when it last became queued"),
        sa.Column("started_at", Instant),
        sa.Column("finished_at", Instant),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="jobs_pkey"),
        sa.CheckConstraint("state IN ('queued', 'running', 'completed', 'failed', 'canceled')", name="state"),
        sa.CheckConstraint("queue_name IN ('live', 'history', 'work')", name="queue_name"),
        sa.CheckConstraint("policy_tier IN ('high_priority', 'interactive', 'default')", name="policy_tier"),
    )
    op.create_index("jobs_idem_idx", "jobs", ["idempotency_key"], unique=True)
    _partial_index(
        "jobs_ready_idx",
        ["queue_name", "policy_tier", sa.text("priority DESC"), "seq"],
        "state = 'queued' AND ready",
    )
    _partial_index("jobs_scheduled_idx", ["not_before"], "state = 'queued' AND NOT ready")
    _partial_index("jobs_running_idx", ["worker_id"], "state = 'running'")
    _partial_index("jobs_finished_idx", ["state", "finished_at"], "finished_at IS NOT NULL")

    op.create_table(
        "job_steps",
        sa.Column("id", Id, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("started_at", Instant, nullable=False),
        sa.Column("finished_at", Instant),
        sa.Column("result_json", sa.Text),
        sa.Column("error", sa.Text),
        sa.PrimaryKeyConstraint("id", name="job_steps_pkey"),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="job_steps_job_id_fkey", ondelete="CASCADE"),
    )
    op.create_index("job_steps_job_id_idx", "job_steps", ["job_id"])

    op.create_table(
        "job_tombstones",
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("job_id", Id, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("finished_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("idempotency_key", name="job_tombstones_pkey"),
    )

    guards = op.create_table(
        "queue_guards",
        sa.Column("queue_name", sa.Text, nullable=False),
        sa.Column("run_high_priority", sa.Integer, nullable=False, server_default="0"),
        sa.Column("run_interactive", sa.Integer, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("queue_name", name="queue_guards_pkey"),
    )
    op.bulk_insert(guards, [{"queue_name": name} for name in ("live", "history", "work")])

    op.create_table(
        "schedules",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("job_type", sa.Text, nullable=False),
        sa.Column("payload_json", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("cadence", sa.Text, nullable=False),
        sa.Column("next_at", Instant, nullable=False),
        sa.Column("last_fired_at", Instant),
        sa.PrimaryKeyConstraint("name", name="schedules_pkey"),
    )
    op.create_index("schedules_next_at_idx", "schedules", ["next_at"])

    if op.get_context().dialect.name == "postgresql":
        op.execute("CREATE SEQUENCE jobs_seq")
        # Every job leaves two dead row versions behind; the default waits for a fifth of the table to be dead.
        op.execute("ALTER TABLE jobs SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000)")
    else:
        counter = op.create_table(
            "queue_sequence",
            sa.Column("name", sa.Text, nullable=False),
            sa.Column("value", sa.BigInteger, nullable=False),
            sa.PrimaryKeyConstraint("name", name="queue_sequence_pkey"),
        )
        op.bulk_insert(counter, [{"name": "jobs", "value": 0}])


def _partial_index(name: str, columns: list[str | sa.TextClause], where: str) -> None:
    op.create_index(name, "jobs", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where))
