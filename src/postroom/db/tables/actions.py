"""What is done with mail: each action with how things stood before it, what undoes what, snoozes, sent mail."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, Table, Text, text

from postroom.db.tables.base import metadata
from postroom.db.types import Id, Instant, Json

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
    Index(
        "actions_rule_use_idx", "rule_id", "created_at", postgresql_where=FIRST_OF_A_RULE, sqlite_where=FIRST_OF_A_RULE
    ),
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

# Whom a mailbox answered by itself, and when: nobody is answered twice within a day.
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
