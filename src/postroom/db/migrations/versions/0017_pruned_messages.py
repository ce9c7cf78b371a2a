"""What is left of pruned mail, so that it is not taken in again; retention by when mail was taken in; a first day for
each category of a backfill job, and the turn that it has."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    on_postgres = op.get_context().dialect.name == "postgresql"
    op.create_table(
        "pruned_messages",
        sa.Column("idempotency_key", sa.Text, primary_key=True),
        sa.Column("request_id", Id, nullable=False, comment="the one that brought it"),
        sa.Column("backfill_job_id", Id, comment="null: live mail"),
        sa.Column("pruned_at", Instant, nullable=False),
    )
    op.create_index("pruned_messages_backfill_job_id_idx", "pruned_messages", ["backfill_job_id"])
    op.drop_index("messages_retention_idx", "messages")
    op.create_index("messages_retention_idx", "messages", ["ingestion_tier", "accepted_at", "id"])
    name, schema = ("backfill_jobs", "switchboard") if on_postgres else ("switchboard_backfill_jobs", None)
    first_days = sa.Column(
        "category_from",
        Json,
        nullable=False,
        server_default="{}",
        comment="the first day of a category that begins later than the job",
    )
    op.add_column(name, first_days, schema=schema)
    turns = "of an active job; of a pending one: it gave up its turn then"
    op.add_column(name, sa.Column("turn_ends_at", Instant, comment=turns), schema=schema)
