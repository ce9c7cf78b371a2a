"""The archive of an installation, as its settings say."""

from __future__ import annotations

from postroom.archive.files import FilesPlace
from postroom.archive.place import ArchivePlace
from postroom.settings import Settings


def open_place(settings: Settings) -> ArchivePlace:
    """To be closed after use."""
    return FilesPlace(settings.home / "archive", settings.archive)
