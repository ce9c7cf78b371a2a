"""Triage and actions: rules, directions, labels; actions with their links, snoozes, sent mail and approval notices."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    _triage()
    op.add_column("decisions", sa.Column("rule_id", Id, comment="the rule that decided, which may be gone"))
    op.add_column("decisions", sa.Column("rule_name", sa.Text))
    op.add_column(
        "decisions",
        sa.Column("reasons", Json, nullable=False, server_default="[]", comment="why what it wants needs approval"),
    )
    op.add_column(
        "messages",
        sa.Column("has_attachment", sa.Boolean, comment="as the archive found; null: it does not have the message"),
    )
    op.add_column("messages", sa.Column("size_bytes", sa.BigInteger, comment="of the raw message; null: not known"))
    op.add_column(
        "messages", sa.Column("deleted_at_source", Instant, comment="since when the mailbox no longer has it")
    )
    op.create_index("messages_thread_idx", "messages", ["account_id", "external_thread_id", "received_at"])
    kept = sa.text("prompt IS NOT NULL")
    op.create_index("model_calls_prompt_idx", "model_calls", ["created_at"], postgresql_where=kept, sqlite_where=kept)
    _actions()


def _triage() -> None:
    op.create_table(
        "rules",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False, server_default="global"),
        sa.Column("scope_ref", sa.Text, nullable=False, comment="an account's id, a domain or an address"),
        sa.Column(
            "priority", sa.Integer, nullable=False, server_default="100", comment="the lowest number comes first"
        ),
        sa.Column("condition", Json, nullable=False),
        sa.Column("actions", Json, nullable=False, comment="in the order in which they are done"),
        sa.Column(
            "unattended", sa.Boolean, nullable=False, server_default=sa.text("false"), comment="needs no approval"
        ),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="rules_pkey"),
        sa.CheckConstraint("NOT enabled OR disabled_reason IS NULL", name="disabled_reason"),
        sa.CheckConstraint(
            "scope IN ('global', 'account', 'domain', 'sender') AND (scope = 'global') = (scope_ref = '')",
            name="scope",
        ),
    )
    op.create_index("rules_name_idx", "rules", ["name"], unique=True)
    op.create_index("rules_order_idx", "rules", ["priority", "id"])
    op.create_table(
        "model_rules",
        sa.Column("id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.Text, nullable=False, server_default="global"),
        sa.Column("scope_ref", sa.Text, nullable=False, comment="an account's id, a domain or an address"),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("disabled_reason", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="model_rules_pkey"),
        sa.CheckConstraint("NOT enabled OR disabled_reason IS NULL", name="disabled_reason"),
        sa.CheckConstraint(
            "scope IN ('global', 'account', 'domain', 'sender') AND (scope = 'global') = (scope_ref = '')",
            name="scope",
        ),
    )
    op.create_index("model_rules_name_idx", "model_rules", ["name"], unique=True)
    op.create_index("model_rules_scope_idx", "model_rules", ["scope", "scope_ref"])
    op.create_table(
        "directions",
        sa.Column("id", Id, nullable=False),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("enabled", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="directions_pkey"),
    )
    op.create_index("directions_position_idx", "directions", ["position"])
    op.create_table(
        "labels",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("label_id", sa.Text, nullable=False, comment="the mailbox's own id"),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("description", sa.Text, comment="the owner's words for the model"),
        sa.Column("available_to_classifier", sa.Boolean, nullable=False, server_default=sa.text("true")),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "label_id", name="labels_pkey"),
        sa.CheckConstraint("type IN ('system', 'user')", name="type"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="labels_account_id_fkey", ondelete="CASCADE"),
    )
    op.create_index("labels_name_idx", "labels", ["account_id", "name"])


def _actions() -> None:
    op.create_table(
        "actions",
        sa.Column("id", Id, nullable=False),
        sa.Column("account_id", Id, nullable=False),
        sa.Column("message_id", Id),
        sa.Column("gmail_id", sa.Text, nullable=False, comment="the mailbox's own id of the message"),
        sa.Column("thread_id", sa.Text),
        sa.Column("decision_id", Id, comment="null: a person or an undo"),
        sa.Column(
            "position", sa.Integer, nullable=False, server_default="0", comment="among the actions of its decision"
        ),
        sa.Column("origin", sa.Text, nullable=False),
        sa.Column("rule_id", Id, comment="the rule that wanted it, which may be gone"),
        sa.Column("rule_name", sa.Text),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("parameters", Json, nullable=False, server_default="{}"),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reasons", Json, nullable=False, server_default="[]", comment="why it needs approval"),
        sa.Column("pre_image", Json, comment="the message's labels before the change"),
        sa.Column("undo_hint", Json),
        sa.Column("job_id", Id, comment="the job that may execute it"),
        sa.Column("error", sa.Text),
        sa.Column("wanted_by", sa.Text, nullable=False, comment="whose idea it was, for people"),
        sa.Column("answered_by", sa.Text, comment="who approved or rejected it"),
        sa.Column("answered_at", Instant),
        sa.Column("expires_at", Instant, comment="of a question that nobody answered"),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("finished_at", Instant),
        sa.PrimaryKeyConstraint("id", name="actions_pkey"),
        sa.CheckConstraint("origin IN ('rule', 'model', 'person', 'undo')", name="origin"),
        sa.CheckConstraint(
            "status IN ('queued', 'approved_pending', 'executing', 'completed', 'failed', 'rejected', 'expired', "
            "'canceled')",
            name="status",
        ),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="actions_account_id_fkey", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["message_id"], ["messages.id"], name="actions_message_id_fkey", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(
            ["decision_id"], ["decisions.id"], name="actions_decision_id_fkey", ondelete="SET NULL"
        ),
    )
    op.create_index("actions_decision_idx", "actions", ["decision_id", "position"], unique=True)
    op.create_index("actions_finished_at_idx", "actions", ["finished_at"])
    op.create_index("actions_gmail_id_idx", "actions", ["account_id", "gmail_id"])
    op.create_index("actions_message_idx", "actions", ["message_id"])
    op.create_index("actions_rule_idx", "actions", ["rule_id", "id"])
    op.create_index("actions_status_idx", "actions", ["status", "id"])
    op.create_table(
        "action_links",
        sa.Column("id", Id, nullable=False),
        sa.Column("cause_action_id", Id, nullable=False),
        sa.Column("effect_action_id", Id, nullable=False),
        sa.Column("relation_type", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="action_links_pkey"),
        sa.CheckConstraint("relation_type IN ('undo_of')", name="relation_type"),
        sa.ForeignKeyConstraint(
            ["effect_action_id"], ["actions.id"], name="action_links_effect_action_id_fkey", ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["cause_action_id"], ["actions.id"], name="action_links_cause_action_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("action_links_cause_idx", "action_links", ["cause_action_id"])
    op.create_index("action_links_effect_idx", "action_links", ["effect_action_id", "relation_type"], unique=True)
    op.create_table(
        "snoozes",
        sa.Column("action_id", Id, nullable=False),
        sa.Column("account_id", Id, nullable=False),
        sa.Column("until", Instant, nullable=False),
        sa.Column("label_id", sa.Text, nullable=False),
        sa.Column("label_name", sa.Text, nullable=False),
        sa.Column("job_id", Id, nullable=False, comment="the job that wakes it"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("action_id", name="snoozes_pkey"),
        sa.CheckConstraint("state IN ('waiting', 'woken', 'canceled')", name="state"),
        sa.ForeignKeyConstraint(["action_id"], ["actions.id"], name="snoozes_action_id_fkey", ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name="snoozes_account_id_fkey", ondelete="CASCADE"),
    )
    op.create_index("snoozes_state_idx", "snoozes", ["state", "until"])
    op.create_table(
        "outbound",
        sa.Column("action_id", Id, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("draft_id", sa.Text),
        sa.Column("draft_message_id", sa.Text, comment="the mailbox's id of the draft's message"),
        sa.Column("draft_thread_id", sa.Text),
        sa.Column("sent_message_id", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("action_id", name="outbound_pkey"),
        sa.CheckConstraint("state IN ('composing', 'drafted', 'sending', 'sent', 'unclear', 'given_up')", name="state"),
        sa.ForeignKeyConstraint(["action_id"], ["actions.id"], name="outbound_action_id_fkey", ondelete="CASCADE"),
    )
    op.create_table(
        "auto_replies",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("address", sa.Text, nullable=False, comment="in its compared form, without a tag"),
        sa.Column("action_id", Id, nullable=False),
        sa.Column("replied_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "address", name="auto_replies_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="auto_replies_account_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_table(
        "approval_notices",
        sa.Column("action_id", Id, nullable=False),
        sa.Column("channel", sa.Text, nullable=False),
        sa.Column("external_message_id", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("action_id", name="approval_notices_pkey"),
        sa.CheckConstraint("state IN ('sending', 'sent', 'closed')", name="state"),
        sa.ForeignKeyConstraint(
            ["action_id"], ["actions.id"], name="approval_notices_action_id_fkey", ondelete="CASCADE"
        ),
    )
