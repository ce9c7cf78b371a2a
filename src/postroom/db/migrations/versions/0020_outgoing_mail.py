"""Mail in the owner's name: its files, the name in its From, and two ends of an action that need no one's attention;
and the notice of a login that has ended.
"""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id

revision = "0020"
down_revision = "0019"

_BEFORE = "'canceled')"
_AFTER = "'canceled', 'refused', 'dismissed')"
_STATUSES = (
    f"status IN ('queued', 'approved_pending', 'executing', 'completed', 'failed', 'rejected', 'expired', {_AFTER}"
)


def upgrade() -> None:
    op.create_table(
        "outgoing_files",
        sa.Column("action_id", Id, sa.ForeignKey("actions.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    op.add_column(
        "accounts",
        sa.Column(
            "login_notice", sa.Text, comment="the message in Discord that says that the login has ended; null: none"
        ),
    )
    op.add_column(
        "accounts", sa.Column("display_name", sa.Text, comment="of its owner, in mail that is sent; null: none")
    )
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint(op.f("actions_status_check"), "actions", type_="check")
        op.create_check_constraint(op.f("actions_status_check"), "actions", _STATUSES)
    else:
        _rewrite_check_on_sqlite()


def _rewrite_check_on_sqlite() -> None:
    """Change the words of the constraint in the schema, as SQLite's documentation says for changes that concern no
    row: a table that others refer to cannot be rebuilt without losing their rows."""
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.exec_driver_sql(
        "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'actions'", (_BEFORE, _AFTER)
    )
    if changed.rowcount != 1:
        raise RuntimeError("the table actions is missing")
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(version) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
