"""Local triage that learns: its models, examples and rights; and decisions that say they were learned."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0024"
down_revision = "0023"

_BEFORE = "source IN ('deterministic', 'llm', 'none')"
_AFTER = "source IN ('deterministic', 'llm', 'none', 'learned')"


def upgrade() -> None:
    _decisions()
    _learners()
    _examples()
    _rights()


def _decisions() -> None:
    why = "of a learned decision: what spoke for it, without words of the mail"
    op.add_column("decisions", sa.Column("explanation", Json, comment=why))
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint(op.f("decisions_source_check"), "decisions", type_="check")
        op.create_check_constraint(op.f("decisions_source_check"), "decisions", _AFTER)
    else:
        _rewrite_check_on_sqlite()


def _rewrite_check_on_sqlite() -> None:
    """As migration 0020 does, and for the same reason: actions refer to decisions."""
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.exec_driver_sql(
        "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'decisions'",
        (_BEFORE, _AFTER),
    )
    if changed.rowcount != 1:
        raise RuntimeError("the table decisions is missing")
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(version) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def _account(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=f"{table}_account_id_fkey", ondelete="CASCADE")


def _count(name: str, comment: str | None = None, kind: type[sa.Integer] = sa.Integer) -> sa.Column[int]:
    return sa.Column(name, kind, nullable=False, server_default="0", comment=comment)


def _learners() -> None:
    op.create_table(
        "learners",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False, comment="of the key that facts are hashed with"),
        sa.Column("teacher", sa.Text, comment="a hash of the model's name and the owner's instructions to it"),
        _count("last_seq", "of the latest label", sa.BigInteger),
        sa.Column("model", sa.LargeBinary, comment="weights by hashed fact, up to `fitted_seq`"),
        sa.Column("calibration", Json, nullable=False, server_default="[]"),
        _count("fitted_seq", None, sa.BigInteger),
        sa.Column("fitted_at", Instant),
        _count("asked", "messages that the model decided", sa.BigInteger),
        _count("asked_microdollars", "and what they cost", sa.BigInteger),
        sa.Column("verdicts_until", Id, comment="the last entry of the audit log that was looked at"),
        sa.PrimaryKeyConstraint("account_id", name="learners_pkey"),
        _account("learners"),
    )


def _examples() -> None:
    table = "learned_examples"
    op.create_table(
        table,
        sa.Column("id", Id, nullable=False),
        sa.Column("account_id", Id, nullable=False),
        sa.Column("message_id", Id),
        sa.Column("facts", sa.LargeBinary, nullable=False, comment="keyed hashes of 64 bits"),
        sa.Column("kind", sa.BigInteger, comment="keyed hash of the authenticated domain; null: not authenticated"),
        sa.Column(
            "teachable",
            sa.Boolean,
            nullable=False,
            comment="false: suspicious or not authenticated, so never a label",
        ),
        sa.Column("guess", sa.Text, comment="what the learner would have answered"),
        sa.Column("confidence", sa.Double),
        sa.Column("answer", sa.Text, comment="the label; null: there is none"),
        sa.Column("source", sa.Text, comment="whose label it is"),
        sa.Column("seq", sa.BigInteger, comment="the order in which labels came; a corrected one gets a new number"),
        sa.Column("held_out", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column(
            "labels_then",
            Json,
            nullable=False,
            server_default="[]",
            comment="in the mailbox, when it was considered",
        ),
        sa.Column("created_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name=f"{table}_pkey"),
        _account(table),
        sa.ForeignKeyConstraint(["message_id"], ["messages.id"], name=f"{table}_message_id_fkey", ondelete="SET NULL"),
        sa.CheckConstraint("source IN ('model', 'owner')", name="source"),
        sa.CheckConstraint("(answer IS NULL) = (seq IS NULL)", name="label_has_seq"),
        sa.CheckConstraint("teachable OR answer IS NULL", name="label_is_teachable"),
    )
    op.create_index(f"{table}_message_id_idx", table, ["message_id"], unique=True)
    op.create_index(f"{table}_seq_idx", table, ["account_id", "seq"], unique=True)
    op.create_index(f"{table}_kind_idx", table, ["account_id", "kind", "answer"])


def _rights() -> None:
    op.create_table(
        "learned_rights",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("answer", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column(
            "recent", sa.Text, nullable=False, comment="held-out comparisons in this state: = agreed, x differed"
        ),
        sa.Column("since", Instant, nullable=False),
        _count("compared", "in shadow, ever"),
        _count("differed"),
        _count("checked", "with the right, ever"),
        _count("check_differed"),
        _count("decided", "without the model"),
        _count("saved_microdollars", None, sa.BigInteger),
        sa.PrimaryKeyConstraint("account_id", "answer", name="learned_rights_pkey"),
        _account("learned_rights"),
        sa.CheckConstraint("state IN ('shadow', 'earned', 'lost')", name="state"),
    )
