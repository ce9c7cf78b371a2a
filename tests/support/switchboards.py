"""A Switchboard for tests: in this process, or as a process of its own; and clients as a stranger would write them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from postroom.accounts.store import Account, NewAccount, add_account
from postroom.archive.search import Search
from postroom.archive.service import ArchiveService, owned_archive
from postroom.db import Database, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.money import Micros
from postroom.domain.refusals import from_wire
from postroom.domain.roles import Caller, Role
from postroom.queue import Catalogue, JobQueue
from postroom.settings import ArchiveSettings, BackfillSettings
from postroom.switchboard.assembly import Services, build_toolbox
from postroom.switchboard.backfill.service import UPKEEP, Backfill
from postroom.switchboard.http import SwitchboardHttp
from postroom.switchboard.protocol import server_for
from postroom.switchboard.serving import serving
from postroom.switchboard.tokens import NewToken, create_token
from postroom.switchboard.toolbox import Toolbox
from postroom.triage.jobs import CLASSIFY
from tests.support.envelopes import ME

T = TypeVar("T")

BACKFILL = BackfillSettings(enabled=True)
REQUEST_BYTES = 2_000_000


class FlatMeter:
    """Every message may cost the same; None: nobody knows what."""

    def __init__(self, most: int | None = 1_000) -> None:
        self._most = most

    def most(self, text: str) -> Micros | None:
        return None if self._most is None else Micros(self._most)


@dataclass(frozen=True)
class Bench:
    """A Switchboard and what stands behind it, to look at."""

    database: Database
    queue: JobQueue
    archive: ArchiveService
    backfill: Backfill
    toolbox: Toolbox
    url: str = ""

    @asynccontextmanager
    async def client(self, role: Role = Role.CONNECTOR, **caller: Any) -> AsyncIterator[Calls]:
        """In memory."""
        who = Caller(role, caller.pop("name", "test"), **caller)
        async with Client(server_for(self.toolbox, who)) as client:
            yield Calls(client)

    async def token(self, role: Role, now: Any = None, **new: Any) -> str:
        new.setdefault("name", f"a {role}")
        when = now or self.queue.clock.now()
        _, text = await self.database.write(lambda tx: create_token(tx, NewToken(role, **new), when))
        return text

    async def account(self, email: str = ME) -> Account:
        new = NewAccount(email, "https://example.org")
        return await self.database.write(lambda tx: add_account(tx, new, self.queue.clock.now()))


class Calls:
    """Calls a tool and gets its answer, or our error."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, {**(arguments or {}), **more})
        text = getattr(result.content[0], "text", "")
        if result.is_error:
            raise from_wire(result.structured_content, text)
        answer: dict[str, Any] = json.loads(text)
        assert answer == result.structured_content
        return answer


@asynccontextmanager
async def open_bench(
    database: Database, root: Path, clock: Clock | None = None, meter: FlatMeter | None = None
) -> AsyncIterator[Bench]:
    clock = clock or SystemClock()
    queue = JobQueue(database, Catalogue([CLASSIFY, UPKEEP]), clock)
    backfill = Backfill(database, BACKFILL, ("finance", "health"), clock)
    async with owned_archive(root / "archive", ArchiveSettings(), "a test") as archive:
        with Search(root / "archive", clock) as search:
            toolbox = build_toolbox(Services(queue, archive, search, backfill, meter or FlatMeter()))
            yield Bench(database, queue, archive, backfill, toolbox)


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[str]:
    """The address of `/mcp` on loopback."""
    http = SwitchboardHttp(
        bench.toolbox, bench.database, bench.queue.clock, request_bytes=REQUEST_BYTES, metrics_token="m" * 16
    )
    async with http.running(), serving(http, "127.0.0.1", 0) as url:
        yield f"{url}/mcp"


@asynccontextmanager
async def in_a_task(opened: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Entered and left by the same task, as task groups want it; a fixture is set up and torn down by two."""
    ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def hold() -> None:
        async with opened as value:
            ready.set_result(value)
            await over.wait()

    def tell(task: asyncio.Task[None]) -> None:
        if not ready.done():
            ready.set_exception(task.exception() or AssertionError("it ended before it began"))

    task = asyncio.create_task(hold())
    task.add_done_callback(tell)
    try:
        yield await ready
    finally:
        over.set()
        await task


@asynccontextmanager
async def stranger(url: str, token: str | None, mode: str = "auto") -> AsyncIterator[Calls]:
    """The SDK's own client over HTTP, with nothing of ours but the token."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Calls(client)


class SwitchboardProcess:
    """`postroom switchboard` as it is started by a person, on a home of its own."""

    def __init__(self, home: Path, database_url: str | None = None) -> None:
        self.home = home
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("POSTROOM_")},
            "POSTROOM_HOME": str(home),
            "POSTROOM_SWITCHBOARD__PORT": "0",
            "POSTROOM_SWITCHBOARD__ARCHIVE_WAIT_S": "0",
            "BACKFILL_ENABLED": "true",
        }
        if database_url is not None:
            self._environment["POSTROOM_DATABASE__URL"] = database_url
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""

    async def start(self) -> str:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "postroom",
            "switchboard",
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        if not line:
            _, errors = await self.process.communicate()
            raise AssertionError(errors.decode())
        self.url = json.loads(line)["mcp"]
        return self.url

    async def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        await self.process.communicate()

    async def end(self) -> tuple[int, str]:
        """SIGTERM; the exit code and what it logged."""
        assert self.process is not None
        self.process.terminate()
        _, errors = await self.process.communicate()
        return self.process.returncode or 0, errors.decode()

    async def token(self, role: Role, **new: Any) -> str:
        """Written straight into its database: the command is tested by itself."""
        url = self._environment.get("POSTROOM_DATABASE__URL") or f"sqlite:///{self.home / 'postroom.db'}"
        database = await connect(url)
        try:
            new.setdefault("name", f"a {role}")
            _, text = await database.write(lambda tx: create_token(tx, NewToken(role, **new), SystemClock().now()))
        finally:
            await database.close()
        return text
