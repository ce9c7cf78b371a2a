"""Contacts without priority and removed ones, former names of labels, mailboxes that a rule is off for, and one row for
each connector of a mailbox. In rules, `6m` was six months and is six minutes now: what is stored becomes `6mo`.
"""

import json
import re
from typing import Any

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0019"
down_revision = "0018"

_INSTANCE = "a mailbox may have several connectors"
_OFF_FOR = "by account id, why Postroom switched it off there"


def upgrade() -> None:
    op.add_column(
        "contacts",
        sa.Column(
            "has_priority",
            sa.Boolean,
            nullable=False,
            server_default=sa.text("true"),
            comment="raises the tier of its mail",
        ),
    )
    op.create_table(
        "removed_contacts",
        sa.Column("address", sa.Text, nullable=False, comment="in its compared form"),
        sa.Column("removed_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("address", name="removed_contacts_pkey"),
    )
    op.create_table(
        "former_label_names",
        sa.Column("account_id", Id, nullable=False),
        sa.Column("name", sa.Text, nullable=False, comment="in its compared form"),
        sa.Column("label_id", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("account_id", "name", name="former_label_names_pkey"),
        sa.ForeignKeyConstraint(
            ["account_id"], ["accounts.id"], name="former_label_names_account_id_fkey", ondelete="CASCADE"
        ),
    )
    op.add_column("rules", sa.Column("off_for", Json, nullable=False, server_default="{}", comment=_OFF_FOR))
    op.create_index("messages_accepted_at_idx", "messages", ["accepted_at"])
    _spell_out_months()
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint("connectors_pkey", "connectors", type_="primary")
        op.alter_column("connectors", "instance", comment=_INSTANCE)
        op.create_primary_key("connectors_pkey", "connectors", ["connector_type", "endpoint_identity", "instance"])
    else:
        _rebuild_connectors_on_sqlite()


def _spell_out_months() -> None:
    """A condition that cannot be read is left as it is."""
    connection = op.get_bind()
    rules = sa.table("rules", sa.column("id", sa.Text), sa.column("condition", sa.Text))
    stored = sa.cast(rules.c.condition, sa.Text)
    for row in connection.execute(sa.select(sa.cast(rules.c.id, sa.Text).label("id"), stored.label("condition"))).all():
        try:
            before = json.loads(row.condition)
        except ValueError:
            continue
        after = _in_months(before)
        if after != before:
            written = sa.cast(sa.literal(json.dumps(after)), Json()) if _is_postgres() else json.dumps(after)
            same = sa.cast(rules.c.id, sa.Text) == row.id
            connection.execute(sa.update(rules).where(same).values(condition=written))


def _is_postgres() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _in_months(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _in_months(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_in_months(each, key) for each in value]
    if isinstance(value, str) and key in ("older_than", "younger_than"):
        return re.sub(r"^(\s*[0-9]{1,5})[mM](\s*)$", r"\1mo\2", value)
    return value


def _rebuild_connectors_on_sqlite() -> None:
    """SQLite cannot change a primary key."""
    op.rename_table("connectors", "connectors_before")
    op.create_table(
        "connectors",
        sa.Column("connector_type", sa.Text, nullable=False),
        sa.Column("endpoint_identity", sa.Text, nullable=False),
        sa.Column("instance", sa.Text, nullable=False, comment=_INSTANCE),
        sa.Column("version", sa.Text, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("counters", Json, nullable=False, server_default="{}"),
        sa.Column("checkpoint", Json),
        sa.Column("capabilities", Json, nullable=False, server_default="[]"),
        sa.Column("first_seen_at", Instant, nullable=False),
        sa.Column("last_heartbeat_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("connector_type", "endpoint_identity", "instance", name="connectors_pkey"),
    )
    columns = (
        "connector_type, endpoint_identity, instance, version, status, counters, checkpoint, capabilities, "
        "first_seen_at, last_heartbeat_at"
    )
    op.execute(f"INSERT INTO connectors ({columns}) SELECT {columns} FROM connectors_before")  # noqa: S608
    op.drop_table("connectors_before")
