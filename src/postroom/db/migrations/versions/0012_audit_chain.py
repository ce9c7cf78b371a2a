"""The audit log becomes a chain of seals. Older entries are sealed as the first sealer finds them."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant

revision = "0012"
down_revision = "0011"

_REFUSAL = "the audit log is append-only"


def upgrade() -> None:
    op.create_table(
        "audit_pending",
        sa.Column("entry_id", Id, nullable=False),
        sa.PrimaryKeyConstraint("entry_id", name="audit_pending_pkey"),
    )
    op.create_table(
        "audit_seals",
        sa.Column("position", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("entry_id", Id, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False, comment="which key of the vault made the seal"),
        sa.Column("sealed_at", sa.Text, nullable=False, comment="a text because the seal covers it letter by letter"),
        sa.Column("mac", sa.Text, nullable=False, comment="HMAC-SHA256 in hex"),
        sa.PrimaryKeyConstraint("position", name="audit_seals_pkey"),
    )
    op.create_index("audit_seals_entry_id_idx", "audit_seals", ["entry_id"], unique=True)
    op.create_table(
        "audit_chain",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("position", sa.BigInteger, nullable=False, comment="of the last seal; 0: there is none"),
        sa.Column("mac", sa.Text, nullable=False),
        sa.Column("sealed_at", Instant),
        sa.Column("key_id", sa.Text, comment="the key for new seals; null until the first one"),
        sa.Column("holder", sa.Text, comment="the sealer at work"),
        sa.Column("fence", sa.BigInteger, nullable=False, comment="grows with each change of sealer"),
        sa.Column("verified_at", Instant, comment="when `postroom audit verify` last ran"),
        sa.Column("verified_position", sa.BigInteger),
        sa.Column("verified_problems", sa.Integer),
        sa.PrimaryKeyConstraint("id", name="audit_chain_pkey"),
    )
    op.execute("INSERT INTO audit_pending (entry_id) SELECT id FROM audit_log")
    if op.get_context().dialect.name == "postgresql":
        op.execute(
            "CREATE TRIGGER audit_seals_refuse BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_seals "
            "FOR EACH STATEMENT EXECUTE FUNCTION audit_log_refuse()"
        )
    else:
        _guard_on_sqlite()


def _guard_on_sqlite() -> None:
    """`INSERT OR REPLACE` removes the row that stands in its way without asking the triggers on DELETE."""
    for change in ("UPDATE", "DELETE"):
        _refuse(f"audit_seals_refuse_{change.lower()}", f"{change} ON audit_seals")
    for table, keys in (("audit_log", ("id",)), ("audit_seals", ("position", "entry_id"))):
        taken = " OR ".join(f"{key} = NEW.{key}" for key in (*keys, "rowid"))
        found = f"EXISTS (SELECT 1 FROM {table} WHERE {taken})"  # noqa: S608 (names of our own)
        _refuse(f"{table}_refuse_replace", f"INSERT ON {table} WHEN {found}")


def _refuse(name: str, what: str) -> None:
    op.execute(f"CREATE TRIGGER {name} BEFORE {what} BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END")
