"""One ledger for all model spend: money is reserved for calls under way only, and mail waits for it in line."""

from collections import defaultdict
from datetime import UTC, date, datetime

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    _add_columns()
    _add_tables()
    _close_old_reservations()
    _list_undecided()
    op.drop_table("backfill_reservations")


def _add_columns() -> None:
    on_postgres = op.get_context().dialect.name == "postgresql"
    jobs, schema = ("backfill_jobs", "switchboard") if on_postgres else ("switchboard_backfill_jobs", None)
    uses_model = sa.Column(
        "uses_model", sa.Boolean, nullable=False, server_default=sa.text("true"), comment="false: rules decide alone"
    )
    walked = "since when all of its mail is in, and only decisions are missing"
    op.add_column(jobs, uses_model, schema=schema)
    op.add_column(jobs, sa.Column("walked_at", Instant, comment=walked), schema=schema)
    reported = sa.Column("reported_microdollars", sa.BigInteger, nullable=False, server_default="0")
    op.add_column("backfill_spend", reported)
    kept = "kept until the message is decided, so that it is not bought again"
    op.add_column("model_calls", sa.Column("answer", Json, comment=kept))
    if on_postgres:
        own = "the connector's own spend"
        op.alter_column(jobs, "reported_cost_cents", comment=own, schema=schema)


def _add_tables() -> None:
    op.create_table(
        "model_spend",
        sa.Column("day", sa.Date, nullable=False, comment="of the zone that caps turn in"),
        sa.Column("reserved_microdollars", sa.BigInteger, nullable=False),
        sa.Column("settled_microdollars", sa.BigInteger, nullable=False),
        sa.Column("backfill_reserved_microdollars", sa.BigInteger, nullable=False),
        sa.Column("backfill_settled_microdollars", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("day", name="model_spend_pkey"),
    )
    op.create_table(
        "model_reservations",
        sa.Column("call_id", Id, nullable=False),
        sa.Column("backfill_job_id", Id),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("most_microdollars", sa.BigInteger, nullable=False),
        sa.Column("settled_microdollars", sa.BigInteger, comment="what it cost, or its most while that is uncertain"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("deadline", Instant, nullable=False, comment="past it the call is settled at its most"),
        sa.Column("reserved_at", Instant, nullable=False),
        sa.Column("closed_at", Instant),
        sa.PrimaryKeyConstraint("call_id", name="model_reservations_pkey"),
        sa.CheckConstraint("state IN ('reserved', 'settled', 'uncertain')", name="state"),
    )
    for name, column, state in (("open", "deadline", "reserved"), ("uncertain", "backfill_job_id", "uncertain")):
        where = sa.text(f"state = '{state}'")
        index = f"model_reservations_{name}_idx"
        op.create_index(index, "model_reservations", [column], postgresql_where=where, sqlite_where=where)
    op.create_table(
        "spend_limits",
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("microdollars", sa.BigInteger, nullable=False),
        sa.Column("changed_at", Instant, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("name", name="spend_limits_pkey"),
    )
    op.create_table(
        "undecided_mail",
        sa.Column("message_id", Id, nullable=False),
        sa.Column("backfill_job_id", Id, comment="null: live mail"),
        sa.Column("queue_job_id", Id, nullable=False, comment="the job that decides it"),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.PrimaryKeyConstraint("message_id", name="undecided_mail_pkey"),
        sa.ForeignKeyConstraint(
            ["message_id"], ["messages.id"], name="undecided_mail_message_id_fkey", ondelete="CASCADE"
        ),
        sa.CheckConstraint("state IN ('open', 'waiting', 'unjudged')", name="state"),
    )
    op.create_index("undecided_mail_backfill_job_id_idx", "undecided_mail", ["backfill_job_id", "state"])


_calls = sa.table(
    "model_calls",
    sa.column("id", Id),
    sa.column("message_id", Id),
    sa.column("backfill_job_id", Id),
    sa.column("cost_microdollars", sa.BigInteger),
    sa.column("outcome", sa.Text),
    sa.column("error", sa.Text),
    sa.column("created_at", Instant),
)
_old = sa.table(
    "backfill_reservations",
    sa.column("job_id", Id),
    sa.column("message_ref", sa.Text),
    sa.column("day", sa.Date),
    sa.column("settled_microdollars", sa.BigInteger),
    sa.column("state", sa.Text),
)
_spend = sa.table(
    "backfill_spend",
    sa.column("job_id", Id),
    sa.column("day", sa.Date),
    sa.column("reserved_microdollars", sa.BigInteger),
    sa.column("settled_microdollars", sa.BigInteger),
)


def _close_old_reservations() -> None:
    """Money was reserved when mail came in; now only calls hold any. A call without an end counts at its most; what it
    and its like cost is settled on the day that had it reserved."""
    run = op.get_bind().execute
    lost = {"outcome": "lost", "error": "the process ended before the answer was written down; counted at its most"}
    run(sa.update(_calls).where(_calls.c.outcome == "started").values(**lost))
    settled: dict[tuple[str, str], int] = defaultdict(int)
    first_day: dict[tuple[str, str], date] = {}
    for row in run(sa.select(_old).order_by(_old.c.job_id, _old.c.message_ref)):
        message = (str(row.job_id), row.message_ref.partition("#")[0])
        settled[message] += row.settled_microdollars or 0
        if row.state == "reserved":
            first_day.setdefault(message, row.day)
    spent = sa.func.sum(_calls.c.cost_microdollars)
    for (job_id, message_id), day in first_day.items():
        total = int(run(sa.select(spent).where(_calls.c.message_id == message_id)).scalar() or 0)
        due = max(0, total - settled[job_id, message_id])
        here = (_spend.c.job_id == job_id) & (_spend.c.day == day)
        run(sa.update(_spend).where(here).values(settled_microdollars=_spend.c.settled_microdollars + due))
    run(sa.update(_spend).values(reserved_microdollars=0))


_messages = sa.table(
    "messages",
    sa.column("id", Id),
    sa.column("account_id", Id),
    sa.column("endpoint_identity", sa.Text),
    sa.column("backfill_job_id", Id),
)
_decisions = sa.table("decisions", sa.column("message_id", Id))
_jobs = sa.table("jobs", sa.column("id", Id), sa.column("idempotency_key", sa.Text), sa.column("state", sa.Text))
_undecided = sa.table(
    "undecided_mail",
    sa.column("message_id", Id),
    sa.column("backfill_job_id", Id),
    sa.column("queue_job_id", Id),
    sa.column("state", sa.Text),
    sa.column("since", Instant),
)


def _list_undecided() -> None:
    """Mail of backfill jobs that nothing has decided yet."""
    run = op.get_bind().execute
    decided = sa.exists().where(_decisions.c.message_id == _messages.c.id)
    query = sa.select(_messages).where(_messages.c.backfill_job_id.is_not(None), ~decided)
    for row in run(query).all():
        key = f"classify:{row.account_id or row.endpoint_identity}:{row.id}"
        job = run(sa.select(_jobs.c.id, _jobs.c.state).where(_jobs.c.idempotency_key == key)).one_or_none()
        if job is not None:
            values = {"message_id": row.id, "backfill_job_id": row.backfill_job_id, "queue_job_id": job.id}
            state = "open" if job.state in ("queued", "running") else "unjudged"
            run(sa.insert(_undecided).values(**values, state=state, since=datetime.now(UTC)))
