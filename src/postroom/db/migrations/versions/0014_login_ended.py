"""Since when an account's login is refused: its jobs wait from then on."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Instant

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.add_column(
        "accounts", sa.Column("login_ended_at", Instant, comment="null: the login is good, as far as is known")
    )
