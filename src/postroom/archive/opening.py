"""The archive of an installation, as its settings say."""

from __future__ import annotations

from postroom.archive.files import FilesPlace
from postroom.archive.place import ArchivePlace
from postroom.domain.errors import BadInput
from postroom.domain.extras import Extra, require
from postroom.settings import Settings


def open_place(settings: Settings) -> ArchivePlace:
    """To be closed after use."""
    if settings.archive.store == "files":
        return FilesPlace(settings.home / "archive", settings.archive)
    if not settings.database_url.startswith("postgresql"):
        raise BadInput(
            "archive.store",
            'is "database", which needs PostgreSQL: set database.url to an address such as '
            'postgresql://user@host/name, or archive.store to "files"',
        )
    require(Extra.POSTGRES, 'archive.store = "database"')
    from postroom.archive.postgres.place import DatabasePlace  # drivers are slow to load, and files do not need them

    return DatabasePlace(settings.database_url)
