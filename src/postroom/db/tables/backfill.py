"""Backfill jobs, what they spend day by day, and how fast they go.

On PostgreSQL the jobs are `switchboard.backfill_jobs`, on SQLite, which has no schemas, `switchboard_backfill_jobs`.
Other tables name a job by its id alone: jobs are never deleted, and the two names leave nothing to point a key at.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Date,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from postroom.db.tables.base import metadata
from postroom.db.types import Id, Instant, Json

STATUSES = ("pending", "active", "paused", "completed", "cancelled", "cost_capped", "error")


def _backfill_jobs(name: str, schema: str | None, dialect: str) -> Table:
    on_postgres = dialect == "postgresql"
    now = text("now()") if on_postgres else None
    return Table(
        name,
        metadata,
        Column("id", Id, primary_key=True, server_default=text("gen_random_uuid()") if on_postgres else None),
        Column("connector_type", Text, nullable=False),
        Column("endpoint_identity", Text, nullable=False),
        Column("target_categories", Json, nullable=False, server_default="[]"),
        Column("date_from", Date, nullable=False),
        Column("date_to", Date, nullable=False, comment="this day included"),
        Column("rate_limit_per_hour", Integer, nullable=False, server_default="100"),
        Column("daily_cost_cap_cents", Integer, nullable=False, server_default="500"),
        Column("status", Text, nullable=False, server_default="pending"),
        Column("cursor", Json),
        Column("rows_processed", Integer, nullable=False, server_default="0"),
        Column("rows_skipped", Integer, nullable=False, server_default="0"),
        Column("cost_spent_cents", Integer, nullable=False, server_default="0", comment="settled, rounded up"),
        Column("error", Text),
        Column("created_at", Instant, nullable=False, server_default=now),
        Column("started_at", Instant),
        Column("completed_at", Instant),
        Column("updated_at", Instant, nullable=False, server_default=now),
        Column("mode", Text, nullable=False, server_default="selective"),
        Column("includes", Json, nullable=False, server_default="[]", comment="of drafts, sent, spam, trash"),
        Column("status_reason", Text, comment="why it is not at work, in words for a person"),
        Column("spent_microdollars", BigInteger, nullable=False, server_default="0", comment="settled, exact"),
        Column("reported_cost_cents", Integer, nullable=False, server_default="0", comment="the connector's own guess"),
        Column("auto_resume", Boolean, nullable=False, server_default=text("true")),
        Column("capped_day", Date, comment="the day whose cap it reached; null: not capped"),
        Column("refused_microdollars", BigInteger, comment="what did not fit under the cap"),
        Column("fence", BigInteger, nullable=False, server_default="0", comment="grows with each lease"),
        Column("lease_holder", Text, comment="who may still report; null: nobody"),
        Column("lease_expires_at", Instant),
        Column("last_report_seq", BigInteger, comment="of this lease"),
        Column("estimate", Json),
        Column("consent_at", Instant),
        Column("consent_by", Text),
        CheckConstraint(f"status IN {STATUSES}", name="status"),
        CheckConstraint("mode IN ('selective', 'background')", name="mode"),
        CheckConstraint("date_from <= date_to", name="dates"),
        CheckConstraint("rate_limit_per_hour > 0 AND daily_cost_cap_cents > 0", name="limits"),
        Index("idx_backfill_jobs_status", "status"),
        Index("idx_backfill_jobs_connector", "connector_type", "endpoint_identity"),
        schema=schema,
        info={"only": dialect},
    )


# By the name of the dialect: `BACKFILL_JOBS[tx.dialect]`.
BACKFILL_JOBS = {
    "sqlite": _backfill_jobs("switchboard_backfill_jobs", None, "sqlite"),
    "postgresql": _backfill_jobs("backfill_jobs", "switchboard", "postgresql"),
}

# What is reserved and not yet settled, and what is settled, of each day. Together they never pass the job's cap.
backfill_spend = Table(
    "backfill_spend",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("day", Date, primary_key=True, comment="of the zone that caps turn in"),
    Column("reserved_microdollars", BigInteger, nullable=False),
    Column("settled_microdollars", BigInteger, nullable=False),
)

backfill_reservations = Table(
    "backfill_reservations",
    metadata,
    Column("job_id", Id, primary_key=True),
    Column("message_ref", Text, primary_key=True),
    Column("day", Date, nullable=False, comment="the day that it counts for, whenever it is settled"),
    Column("amount_microdollars", BigInteger, nullable=False, comment="the most that the call can cost"),
    Column("settled_microdollars", BigInteger, comment="what it did cost"),
    Column("state", Text, nullable=False),
    Column("reserved_at", Instant, nullable=False),
    Column("closed_at", Instant),
    CheckConstraint("state IN ('reserved', 'settled', 'released')", name="state"),
)

# What was admitted when, for the limit of any sliding hour; rows of more than an hour ago are gone.
backfill_rate = Table(
    "backfill_rate",
    metadata,
    Column("id", Id, primary_key=True),
    Column("job_id", Id, nullable=False),
    Column("at", Instant, nullable=False),
    Column("count", Integer, nullable=False),
    Index("backfill_rate_job_id_at_idx", "job_id", "at"),
)
