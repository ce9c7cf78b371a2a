"""Rules, directions, labels; what was decided about each message, and each call of a model with its cost."""

from __future__ import annotations

from typing import Any

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

_KEPT_PROMPT = text("prompt IS NOT NULL")
_SCOPE = "scope IN ('global', 'account', 'domain', 'sender') AND (scope = 'global') = (scope_ref = '')"


def _scoped() -> tuple[Column[Any] | CheckConstraint, ...]:
    """Whose mail a rule is for, and whether it is on; the same for rules and for what the model is told."""
    return (
        Column("scope", Text, nullable=False, server_default="global"),
        Column("scope_ref", Text, nullable=False, comment="an account's id, a domain or an address"),
        Column("enabled", Boolean, nullable=False, server_default=text("true")),
        Column("disabled_reason", Text),
        CheckConstraint(_SCOPE, name="scope"),
        CheckConstraint("NOT enabled OR disabled_reason IS NULL", name="disabled_reason"),
    )


# A disabled rule that has a reason was disabled by Postroom, not by a person.
rules = Table(
    "rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    *_scoped(),
    Column("priority", Integer, nullable=False, server_default="100", comment="the lowest number comes first"),
    Column("condition", Json, nullable=False),
    Column("actions", Json, nullable=False, comment="in the order in which they are done"),
    Column("unattended", Boolean, nullable=False, server_default=text("false"), comment="needs no approval"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Index("rules_name_idx", "name", unique=True),
    Index("rules_order_idx", "priority", "id"),
)

# What the model is told to heed for mail of a scope, in the owner's words.
model_rules = Table(
    "model_rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", Text, nullable=False),
    *_scoped(),
    Column("text", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Index("model_rules_name_idx", "name", unique=True),
    Index("model_rules_scope_idx", "scope", "scope_ref"),
)

directions = Table(
    "directions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("text", Text, nullable=False),
    Column("enabled", Boolean, nullable=False, server_default=text("true")),
    Column("updated_at", Instant, nullable=False),
    Index("directions_position_idx", "position"),
)

labels = Table(
    "labels",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("label_id", Text, primary_key=True, comment="the mailbox's own id"),
    Column("name", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("description", Text, comment="the owner's words for the model"),
    Column("available_to_classifier", Boolean, nullable=False, server_default=text("true")),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("type IN ('system', 'user')", name="type"),
    Index("labels_name_idx", "account_id", "name"),
)

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
    Column("rule_id", Id, comment="the rule that decided, which may be gone"),
    Column("rule_name", Text),
    Column("reasons", Json, nullable=False, server_default="[]", comment="why what it wants needs approval"),
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
    Index("model_calls_prompt_idx", "created_at", postgresql_where=_KEPT_PROMPT, sqlite_where=_KEPT_PROMPT),
)
