"""The archive of an installation, as its settings say."""

from __future__ import annotations

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from postroom.archive.files import FilesPlace
from postroom.archive.place import ArchivePlace
from postroom.db import Dialect
from postroom.domain.errors import BadInput
from postroom.settings import Settings


def open_place(settings: Settings) -> ArchivePlace:
    """To be closed after use."""
    if settings.archive.store == "files":
        return FilesPlace(settings.home / "archive", settings.archive)
    try:
        url = make_url(settings.database_url)
    except ArgumentError:
        raise BadInput("database.url", "is not a database address such as postgresql://user@host/name") from None
    if url.get_backend_name() != Dialect.POSTGRESQL:
        raise BadInput(
            "archive.store",
            'is "database", which needs PostgreSQL: set database.url to an address such as '
            'postgresql://user@host/name, or archive.store to "files"',
        )
    from postroom.archive.postgres.place import DatabasePlace  # the driver is slow to load, and files do not need it

    return DatabasePlace(url)
