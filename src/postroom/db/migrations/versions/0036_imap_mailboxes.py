"""IMAP accounts: where their messages lie, and the journal of what changed."""

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id

revision = "0036"
down_revision = "0031"

_BEFORE = "provider IN ('gmail')"
_AFTER = "provider IN ('gmail', 'imap')"


def upgrade() -> None:
    _providers()
    _journals()
    _folders()
    _places()
    _changes()


def _providers() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.drop_constraint(op.f("accounts_provider_check"), "accounts", type_="check")
        op.create_check_constraint(op.f("accounts_provider_check"), "accounts", _AFTER)
    else:
        _rewrite_check_on_sqlite()


def _rewrite_check_on_sqlite() -> None:
    """As migration 0020 does, and for the same reason: many tables refer to accounts."""
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    changed = connection.exec_driver_sql(
        "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE type = 'table' AND name = 'accounts'",
        (_BEFORE, _AFTER),
    )
    if changed.rowcount != 1:
        raise RuntimeError("the table accounts is missing")
    connection.exec_driver_sql(f"PRAGMA schema_version = {int(version) + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def _account(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["account_id"], ["accounts.id"], name=f"{table}_account_id_fkey", ondelete="CASCADE")


def _number(name: str, comment: str | None = None) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, autoincrement=False, comment=comment)


def _text(name: str, comment: str | None = None) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, comment=comment)


def _journals() -> None:
    op.create_table(
        "mailbox_journals",
        sa.Column("account_id", Id, nullable=False),
        _text("epoch", "part of every cursor; another journal has another"),
        _number("generation", "raised with every change"),
        _number("entries", "how many were written"),
        _number("floor", "changes up to this generation are forgotten"),
        _text("keywords", "that messages have or had, separated by spaces"),
        sa.PrimaryKeyConstraint("account_id", name="mailbox_journals_pkey"),
        _account("mailbox_journals"),
    )


def _folders() -> None:
    op.create_table(
        "mailbox_folders",
        sa.Column("account_id", Id, nullable=False),
        _text("folder_id", "stays when the folder is renamed"),
        _text("wire_name", "as the server writes it"),
        _text("delimiter"),
        _text("role"),
        _number("uidvalidity", "0: it was never looked into"),
        _number("uidnext"),
        sa.Column("modseq", sa.BigInteger, comment="null: the server counts no changes"),
        sa.Column("messages", sa.Integer, nullable=False),
        sa.Column("revision", sa.Integer, nullable=False, comment="raised with every change of the row"),
        sa.CheckConstraint(
            "role IN ('inbox', 'sent', 'drafts', 'trash', 'spam', 'archive', 'all', 'user')",
            name="role",
        ),
        sa.PrimaryKeyConstraint("account_id", "folder_id", name="mailbox_folders_pkey"),
        _account("mailbox_folders"),
    )


def _places() -> None:
    op.create_table(
        "mailbox_places",
        sa.Column("account_id", Id, nullable=False),
        _text("folder_id"),
        _number("uidvalidity"),
        _number("uid"),
        sa.Column("message_id", sa.Text, comment="the hash of its bytes; null: they were not read yet"),
        _text("flags", "in small letters, separated by spaces"),
        _number("received_s"),
        _number("size"),
        _text("email_id", "RFC 8474; empty: the server has none"),
        _text("header_id", "its Message-ID, hashed; empty: none, or not read yet"),
        sa.Column("provisional", sa.Boolean, nullable=False, comment="matched without its bytes"),
        _number("seen", "the generation in which it was first seen"),
        sa.PrimaryKeyConstraint("account_id", "folder_id", "uidvalidity", "uid", name="mailbox_places_pkey"),
        _account("mailbox_places"),
    )
    op.create_index("mailbox_places_message_idx", "mailbox_places", ["account_id", "message_id"])
    op.create_index("mailbox_places_received_idx", "mailbox_places", ["account_id", "received_s"])


def _changes() -> None:
    op.create_table(
        "mailbox_changes",
        sa.Column("account_id", Id, nullable=False),
        _number("number"),
        _number("generation"),
        _text("message_id"),
        _text("kind"),
        _text("added", "label ids, separated by spaces"),
        _text("removed"),
        _text("labels", "all labels afterwards"),
        sa.CheckConstraint("kind IN ('added', 'deleted', 'relabelled')", name="kind"),
        sa.PrimaryKeyConstraint("account_id", "number", name="mailbox_changes_pkey"),
        _account("mailbox_changes"),
    )
    op.create_index("mailbox_changes_generation_idx", "mailbox_changes", ["account_id", "generation"])
