"""Rules, directions and labels; what was decided about each message, each model call and its cost; and the actions that
followed, with the state before them, undo links, snoozes and sent mail.
"""

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

from postroom.db.types import Id, Instant, Json, metadata, partial_index

_KEPT_PROMPT = text("prompt IS NOT NULL")
_SCOPE = "scope IN ('global', 'account', 'domain', 'sender') AND (scope = 'global') = (scope_ref = '')"


def _scoped() -> tuple[Column[Any] | CheckConstraint, ...]:
    """Whose mail a rule applies to, and whether it is on; shared by rules and by instructions to the model."""
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

# Instructions to the model about mail of one scope, in the owner's words.
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
    partial_index("model_calls_prompt_idx", "created_at", where=_KEPT_PROMPT),
)


FIRST_OF_A_RULE = text("position = 0 AND origin = 'rule'")
"""The actions by which a rule's uses are counted, word for word as their index has it."""

# Outlives its message, its decision and its rule: what was done to a mailbox can be looked up and undone.
actions = Table(
    "actions",
    metadata,
    Column("id", Id, primary_key=True),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("message_id", Id, ForeignKey("messages.id", ondelete="SET NULL")),
    Column("gmail_id", Text, nullable=False, comment="the mailbox's own id of the message"),
    Column("thread_id", Text),
    Column("decision_id", Id, ForeignKey("decisions.id", ondelete="SET NULL"), comment="null: a person or an undo"),
    Column("position", Integer, nullable=False, server_default="0", comment="among the actions of its decision"),
    Column("origin", Text, nullable=False),
    Column("rule_id", Id, comment="the rule that wanted it, which may be gone"),
    Column("rule_name", Text),
    Column("type", Text, nullable=False),
    Column("parameters", Json, nullable=False, server_default="{}"),
    Column("status", Text, nullable=False),
    Column("reasons", Json, nullable=False, server_default="[]", comment="why it needs approval"),
    Column("pre_image", Json, comment="the message's labels before the change"),
    Column("undo_hint", Json),
    Column("job_id", Id, comment="the job that may execute it"),
    Column("error", Text),
    Column("wanted_by", Text, nullable=False, comment="whose idea it was, for people"),
    Column("answered_by", Text, comment="who approved or rejected it"),
    Column("answered_at", Instant),
    Column("expires_at", Instant, comment="of a question that nobody answered"),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("finished_at", Instant),
    CheckConstraint(
        "status IN ('queued', 'approved_pending', 'executing', 'completed', 'failed', 'rejected', 'expired', "
        "'canceled')",
        name="status",
    ),
    CheckConstraint("origin IN ('rule', 'model', 'person', 'undo')", name="origin"),
    Index("actions_decision_idx", "decision_id", "position", unique=True),
    Index("actions_status_idx", "status", "id"),
    Index("actions_rule_idx", "rule_id", "id"),
    partial_index("actions_rule_use_idx", "rule_id", "created_at", where=FIRST_OF_A_RULE),
    Index("actions_message_idx", "message_id"),
    Index("actions_finished_at_idx", "finished_at"),
    Index("actions_gmail_id_idx", "account_id", "gmail_id"),
)

# "The cause is the undo of the effect."
action_links = Table(
    "action_links",
    metadata,
    Column("id", Id, primary_key=True),
    Column("cause_action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), nullable=False),
    Column("effect_action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), nullable=False),
    Column("relation_type", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    CheckConstraint("relation_type IN ('undo_of')", name="relation_type"),
    Index("action_links_effect_idx", "effect_action_id", "relation_type", unique=True),
    Index("action_links_cause_idx", "cause_action_id"),
)

# Mail that was taken out of sight without a person, for as long as it counts against the hour.
hides = Table(
    "hides",
    metadata,
    Column("action_id", Id, primary_key=True),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("lane", Text, nullable=False),
    Column("at", Instant, nullable=False, comment="when its execution began"),
    CheckConstraint("lane IN ('live', 'backfill')", name="lane"),
    Index("hides_account_idx", "account_id", "lane", "at"),
)

snoozes = Table(
    "snoozes",
    metadata,
    Column("action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), primary_key=True),
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), nullable=False),
    Column("until", Instant, nullable=False),
    Column("label_id", Text, nullable=False),
    Column("label_name", Text, nullable=False),
    Column("job_id", Id, nullable=False, comment="the job that wakes it"),
    Column("state", Text, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('waiting', 'woken', 'canceled')", name="state"),
    Index("snoozes_state_idx", "state", "until"),
)

# Sending in steps that survive a crash: the draft's id is written down before it is sent.
outbound = Table(
    "outbound",
    metadata,
    Column("action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), primary_key=True),
    Column("state", Text, nullable=False),
    Column("draft_id", Text),
    Column("draft_message_id", Text, comment="the mailbox's id of the draft's message"),
    Column("draft_thread_id", Text),
    Column("sent_message_id", Text),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('composing', 'drafted', 'sending', 'sent', 'unclear', 'given_up')", name="state"),
)

# Automatic replies: to whom and when. No address gets two within a day.
auto_replies = Table(
    "auto_replies",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("address", Text, primary_key=True, comment="in its compared form, without a tag"),
    Column("action_id", Id, nullable=False),
    Column("replied_at", Instant, nullable=False),
)

# Where a person was asked.
approval_notices = Table(
    "approval_notices",
    metadata,
    Column("action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), primary_key=True),
    Column("channel", Text, nullable=False),
    Column("external_message_id", Text),
    Column("state", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    CheckConstraint("state IN ('sending', 'sent', 'closed')", name="state"),
)
