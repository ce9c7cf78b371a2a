"""What tokens may be used for and which token made them, when a login last gave the passphrase, contacts by mailbox.

Tokens from before keep what they could do: every permission of their role. Nothing tells which contact belongs to which
mailbox yet; the next export of contacts looks it up in sent mail.
"""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0011"
down_revision = "0010"

_OF_ROLE = {
    "dashboard": ["read", "backfill", "act", "approve", "rules", "web", "accounts", "settings", "tokens"],
    "connector": ["ingest", "contacts", "backfill"],
    "agent": ["read", "search", "fetch"],
}


def upgrade() -> None:
    permissions = sa.Column(
        "permissions", Json, nullable=False, server_default="[]", comment="what it may be used for, by name"
    )
    op.add_column("access_tokens", permissions)
    op.add_column("access_tokens", sa.Column("made_by", Id, comment="the token that made it; null: the owner"))
    op.create_index("access_tokens_made_by_idx", "access_tokens", ["made_by"])
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        op.alter_column("access_tokens", "endpoint_identity", comment="good for this mailbox only; null: for all")
    table = sa.table("access_tokens", sa.column("role", sa.Text), sa.column("permissions", Json))
    for role, all_of_it in _OF_ROLE.items():
        op.execute(table.update().where(table.c.role == role).values(permissions=all_of_it))
    proved = sa.Column("proved_at", Instant, comment="when the passphrase was last given in it")
    op.add_column("dashboard_sessions", proved)
    op.create_table(
        "contact_mailboxes",
        sa.Column("mailbox", sa.Text, primary_key=True),
        sa.Column("address", sa.Text, primary_key=True, comment="in its compared form"),
    )
