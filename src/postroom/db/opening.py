"""Opens a database by its address and brings its schema to the version of this code; a newer schema is refused.

A driver is imported only if it is the one in use, and SQLAlchemy only with a driver, so that commands start faster.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from postroom.db.database import Database, Dialect
from postroom.domain.errors import BadInput, NewerSchema
from postroom.domain.extras import Extra, require
from postroom.settings import DatabaseSettings

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.engine import URL

SCHEMA_HEAD = "0044"

_MIGRATIONS = Path(__file__).parent / "migrations"
CURRENT_REVISION = "SELECT version_num FROM alembic_version"
_UPGRADE_LOCK = 0x706F7374  # an arbitrary number that all Postroom processes agree on


def schema_revision(connection: Connection) -> str | None:
    """The schema version of this database; None for an empty one."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.exec_driver_sql(CURRENT_REVISION).scalar()


def upgrade_schema(connection: Connection, target: str = SCHEMA_HEAD) -> None:
    """Run the missing migrations within the caller's transaction; processes that start together take turns."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_UPGRADE_LOCK})")
    current = schema_revision(connection)
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
            f"This database has schema version {current}, and this Postroom knows versions up to {SCHEMA_HEAD}. "
            "Upgrade Postroom, or restore a backup made by this version."
        )
    command.upgrade(config, target)


async def connect(url: str, settings: DatabaseSettings | None = None) -> Database:
    """Open the database and bring its schema up to date; a schema from a newer Postroom is refused."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    settings = settings or DatabaseSettings()
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
    database = unmigrated(parsed, settings)
    try:
        if await database.read(lambda tx: schema_revision(tx.connection)) != SCHEMA_HEAD:
            await database.write(lambda tx: upgrade_schema(tx.connection))
    except BaseException:
        await database.close()
        raise
    return database


def unmigrated(url: URL, settings: DatabaseSettings) -> Database:
    """The database as it stands, whatever its schema."""
    match url.get_backend_name():
        case Dialect.SQLITE:
            from postroom.db.sqlite import SqliteDatabase

            return SqliteDatabase(url, settings)
        case Dialect.POSTGRESQL:
            require(Extra.POSTGRES, "A database.url of PostgreSQL")
            from postroom.db.postgres import PostgresDatabase

            return PostgresDatabase(url, settings)
        case other:
            raise BadInput("database.url", f"{other} is not supported; use sqlite or postgresql")
