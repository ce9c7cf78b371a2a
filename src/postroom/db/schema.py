"""Brings a database's schema to the version of this code, and refuses one that is ahead of it."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from postroom.domain.errors import NewerSchema

HEAD = "0014"

_MIGRATIONS = Path(__file__).parent / "migrations"
_UPGRADE_LOCK = 0x706F7374  # an arbitrary number that all Postroom processes agree on


def revision(connection: Connection) -> str | None:
    """The schema version of this database; None for an empty one."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def upgrade(connection: Connection, target: str = HEAD) -> None:
    """Run the missing migrations within the caller's transaction; processes that start together take turns."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
    current = revision(connection)
    if current == target:
        return

    # Alembic is slow to import and needed only here, once in the life of a schema version.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is not None and current not in known:
        raise NewerSchema(
            f"This database has schema version {current}, and this Postroom knows versions up to {HEAD}. "
            "Upgrade Postroom, or restore a backup made by this version."
        )
    command.upgrade(config, target)
