"""Review as a list that can be worked off, and rules applied to past mail."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    _review()
    _applications()


def _review() -> None:
    op.add_column("decisions", sa.Column("review_cause", sa.Text, comment="why a person has to look at it"))
    op.add_column("decisions", sa.Column("reviewed_at", Instant, comment="when a person was done with it"))
    op.add_column("decisions", sa.Column("reviewed_by", sa.Text))
    still_open = sa.text("needs_review AND reviewed_at IS NULL")
    op.create_index("decisions_review_idx", "decisions", ["id"], postgresql_where=still_open, sqlite_where=still_open)


def _applications() -> None:
    op.add_column(
        "actions",
        sa.Column("application_id", Id, comment="the application of a rule to past mail; null: it is of none"),
    )
    op.add_column("actions", sa.Column("subject", sa.Text, comment="of its message, where only the archive has that"))
    op.add_column("actions", sa.Column("sender", sa.Text, comment="the same"))
    op.create_index("actions_application_idx", "actions", ["application_id", "id"])
    op.create_table(
        "rule_applications",
        sa.Column("id", Id, nullable=False),
        sa.Column("rule_id", Id, nullable=False, comment="which may be gone"),
        sa.Column("rule_name", sa.Text, nullable=False),
        sa.Column("rule", Json, nullable=False, comment="as it was when it was applied"),
        sa.Column(
            "query",
            sa.Text,
            nullable=False,
            comment="the search that chooses the mail; empty: all",
        ),
        sa.Column("mailbox", sa.Text, comment="null: every mailbox"),
        sa.Column("cap", sa.Integer, nullable=False, comment="the most messages that it acts on"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("total", sa.Integer, nullable=False, comment="how many messages the search found at the start"),
        sa.Column("looked_at", sa.Integer, nullable=False, server_default="0"),
        sa.Column("acted_on", sa.Integer, nullable=False, server_default="0"),
        sa.Column(
            "left_alone",
            sa.Integer,
            nullable=False,
            server_default="0",
            comment="matched, but gone or acted on before",
        ),
        sa.Column("cursor", sa.Text, comment="where the search goes on; null: at its start"),
        sa.Column("reason", sa.Text, comment="why it is not at work, for people"),
        sa.Column("requested_by", sa.Text, nullable=False),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("finished_at", Instant),
        sa.PrimaryKeyConstraint("id", name="rule_applications_pkey"),
        sa.CheckConstraint("state IN ('running', 'completed', 'capped', 'stopped', 'failed', 'undone')", name="state"),
    )
    op.create_index("rule_applications_rule_idx", "rule_applications", ["rule_id", "id"])
