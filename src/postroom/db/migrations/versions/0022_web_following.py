"""Web sources beside the file; feeds and single pages; pages that are checked again by a schedule of their own.

A cap of a run counts what is new to it, so the constraint does too.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op

from postroom.db.types import Id, Instant, Json

revision = "0022"
down_revision = "0021"

_MODES = "mode IN ('SITEMAP', 'ARCHIVE', 'PAGINATION', 'FEED', 'PAGE')"
_CAP = "discovered_count - skipped_count <= max_urls"
_OF_ENDPOINT: tuple[tuple[str, Any, str], ...] = (
    ("looked_at", Instant, "when the sentinel last looked, to the end or not"),
    ("follow_since", Instant, "what the first listing dates before is left to a backfill"),
    ("listed_at", Instant, "when the first listing was complete: from then on, unknown means new"),
    ("behind_since", Instant, "the first look of those that did not reach the end; null: none is owed"),
)
_OF_ITEM: tuple[tuple[str, Any, str], ...] = (
    ("checked_at", Instant, "when the page was last fetched or verified"),
    ("changed_at", Instant, "when it was last found to have changed"),
    ("check_every_h", sa.Integer, "hours between two checks; follows how often the page changes"),
    ("check_at", Instant, "when it is due to be checked again"),
)


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        _change_on_postgres()
    else:
        _rebuild_on_sqlite()
    for name, kind, comment in _OF_ENDPOINT:
        op.add_column("web_endpoints", sa.Column(name, kind, comment=comment))
    for name, kind, comment in _OF_ITEM:
        op.add_column("discovered_items", sa.Column(name, kind, comment=comment))
    # Pages that are there already are due from their last fetch on; each look takes some of them.
    op.execute("UPDATE discovered_items SET checked_at = updated_at, check_at = updated_at WHERE status = 'FETCHED'")
    op.create_index("discovered_items_check_idx", "discovered_items", ["endpoint_id", "check_at"])
    _create_tables()


def _create_tables() -> None:
    op.create_table(
        "web_sources",
        sa.Column("slug", sa.Text, nullable=False),
        sa.Column("definition", Json, comment="as in the file; null: the source is in the file alone"),
        sa.Column("paused", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("notified_at", Instant, comment="what came before was reported"),
        sa.Column("created_by", sa.Text),
        sa.Column("created_at", Instant, nullable=False),
        sa.Column("updated_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("slug", name="web_sources_pkey"),
    )
    op.create_table(
        "web_list_pages",
        sa.Column("endpoint_id", Id, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("etag", sa.Text),
        sa.Column("last_modified", sa.Text),
        sa.Column("digest", sa.Text, nullable=False, comment="of what it lists"),
        sa.Column("following", Json, nullable=False, comment="the pages that it leads to"),
        sa.Column("checked_at", Instant, nullable=False),
        sa.Column("changed_at", Instant),
        sa.Column("check_every_h", sa.Integer, nullable=False),
        sa.Column("check_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("endpoint_id", "url", name="web_list_pages_pkey"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["web_endpoints.id"], name="web_list_pages_endpoint_id_fkey", ondelete="CASCADE"
        ),
    )
    op.create_index("web_list_pages_check_idx", "web_list_pages", ["endpoint_id", "check_at"])
    op.create_table(
        "web_older_pages",
        sa.Column("endpoint_id", Id, nullable=False),
        sa.Column("url_hash", sa.Text, nullable=False, comment="sha1 of the canonical url, in hex"),
        sa.PrimaryKeyConstraint("endpoint_id", "url_hash", name="web_older_pages_pkey"),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["web_endpoints.id"], name="web_older_pages_endpoint_id_fkey", ondelete="CASCADE"
        ),
    )


def _change_on_postgres() -> None:
    for table, name, condition in (
        ("web_endpoints", "mode", _MODES),
        ("backfill_runs", "mode", _MODES),
        ("backfill_runs", "cap", _CAP),
    ):
        op.drop_constraint(name, table, type_="check")
        op.create_check_constraint(name, table, condition)


_REBUILT = ("web_endpoints", "backfill_runs", "discovered_items", "backfill_run_urls")
_OLD_MODES = "mode IN ('SITEMAP', 'ARCHIVE', 'PAGINATION')"
_OLD_CAP = "discovered_count <= max_urls"


def _rebuild_on_sqlite() -> None:
    """SQLite cannot change a check. A table that is renamed takes the references to it along, so the tables that refer
    to these two are made anew as well; each statement that made a table or an index makes the new one."""
    query = sa.text("SELECT type, name, sql FROM sqlite_master WHERE tbl_name IN :tables AND sql IS NOT NULL")
    made_by = op.get_bind().execute(query.bindparams(sa.bindparam("tables", _REBUILT, expanding=True)))
    statements = {(kind, name): statement for kind, name, statement in made_by}
    indexes = {name: statement for (kind, name), statement in statements.items() if kind == "index"}
    for name in indexes:
        op.execute(f"DROP INDEX {name}")
    for table in _REBUILT:
        op.rename_table(table, f"{table}_before")
    for table in _REBUILT:
        made = statements["table", table].replace(_OLD_MODES, _MODES).replace(_OLD_CAP, _CAP)
        op.execute(sa.text(made.replace(":", r"\:")))
        op.execute(f"INSERT INTO {table} SELECT * FROM {table}_before")  # noqa: S608 (names of ours)
    for table in reversed(_REBUILT):
        op.drop_table(f"{table}_before")
    for statement in indexes.values():
        op.execute(statement)
