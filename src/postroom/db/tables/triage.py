"""What was decided about each message, and each call of a model with its cost."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    Table,
    Text,
    text,
)

from postroom.db.tables.base import metadata
from postroom.db.types import Id, Instant, Json

decisions = Table(
    "decisions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("message_id", Id, ForeignKey("messages.id", ondelete="CASCADE"), nullable=False),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="SET NULL")),
    Column("source", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("parameters", Json, nullable=False, server_default="{}"),
    Column("confidence", Double),
    Column("reason", Text, nullable=False),
    Column("needs_review", Boolean, nullable=False, server_default=text("false")),
    Column("created_at", Instant, nullable=False),
    CheckConstraint("source IN ('deterministic', 'llm', 'none')", name="source"),
    Index("decisions_message_id_idx", "message_id", unique=True),
    Index("decisions_created_at_idx", "created_at"),
)

# Outlives its message: the money was spent. The prompt does not: it holds mail.
model_calls = Table(
    "model_calls",
    metadata,
    Column("id", Id, primary_key=True),
    Column("message_id", Id, ForeignKey("messages.id", ondelete="SET NULL")),
    Column("backfill_job_id", Id),
    Column("provider", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("input_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column("cost_microdollars", BigInteger, nullable=False),
    Column("latency_ms", Integer, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("error", Text),
    Column("simulated", Boolean, nullable=False, server_default=text("false")),
    Column("prompt", Text),
    Column("created_at", Instant, nullable=False),
    Index("model_calls_message_id_idx", "message_id"),
    Index("model_calls_backfill_job_id_idx", "backfill_job_id"),
    Index("model_calls_created_at_idx", "created_at"),
)
