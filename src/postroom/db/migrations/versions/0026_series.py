"""Series over time: mail, decisions, spend, the queue and the sync, by minute, hour and day."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Instant

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.create_table(
        "series_buckets",
        sa.Column("resolution", sa.Text, nullable=False),
        sa.Column("start", Instant, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column(
            "bound", sa.Integer, nullable=False, autoincrement=False, comment="of a histogram; 0: not a length of time"
        ),
        sa.Column("count", sa.BigInteger, nullable=False),
        sa.Column("total", sa.Double, nullable=False),
        sa.Column("most", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("resolution", "start", "name", "bound", name="series_buckets_pkey"),
        sa.CheckConstraint("resolution IN ('minute', 'hour', 'day')", name="resolution"),
    )
