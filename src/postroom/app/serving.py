"""The Switchboard of an installation: the tools on its services, and the process that serves them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from postroom.app.archive_runner import ArchiveTaskRunner
from postroom.app.installation import App, open_vault
from postroom.app.owner_tools.action_tools import ActionTools, ReviewTools
from postroom.app.owner_tools.asking_tools import AskingTools
from postroom.app.owner_tools.counting_tools import CountingTools
from postroom.app.owner_tools.import_tools import ImportTools
from postroom.app.owner_tools.job_tools import JobTools
from postroom.app.owner_tools.learning_tools import LearningTools
from postroom.app.owner_tools.restore_tools import RestoreTools
from postroom.app.owner_tools.rule_tools import PastMailTools, RuleTools
from postroom.app.owner_tools.search_tools import SearchTools
from postroom.app.owner_tools.setting_tools import DefinitionTools, SettingTools
from postroom.archive.backend import ArchiveBackend
from postroom.archive.search import Search
from postroom.archive.service import ArchiveService
from postroom.archive.status import SWITCHBOARD, OwnedElsewhere
from postroom.domain.errors import Fatal
from postroom.queue import JobQueue
from postroom.settings import CurrentSettings, Derived
from postroom.switchboard.http import SwitchboardHttp, is_loopback, limits_of, listening, nothing_here, serving
from postroom.switchboard.on_demand import OnDemandSearch
from postroom.switchboard.spending import ModelBudget
from postroom.switchboard.toolbox import Tool, Toolbox
from postroom.switchboard.tools.assembly import Services, build_toolbox
from postroom.telemetry import logs

if TYPE_CHECKING:
    from postroom.app.remote_pictures import PictureLoader
    from postroom.web.web_service import WebService

log = logs.get(__name__)

_ADDRESS = "switchboard.json"
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class SharedServices:
    """What an application that is served beside the tools may use."""

    app: App
    toolbox: Toolbox
    archive: ArchiveService
    search: Search


class Front(Protocol):
    """An ASGI application for every path that the Switchboard does not have: the dashboard."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """What it does beside answering. Ends before the server does, so that no open stream holds the server up."""


@dataclass(frozen=True)
class RunningSwitchboard:
    url: str
    toolbox: Toolbox


def toolbox_of(app: App, archive: ArchiveService, search: Search) -> Toolbox:
    return build_toolbox(
        Services(
            app.queue,
            archive,
            search,
            app.backfill,
            app.budget,
            estimator=app.estimator(),
            on_demand=OnDemandSearch(app.queue, search),
            enrol=app.take_in,
            sync_labels=app.sync_labels,
            watch=app.watch,
            book=app.categories,
        ),
        owner_tools(app.queue, app.archive.backend, app.current, app.web, app.pictures),
    )


def owner_tools(
    queue: JobQueue,
    archive: ArchiveBackend,
    current: CurrentSettings,
    web: WebService,
    pictures: PictureLoader | None = None,
) -> Iterator[Tool[Any, Any]]:
    """The tools of rooms that do not know the Switchboard. `pictures` is the loader whose pictures pages show."""
    from postroom.app.owner_tools.outside_tools import PictureTools, UnsubscribeTools
    from postroom.app.owner_tools.web_tools import WebTools  # readers of pages are slow to load
    from postroom.app.remote_pictures import PictureLoader

    settings = current.now
    safety = settings.safety
    yield from ActionTools(queue, archive, safety).tools()
    yield from ImportTools(queue, settings.home).tools()
    yield from JobTools(queue).tools()
    yield from ReviewTools(queue).tools()
    yield from CountingTools(queue, archive, current).tools()
    yield from RuleTools(queue.database, queue.clock, safety, archive).tools()
    yield from PastMailTools(queue, archive).tools()
    yield from RestoreTools(queue, archive, settings.restore).tools()
    yield from SearchTools(queue.database, queue.clock).tools()
    yield from LearningTools(queue, settings.learning).tools()
    yield from DefinitionTools(queue, settings.home).tools()
    vault, budget = open_vault(settings), ModelBudget(queue, current)
    yield from SettingTools(queue, current, vault, budget).tools()
    yield from AskingTools(queue, archive, current, vault, budget).tools()
    yield from WebTools(web).tools()
    loader = pictures or PictureLoader(queue.database, archive, settings, queue.clock)
    yield from PictureTools(queue.database, queue.clock, loader).tools()
    yield from UnsubscribeTools(queue.database, queue.clock, archive).tools()


@asynccontextmanager
async def open_switchboard(
    app: App, front_of: Callable[[SharedServices], Front] | None = None, *, command: str = SWITCHBOARD
) -> AsyncIterator[RunningSwitchboard]:
    """Own the archive, serve the tools, and declare what recurs; ends when everything that was begun is on disk.

    `command` names this process in the refusal that others get when they want to own the archive.
    """
    settings, token = app.settings.switchboard, app.settings.telemetry.metrics_token
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(listening(settings.host, settings.port))  # before anything else is begun
        archive = await _owned_archive(app, command, stack)
        search = stack.enter_context(app.archive.backend.search(app.clock))
        toolbox = toolbox_of(app, archive, search)
        front = None if front_of is None else front_of(SharedServices(app, toolbox, archive, search))
        http = SwitchboardHttp(
            toolbox,
            app.database,
            app.clock,
            request_bytes=settings.request_bytes,
            agent_request_bytes=settings.agent_request_bytes,
            is_loopback=is_loopback(settings.host),
            metrics_token=None if token is None else token.get_secret_value(),
            mounts=_mounts(app, front or nothing_here),
            front=front,
        )
        await app.declare_schedules()
        await stack.enter_async_context(ArchiveTaskRunner(app, archive).running())
        await stack.enter_async_context(http.running())
        url = await stack.enter_async_context(serving(http, listener, limits_of(settings)))
        stack.enter_context(_announced(app.settings.home, f"{url}/mcp"))
        if front is not None:
            await stack.enter_async_context(front.running())
        yield RunningSwitchboard(url, toolbox)


def _mounts(app: App, front: ASGIApp) -> dict[str, ASGIApp]:
    """The applications served beside the tools: Discord's calls, answered while there is a bot."""
    from postroom.actions.discord.interactions import PATH, DiscordInteractions

    serving = Derived(lambda: app.discord, lambda discord: DiscordInteractions(discord, app.queue))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await (front if app.discord.bot_token is None else serving())(scope, receive, send)

    return {PATH: answer}


def running_address(home: Path) -> str | None:
    """Where the Switchboard of this home serves, if one does; left behind by one that was killed."""
    try:
        return str(json.loads((home / _ADDRESS).read_text("utf-8"))["mcp"])
    except (FileNotFoundError, ValueError, KeyError):
        return None


async def _owned_archive(app: App, command: str, stack: AsyncExitStack) -> ArchiveService:
    """Wait while a worker owns the archive for the length of a job."""
    deadline = app.clock.monotonic() + app.settings.switchboard.archive_wait_s
    while True:
        try:
            return await stack.enter_async_context(app.archive.owned(command))
        except OwnedElsewhere as error:
            if app.clock.monotonic() >= deadline:
                raise
            log.info("switchboard.waiting", problem=error.message)
            await asyncio.sleep(_LOOK_AGAIN_S)


@contextmanager
def _announced(home: Path, mcp: str) -> Iterator[None]:
    path = home / _ADDRESS
    fresh = path.with_suffix(".new")
    try:
        fresh.write_text(json.dumps({"mcp": mcp}), "utf-8")
        fresh.replace(path)
    except OSError as error:
        raise Fatal(f"{path} cannot be written: {error.strerror}. Check the home folder.") from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
