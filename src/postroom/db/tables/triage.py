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
    Date,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    text,
)

from postroom.db.types import Id, Instant, Json, metadata, partial_index

_KEPT_PROMPT = text("prompt IS NOT NULL")
_RESERVED = text("state = 'reserved'")
_UNCERTAIN = text("state = 'uncertain'")
_OF_A_BACKFILL = text("backfill_job_id IS NOT NULL")
_OFF_FOR = "by account id, why Postroom switched it off there"
OPEN_REVIEW = text("needs_review AND reviewed_at IS NULL")
"""The decisions that a person has to look at, word for word as their index has it."""
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
    Column("off_for", Json, nullable=False, server_default="{}", comment=_OFF_FOR),
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

# Names that labels had before they were renamed, and that no other label of the account has now.
former_label_names = Table(
    "former_label_names",
    metadata,
    Column("account_id", Id, ForeignKey("accounts.id", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True, comment="in its compared form"),
    Column("label_id", Text, nullable=False),
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
    Column("review_cause", Text, comment="why a person has to look at it"),
    Column("reviewed_at", Instant, comment="when a person was done with it"),
    Column("reviewed_by", Text),
    Column("explanation", Json, comment="of a learned decision: what spoke for it, without words of the mail"),
    Column("backfill_job_id", Id, comment="that of its message, so that a job's decisions are counted from an index"),
    CheckConstraint("source IN ('deterministic', 'llm', 'none', 'learned')", name="source"),
    Index("decisions_message_id_idx", "message_id", unique=True),
    Index("decisions_created_at_idx", "created_at"),
    partial_index("decisions_review_idx", "id", where=OPEN_REVIEW),
    partial_index("decisions_backfill_idx", "backfill_job_id", "source", "needs_review", where=_OF_A_BACKFILL),
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
    Column("answer", Json, comment="kept until the message is decided, so that it is not bought again"),
    Column("created_at", Instant, nullable=False),
    Index("model_calls_message_id_idx", "message_id"),
    Index("model_calls_backfill_job_id_idx", "backfill_job_id"),
    Index("model_calls_created_at_idx", "created_at"),
    partial_index("model_calls_prompt_idx", "created_at", where=_KEPT_PROMPT),
)

# All model spend of each day, and the part of it that backfill has. A row is locked before any backfill job is.
model_spend = Table(
    "model_spend",
    metadata,
    Column("day", Date, primary_key=True, comment="of the zone that caps turn in"),
    Column("reserved_microdollars", BigInteger, nullable=False),
    Column("settled_microdollars", BigInteger, nullable=False),
    Column("backfill_reserved_microdollars", BigInteger, nullable=False),
    Column("backfill_settled_microdollars", BigInteger, nullable=False),
)

# The money of each call. Counts for the day on which it was reserved, whenever it is settled.
model_reservations = Table(
    "model_reservations",
    metadata,
    Column("call_id", Id, primary_key=True),
    Column("backfill_job_id", Id),
    Column("day", Date, nullable=False),
    Column("most_microdollars", BigInteger, nullable=False),
    Column("settled_microdollars", BigInteger, comment="what it cost, or its most while that is uncertain"),
    Column("state", Text, nullable=False),
    Column("deadline", Instant, nullable=False, comment="past it the call is settled at its most"),
    Column("reserved_at", Instant, nullable=False),
    Column("closed_at", Instant),
    CheckConstraint("state IN ('reserved', 'settled', 'uncertain')", name="state"),
    partial_index("model_reservations_open_idx", "deadline", where=_RESERVED),
    partial_index("model_reservations_uncertain_idx", "backfill_job_id", where=_UNCERTAIN),
)

# Limits of spending that the owner set; without a row the settings hold.
spend_limits = Table(
    "spend_limits",
    metadata,
    Column("name", Text, primary_key=True),
    Column("microdollars", BigInteger, nullable=False),
    Column("changed_at", Instant, nullable=False),
    Column("changed_by", Text, nullable=False),
)


FIRST_OF_A_RULE = text("position = 0 AND origin = 'rule'")
"""The actions by which a rule's uses are counted, word for word as their index has it."""
FAILED_WITH_JOB = text("status IN ('failed', 'dismissed') AND job_id IS NOT NULL")
"""The actions that stand for their failed job in lists, word for word as their index has it."""

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
    Column("application_id", Id, comment="the application of a rule to past mail; null: it is of none"),
    Column("subject", Text, comment="of its message, where only the archive has that"),
    Column("sender", Text, comment="the same"),
    CheckConstraint(
        "status IN ('queued', 'approved_pending', 'executing', 'completed', 'failed', 'rejected', 'expired', "
        "'canceled', 'refused', 'dismissed')",
        name="status",
    ),
    CheckConstraint("origin IN ('rule', 'model', 'person', 'undo')", name="origin"),
    Index("actions_decision_idx", "decision_id", "position", unique=True),
    Index("actions_status_idx", "status", "id"),
    Index("actions_rule_idx", "rule_id", "id"),
    partial_index("actions_rule_use_idx", "rule_id", "created_at", where=FIRST_OF_A_RULE),
    Index("actions_message_idx", "message_id"),
    Index("actions_finished_at_idx", "finished_at"),
    Index("actions_ended_idx", "status", "finished_at", "id"),
    Index("actions_gmail_id_idx", "account_id", "gmail_id"),
    Index("actions_application_idx", "application_id", "id"),
    partial_index("actions_failed_job_idx", "job_id", where=FAILED_WITH_JOB),
)

# Rules that were suggested and that the owner does not want to see again.
dismissed_suggestions = Table(
    "dismissed_suggestions",
    metadata,
    Column("key", Text, primary_key=True, comment="a hash of the kind of mail and the action"),
    Column("dismissed_by", Text, nullable=False),
    Column("dismissed_at", Instant, nullable=False),
)

# A rule applied to past mail: what it looked at so far, and where it goes on.
rule_applications = Table(
    "rule_applications",
    metadata,
    Column("id", Id, primary_key=True),
    Column("rule_id", Id, nullable=False, comment="which may be gone"),
    Column("rule_name", Text, nullable=False),
    Column("rule", Json, nullable=False, comment="as it was when it was applied"),
    Column("query", Text, nullable=False, comment="the search that chooses the mail; empty: all"),
    Column("mailbox", Text, comment="null: every mailbox"),
    Column("cap", Integer, nullable=False, comment="the most messages that it acts on"),
    Column("state", Text, nullable=False),
    Column("total", Integer, nullable=False, comment="how many messages the search found at the start"),
    Column("looked_at", Integer, nullable=False, server_default="0"),
    Column("acted_on", Integer, nullable=False, server_default="0"),
    Column("left_alone", Integer, nullable=False, server_default="0", comment="matched, but gone or acted on before"),
    Column("cursor", Text, comment="where the search goes on; null: at its start"),
    Column("reason", Text, comment="why it is not at work, for people"),
    Column("requested_by", Text, nullable=False),
    Column("created_at", Instant, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("finished_at", Instant),
    CheckConstraint("state IN ('running', 'completed', 'capped', 'stopped', 'failed', 'undone')", name="state"),
    Index("rule_applications_rule_idx", "rule_id", "id"),
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

# Files that an action sends along, until it has ended; their names and types are among its parameters.
outgoing_files = Table(
    "outgoing_files",
    metadata,
    Column("action_id", Id, ForeignKey("actions.id", ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("content", LargeBinary, nullable=False),
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
