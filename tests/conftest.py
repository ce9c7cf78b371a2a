"""Fixtures that every test may use. `database` runs a test twice: on SQLite and on a real PostgreSQL."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from functools import cache
from pathlib import Path

import httpcore2
import pytest
from hypothesis import HealthCheck, settings

from postroom.archive.backend import ArchiveBackend
from postroom.db import Database, Dialect, connect
from postroom.domain.clock import ManualClock
from postroom.telemetry import logs
from tests.support.databases import (
    BACKENDS,
    DatabaseFactory,
    PostgresFactory,
    SqliteFactory,
    compile_statements_once,
    opened_backend,
    postgres_server,
)

_ENOUGH_MEMORY = 6 << 30

# A shell starts background jobs with SIGINT ignored, and children inherit that; tests that press Ctrl-C need it back.
signal.signal(signal.SIGINT, signal.default_int_handler)

compile_statements_once()

# How long examples take to make is the machine's matter, and no test fails for it.
settings.register_profile("any machine", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# pytest loads readline, which puts the width of its terminal, or 80, into the environment of the processes that
# xdist starts. Commands would cut their tables to it.
os.environ.pop("COLUMNS", None)

httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)  # 30 ms for every client, and no test has TLS


def pytest_configure() -> None:
    """Databases and archives of tests lie in memory where there is room: a killed process loses no page of it, and
    no test pulls the plug."""
    memory = Path("/dev/shm")  # noqa: S108 (a folder of our own is made in it)
    if memory.is_dir() and shutil.disk_usage(memory).free > _ENOUGH_MEMORY and "TMPDIR" not in os.environ:
        tempfile.tempdir = os.environ["TMPDIR"] = str(memory)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end, so the garbage collector need not look at it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests that have a time limit of their own are the longest. They come first: a long one that comes last keeps
    one processor busy while the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture(scope="session")
def sqlite_factory(tmp_path_factory: pytest.TempPathFactory) -> SqliteFactory:
    return SqliteFactory(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture(scope="session")
def postgres_factory() -> Iterator[PostgresFactory]:
    with postgres_server() as server:
        yield PostgresFactory(server.url)


@pytest.fixture(params=list(Dialect))
def database_factory(request: pytest.FixtureRequest) -> DatabaseFactory:
    name = "sqlite_factory" if request.param is Dialect.SQLITE else "postgres_factory"
    factory: DatabaseFactory = request.getfixturevalue(name)
    return factory


@pytest.fixture
def database_url(database_factory: DatabaseFactory) -> str:
    return database_factory.url()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = await connect(database_url)
    yield opened
    await opened.close()


@pytest.fixture(params=BACKENDS)
def archive_place(request: pytest.FixtureRequest) -> Iterator[ArchiveBackend]:
    """An empty archive: once in files, once in PostgreSQL."""
    with opened_backend(request.param, request) as place:
        yield place


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder that this test's commands use."""
    folder = tmp_path / "home"
    monkeypatch.setenv("POSTROOM_HOME", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _quiet_logs() -> None:
    logs.configure(level="error", format="console")
