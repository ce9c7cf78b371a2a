"""Changed settings in a running process: it looks at the files every other second, and what is made from settings is
made anew when it is next used.

Each process does this by itself, so that workers on several machines notice what lies in their own home folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from postroom.app.installation import App
from postroom.domain.errors import PostroomError
from postroom.domain.jobs import Schedule
from postroom.queue import Handler, JobContext
from postroom.queue.job import Json
from postroom.telemetry import logs

log = logs.get(__name__)

LOOK_EVERY_S = 2.0
"""Less than half of what is promised (`NOTICED_WITHIN_S`)."""

K = TypeVar("K")
T = TypeVar("T")


@dataclass
class _Opened(Generic[K, T]):
    made_of: K
    value: T
    stack: AsyncExitStack
    users: int = 0


class Renewable(Generic[K, T]):
    """Something that is opened from settings, such as a client. A use that begins after they changed opens another;
    the old one is closed when its last use ends. To be used in its block."""

    def __init__(self, made_of: Callable[[], K], opening: Callable[[K], AbstractAsyncContextManager[T]]) -> None:
        self._made_of = made_of
        self._opening = opening
        self._opened: _Opened[K, T] | None = None
        self._one_at_a_time = asyncio.Lock()

    async def __aenter__(self) -> Renewable[K, T]:
        """Opened at once: a library that is slow to load is not loaded while work is under way."""
        async with self.use():
            return self

    async def __aexit__(self, *error: object) -> None:
        async with self._one_at_a_time:
            opened, self._opened = self._opened, None
        if opened is not None and not opened.users:
            await opened.stack.aclose()

    @asynccontextmanager
    async def use(self) -> AsyncIterator[T]:
        opened = await self._taken()
        try:
            yield opened.value
        finally:
            opened.users -= 1
            await self._close_unused(opened)

    def handler(self, make: Callable[[T], Handler]) -> Handler:
        """For jobs whose handler is made from it; each job keeps what it began with."""

        async def handle(context: JobContext) -> Json:
            async with self.use() as value:
                return await make(value)(context)

        return handle

    async def _taken(self) -> _Opened[K, T]:
        async with self._one_at_a_time:
            made_of, before = self._made_of(), self._opened
            if before is None or before.made_of != made_of:
                stack = AsyncExitStack()
                value = await stack.enter_async_context(self._opening(made_of))
                self._opened = _Opened(made_of, value, stack)
                if before is not None:
                    await self._close_unused(before)
            opened = self._opened
            assert opened is not None  # noqa: S101 - one was there or was just opened
            opened.users += 1
            return opened

    async def _close_unused(self, opened: _Opened[K, T]) -> None:
        if opened is not self._opened and not opened.users:
            await opened.stack.aclose()


@asynccontextmanager
async def watching_settings(app: App) -> AsyncIterator[None]:
    """Take over what changes in the files for as long as the block lasts."""
    watch = asyncio.create_task(_keep_looking(app), name="settings")
    try:
        yield
    finally:
        watch.cancel()
        await asyncio.wait([watch])


async def _keep_looking(app: App) -> None:
    declared = app.schedules()
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            declared = await look_once(app, declared)
        except PostroomError as error:  # the database is away, for example; the next look tries again
            log.warning("settings.not_applied", problem=error.message)
        except Exception:
            log.exception("settings.look_failed")


async def look_once(app: App, declared: list[Schedule]) -> list[Schedule]:
    """Take over what has changed; the schedules that are declared now."""
    known = app.current.problem
    if changed := app.current.refresh():
        log.info("settings.applied", keys=changed)
    if (problem := app.current.problem) is not None and problem != known:
        log.warning("settings.kept", problem=problem)
    wanted = app.schedules()
    if wanted != declared:
        await app.declare_schedules()
    return wanted
