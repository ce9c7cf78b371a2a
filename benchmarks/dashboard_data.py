"""The data set of the dashboard's benchmark: a home folder with an archive, and a database of each kind beside it.

It is made once in a folder, part by part, and used again as long as its size is the one that is asked for.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from sqlalchemy import Table
from sqlalchemy.engine import make_url

from benchmarks.dashboard_archive import write_archive, write_certificates
from benchmarks.dashboard_rows import Row, all_rows
from benchmarks.stores import start_server
from postroom.db import Dialect, connect
from postroom.db.types import utc_text

_PORTION = 5_000


@dataclass(frozen=True, slots=True)
class Size:
    messages: int
    jobs: int


class DataSet:
    """`home` has the archive, which both databases speak of."""

    def __init__(self, folder: Path, size: Size, console: Console) -> None:
        self._folder = folder
        self._size = size
        self._console = console
        self.home = folder / "home"
        self.home.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def database(self, dialect: Dialect) -> Iterator[str]:
        """The address of a filled database; a server runs for as long as the block lasts."""
        self._made("archive", self._make_archive)
        if dialect is Dialect.SQLITE:
            file = self._folder / "postroom.db"
            self._made("sqlite", lambda: self._fill_sqlite(file))
            yield f"sqlite:///{file}"
            return
        server = start_server(self._folder / "postgresql")
        try:
            url = make_url(server.get_uri()).set(database="postroom").render_as_string(hide_password=False)
            self._made("postgresql", lambda: self._fill_postgresql(server.get_uri(), url))
            yield url
        finally:
            server.cleanup()

    def _made(self, part: str, make: Any) -> None:
        mark, wanted = self._folder / f"{part}.made.json", asdict(self._size)
        if mark.exists():
            found = json.loads(mark.read_text())
            if found != wanted:
                raise SystemExit(f"{self._folder} has a data set of another size ({found}); name another folder")
            return
        self._console.print(f"making {part}")
        make()
        mark.write_text(json.dumps(wanted))

    def _make_archive(self) -> None:
        write_archive(self.home / "archive", self._size.messages, self._console)
        write_certificates(self.home / "archive", every=10)

    def _fill_sqlite(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        _migrate(f"sqlite:///{file}")
        database = sqlite3.connect(file, isolation_level=None)
        for pragma in ("synchronous = OFF", "foreign_keys = OFF", "cache_size = -400000", "temp_store = MEMORY"):
            database.execute(f"PRAGMA {pragma}")
        for table, rows in all_rows(self.home / "archive", self._size.messages, self._size.jobs, Dialect.SQLITE):
            self._console.print(f"sqlite: {table.name}")
            database.execute("BEGIN")
            for columns, portion in _portions(rows):
                marks = ", ".join("?" * len(columns))
                statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
                database.executemany(statement, [[_for_sqlite(value) for value in row.values()] for row in portion])
            database.execute("COMMIT")
        database.close()

    def _fill_postgresql(self, server: str, url: str) -> None:
        with psycopg.connect(server, autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS postroom WITH (FORCE)")
            admin.execute("CREATE DATABASE postroom")
        _migrate(url)
        with psycopg.connect(url) as database:
            for table, rows in all_rows(self.home / "archive", self._size.messages, self._size.jobs, "postgresql"):
                self._console.print(f"postgresql: {table.name}")
                for columns, portion in _portions(rows):
                    _copy(database, table, columns, portion)
                database.commit()
            database.autocommit = True
            database.execute("VACUUM ANALYZE")  # as the server's own housekeeping does after a while


def _copy(database: psycopg.Connection, table: Table, columns: Sequence[str], rows: Sequence[Row]) -> None:
    name = f"{table.schema}.{table.name}" if table.schema else table.name
    statement = f"COPY {name} ({', '.join(columns)}) FROM STDIN"
    with database.cursor() as cursor, cursor.copy(statement.encode()) as copy:
        for row in rows:
            copy.write_row([_as_json(value) for value in row.values()])


def _portions(rows: Iterable[Row]) -> Iterator[tuple[Sequence[str], Sequence[Row]]]:
    """With the columns that all rows of a portion have."""
    waiting = iter(rows)
    while portion := list(islice(waiting, _PORTION)):
        columns = list(dict.fromkeys(name for row in portion for name in row))
        yield columns, [{name: row.get(name) for name in columns} for row in portion]


def _for_sqlite(value: Any) -> Any:
    if isinstance(value, datetime):
        return utc_text(value)
    return value.isoformat() if isinstance(value, date) else _as_json(value)


def _as_json(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _migrate(url: str) -> None:
    async def run() -> None:
        await (await connect(url)).close()

    asyncio.run(run())
