"""Workers on a PostgreSQL behind PgBouncer, which nobody here wrote."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import text
from sqlalchemy.engine import make_url

from postroom.archive.postgres.postgres_archive import PostgresArchive
from postroom.db import connect
from postroom.db.database import Topic
from postroom.domain.clock import SystemClock
from postroom.queue import JobContext, JobState, NewJob
from tests.support.databases import PostgresFactory
from tests.support.queues import count_jobs, make_queue, run_until_idle

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
_LONGEST_S = 30.0

pytestmark = pytest.mark.skipif(_PROGRAM is None, reason="PgBouncer is not installed here: apt install pgbouncer")


async def nothing(context: JobContext) -> None:
    """A handler that has nothing to do."""


@asynccontextmanager
async def pgbouncer(server_url: str) -> AsyncIterator[str]:
    """The address of the same database behind a PgBouncer as its package configures it, but for who may log in."""
    url, port = make_url(server_url), _free_port()
    host, server_port = url.host or url.query["host"], url.port or 5432
    with TemporaryDirectory(prefix="postroom-pgbouncer-") as made:
        folder = Path(made)
        folder.chmod(0o755)
        (folder / "users").write_text(f'"{url.username}" ""\n')
        (folder / "ini").write_text(
            f"[databases]\n{url.database} = host={host} port={server_port} user={url.username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = any\nauth_file = {folder}/users\npool_mode = session\n"
        )
        as_another = ["-u", Path(str(host)).owner()] if os.getuid() == 0 else []
        process = await asyncio.create_subprocess_exec(str(_PROGRAM), "-q", *as_another, str(folder / "ini"))
        try:
            await _reached(port)
            yield f"postgresql://{url.username}@127.0.0.1:{port}/{url.database}"
        finally:
            process.terminate()
            await process.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def _reached(port: int) -> None:
    async with asyncio.timeout(_LONGEST_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


async def test_a_database_behind_pgbouncer_has_its_time_limits_and_its_wake_ups(
    postgres_factory: PostgresFactory,
) -> None:
    async with pgbouncer(postgres_factory.url()) as url:
        database = await connect(url)
        try:
            assert await database.read(lambda tx: tx.execute(text("SHOW lock_timeout")).scalar()) == "20s"
            async with database.wake.listen() as wakeups, asyncio.timeout(_LONGEST_S):
                await wakeups.wait()  # it may have missed some before
                wakeups.take()
                await database.wake.send(Topic.WORK)
                await wakeups.wait()
                assert wakeups.take() == {Topic.WORK}
        finally:
            await database.close()


async def test_jobs_are_worked_off_behind_pgbouncer(postgres_factory: PostgresFactory) -> None:
    async with pgbouncer(postgres_factory.url()) as url:
        database = await connect(url)
        try:
            queue = make_queue(database, SystemClock())
            await queue.enqueue(*(NewJob("noop") for _ in range(600)))
            await run_until_idle(queue, {"noop": nothing})
            assert await count_jobs(database, state=JobState.COMPLETED) == 600
        finally:
            await database.close()


async def test_an_archive_behind_pgbouncer_opens_and_keeps_its_own_time_limits(
    postgres_factory: PostgresFactory,
) -> None:
    async with pgbouncer(postgres_factory.empty_url()) as url:
        archive = await asyncio.to_thread(PostgresArchive, url)
        assert await asyncio.to_thread(archive._searching.query, "SHOW max_parallel_workers_per_gather") == [("0",)]
        assert await asyncio.to_thread(archive._connections.query, "SHOW lock_timeout") == [("1min",)]
        archive.close()
