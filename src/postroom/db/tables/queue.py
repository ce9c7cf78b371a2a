"""Jobs, their steps, and what keeps the queue fair, deduplicated and on time; and work on the archive that is handed
to the process that owns it.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    Sequence,
    Table,
    Text,
    false,
    text,
)

from postroom.db.types import Id, Instant, Json, metadata, partial_index

jobs = Table(
    "jobs",
    metadata,
    Column("id", Id, primary_key=True),
    Column("type", Text, nullable=False),
    Column("queue_name", Text, nullable=False),
    Column("policy_tier", Text, nullable=False),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("seq", BigInteger, nullable=False, comment="accepted order"),
    Column("payload_json", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("ready", Boolean, nullable=False, comment="queued and ripe; false while not_before lies ahead"),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False, server_default="5"),
    Column("not_before", Instant),
    Column("idempotency_key", Text),
    Column("repeatable", Boolean, nullable=False, comment="a finished job of this key is armed again"),
    Column("fence", BigInteger, nullable=False, server_default="0", comment="grows with each claim"),
    Column("worker_id", Text),
    Column("lease_expires_at", Instant),
    Column("heartbeat_at", Instant),
    Column("last_error", Text),
    Column("result_json", Text),
    Column("created_at", Instant, nullable=False),
    Column("queued_at", Instant, nullable=False, comment="when it last became queued"),
    Column("started_at", Instant),
    Column("finished_at", Instant),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('queued', 'running', 'completed', 'failed', 'canceled')", name="state"),
    CheckConstraint("queue_name IN ('live', 'history', 'work')", name="queue_name"),
    CheckConstraint("policy_tier IN ('high_priority', 'interactive', 'default')", name="policy_tier"),
)

_ready = text("state = 'queued' AND ready")
_scheduled = text("state = 'queued' AND NOT ready")
_running = text("state = 'running'")
_finished = text("finished_at IS NOT NULL")

partial_index("jobs_idem_idx", jobs.c.idempotency_key, where=text("idempotency_key IS NOT NULL"), unique=True)
partial_index(
    "jobs_ready_idx",
    jobs.c.queue_name,
    jobs.c.policy_tier,
    jobs.c.priority.desc(),
    jobs.c.seq,
    where=_ready,
)
partial_index("jobs_scheduled_idx", jobs.c.not_before, where=_scheduled)
partial_index("jobs_running_idx", jobs.c.fence, where=_running)
partial_index("jobs_finished_idx", jobs.c.state, jobs.c.finished_at, where=_finished)

job_steps = Table(
    "job_steps",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("name", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Instant, nullable=False),
    Column("finished_at", Instant),
    Column("result_json", Text),
    Column("error", Text),
    Index("job_steps_job_id_idx", "job_id"),
)

job_tombstones = Table(
    "job_tombstones",
    metadata,
    Column("idempotency_key", Text, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("type", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("finished_at", Instant, nullable=False),
)

queue_guards = Table(
    "queue_guards",
    metadata,
    Column("queue_name", Text, primary_key=True),
    Column("run_high_priority", Integer, nullable=False, server_default="0"),
    Column("run_interactive", Integer, nullable=False, server_default="0"),
)

# On PostgreSQL, where a claim begins to read (`queue/marks.py`), and what became ready below that.
queue_marks = Table(
    "queue_marks",
    metadata,
    Column("line", Text, primary_key=True),
    Column("value", BigInteger, nullable=False, comment="no ready job of the line has a lower seq"),
    info={"only": "postgresql"},
)
queue_returned = Table(
    "queue_returned",
    metadata,
    Column("line", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    info={"only": "postgresql"},
)

# The source of `jobs.fence` on PostgreSQL, where it is the number of the claim.
jobs_fence = Sequence("jobs_fence", metadata=metadata)

# The source of `jobs.seq`: a sequence on PostgreSQL; SQLite has none, and there a row that counts does no harm.
jobs_seq = Sequence("jobs_seq", metadata=metadata)
queue_sequence = Table(
    "queue_sequence",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", BigInteger, nullable=False),
    info={"only": "sqlite"},
)

schedules = Table(
    "schedules",
    metadata,
    Column("name", Text, primary_key=True),
    Column("job_type", Text, nullable=False),
    Column("payload_json", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("cadence", Text, nullable=False),
    Column("next_at", Instant, nullable=False),
    Column("last_fired_at", Instant),
    Index("schedules_next_at_idx", "next_at"),
)


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
