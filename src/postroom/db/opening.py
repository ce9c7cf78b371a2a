"""Opens a database by its address. A driver is imported only if it is the one in use: commands start faster so."""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from postroom.db import schema
from postroom.db.database import Database, Dialect
from postroom.domain.errors import BadInput
from postroom.domain.extras import Extra, require
from postroom.settings import DatabaseSettings


async def connect(url: str, settings: DatabaseSettings | None = None) -> Database:
    """Open the database and bring its schema up to date; a schema from a newer Postroom is refused."""
    settings = settings or DatabaseSettings()
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
    database = unmigrated(parsed, settings)
    try:
        if await database.read(lambda tx: schema.revision(tx.connection)) != schema.HEAD:
            await database.write(lambda tx: schema.upgrade(tx.connection))
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
