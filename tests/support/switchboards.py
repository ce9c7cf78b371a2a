"""A Switchboard inside the test's process or as a process of its own, and clients as a third party would write them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from postroom.accounts.account import Account, NewAccount, add_account
from postroom.app.serving import owner_tools
from postroom.archive.service import ArchiveService, owned_archive
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.searching import search_shards
from postroom.audit import Actor
from postroom.db import Database, connect
from postroom.domain.clock import Clock, SystemClock
from postroom.domain.errors import Retryable, error_from_wire
from postroom.domain.jobs import CATALOGUE
from postroom.domain.roles import Caller, Role
from postroom.mailboxes.credentials import StaticGrant
from postroom.queue import JobQueue
from postroom.settings import BackfillSettings, CurrentSettings, Settings
from postroom.switchboard.backfill.operations import Backfill
from postroom.switchboard.http import SwitchboardHttp, listening, serving
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.tokens import NewToken, create_token
from postroom.switchboard.toolbox import Tool, Toolbox
from postroom.switchboard.tools.assembly import Services, build_toolbox
from postroom.web.web_service import WebService
from tests.support.backfills import CHEAP_METER
from tests.support.commands import PostroomProcess
from tests.support.mail import ME

T = TypeVar("T")

BACKFILL = BackfillSettings(enabled=True)
REQUEST_BYTES = 2_000_000


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
    async def client(self, role: Role = Role.CONNECTOR, **caller: Any) -> AsyncIterator[DirectCalls]:
        """In this process, without a transport."""
        yield DirectCalls(self.toolbox, Caller(role, caller.pop("name", "test"), **caller))

    async def token(self, role: Role, now: Any = None, **new: Any) -> str:
        new.setdefault("name", f"a {role}")
        when = now or self.queue.clock.now()
        _, text = await self.database.write(lambda tx: create_token(tx, NewToken(role, **new), when))
        return text

    async def account(self, email: str = ME) -> Account:
        new = NewAccount(email, "https://example.org")
        return await self.database.write(lambda tx: add_account(tx, new, self.queue.clock.now()))


@dataclass(frozen=True)
class DirectCalls:
    """The same as `Calls`, in this process."""

    toolbox: Toolbox
    caller: Caller

    async def __call__(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        reply = await self.toolbox.call(self.caller, tool, {**(arguments or {}), **more})
        answer: dict[str, Any] = json.loads(json.dumps(reply.wire()))
        return answer


def unfenced(text: str) -> str:
    """What an agent gets stands between fences."""
    _, fence, rest = text.partition("\n<data>\n")
    return rest.removesuffix("\n</data>") if fence else text


class Calls:
    """Calls a tool over MCP and gets its answer, or our error."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __call__(self, tool: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> dict[str, Any]:
        result = await self.client.call_tool(tool, {**(arguments or {}), **more})
        text = getattr(result.content[0], "text", "")
        if result.is_error:
            raise error_from_wire(result.structured_content, text)
        answer: dict[str, Any] = json.loads(unfenced(text))
        assert answer == result.structured_content
        return answer


def all_owner_tools(queue: JobQueue, home: Path) -> Iterator[Tool[Any, Any]]:
    settings = Settings(home=home, backfill=BACKFILL)
    return owner_tools(queue, FileArchive(home / "archive"), CurrentSettings(settings), WebService(settings, queue))


async def refuse_accounts(grant: StaticGrant, who: Actor) -> tuple[Account, list[str]]:
    """Adding an account to a real mailbox server is tested by itself."""
    raise Retryable(f"{grant.api_base} does not answer.")


@asynccontextmanager
async def open_bench(database: Database, root: Path, clock: Clock | None = None) -> AsyncIterator[Bench]:
    clock = clock or SystemClock()
    queue = JobQueue(database, CATALOGUE, clock)
    budget = ModelBudget(queue, Settings(backfill=BACKFILL))
    backfill = Backfill(budget, ("finance", "health", "relationship", "travel"), CHEAP_METER)
    async with owned_archive(FileArchive(root / "archive"), "a test") as archive:
        with search_shards(root / "archive", clock) as search:
            services = Services(queue, archive, search, backfill, budget, enrol=refuse_accounts)
            toolbox = build_toolbox(services, all_owner_tools(queue, root))
            yield Bench(database, queue, archive, backfill, toolbox)


@asynccontextmanager
async def served(bench: Bench) -> AsyncIterator[str]:
    """The address of `/mcp` on loopback."""
    http = SwitchboardHttp(
        bench.toolbox, bench.database, bench.queue.clock, request_bytes=REQUEST_BYTES, metrics_token="m" * 16
    )
    async with http.running(), serving(http, listening("127.0.0.1", 0)) as url:
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
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield Calls(client)


class SwitchboardProcess(PostroomProcess):
    """`postroom switchboard` as it is started by a person, on a home of its own; it keeps its port."""

    def __init__(self, home: Path, database_url: str | None = None, **variables: str) -> None:
        here = {"POSTROOM_SWITCHBOARD__PORT": "0", "POSTROOM_SWITCHBOARD__ARCHIVE_WAIT_S": "0"}
        given = {**here, "BACKFILL_ENABLED": "true", **variables}
        if database_url is not None:
            given["POSTROOM_DATABASE__URL"] = database_url
        super().__init__("switchboard", home=home, variables=given)
        self.url = ""

    async def start(self) -> None:
        await super().start()
        self.url = str((await self.ready())["mcp"])
        self.variables["POSTROOM_SWITCHBOARD__PORT"] = str(urlsplit(self.url).port)

    async def token(self, role: Role, **new: Any) -> str:
        """Written straight into its database: the command is tested by itself."""
        url = self.variables.get("POSTROOM_DATABASE__URL") or f"sqlite:///{self.home / 'postroom.db'}"
        database = await connect(url)
        try:
            new.setdefault("name", f"a {role}")
            _, text = await database.write(lambda tx: create_token(tx, NewToken(role, **new), SystemClock().now()))
        finally:
            await database.close()
        return text
