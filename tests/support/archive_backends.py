"""The archives that the contract suites run over: `archive_place` gives each test an empty one of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from postroom.archive.files import FilesPlace
from postroom.archive.place import ArchivePlace
from postroom.archive.postgres.place import DatabasePlace


def in_files(request: pytest.FixtureRequest) -> ArchivePlace:
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("archive")
    return FilesPlace(folder / "archive")


def in_a_database(request: pytest.FixtureRequest) -> ArchivePlace:
    return DatabasePlace(request.getfixturevalue("postgres_factory").empty_url())


BACKENDS: Mapping[str, Callable[[pytest.FixtureRequest], ArchivePlace]] = {
    "files": in_files,
    "database": in_a_database,
}


@contextmanager
def opened_backend(name: str, request: pytest.FixtureRequest) -> Iterator[ArchivePlace]:
    with BACKENDS[name](request) as place:
        yield place
