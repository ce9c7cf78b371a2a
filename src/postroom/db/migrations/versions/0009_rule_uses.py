"""How often rules were used, without looking at all that they did."""

from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    first = text("position = 0 AND origin = 'rule'")
    op.create_index(
        "actions_rule_use_idx", "actions", ["rule_id", "created_at"], postgresql_where=first, sqlite_where=first
    )
