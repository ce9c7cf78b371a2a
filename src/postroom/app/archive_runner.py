"""Does the work that is handed to the process that owns the archive: imports, and repairs (`archive_tasks.py`).

One task of a kind at a time, on a thread of its own. When the process ends, a task stores what it has read and is
queued again; one that was killed is queued again by the next start. Imports remember their position themselves.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from postroom.app.archive_tasks import (
    ArchiveTask,
    TaskKind,
    TaskState,
    claim_next,
    home_id,
    is_waiting,
    queue_interrupted,
    repair_written,
    report_progress,
    settle,
)
from postroom.app.importing import ImportOrder, list_troubled, progress_written, report_written
from postroom.app.installation import App
from postroom.app.upload_files import remove_forgotten, remove_upload
from postroom.archive.backend import ImportTarget
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.state import ImportProgress, ImportReport
from postroom.archive.service import ArchiveService
from postroom.db import Tx
from postroom.domain.errors import PostroomError, Retryable
from postroom.telemetry import logs

log = logs.get(__name__)

_LOOK_EVERY_S = 1.0
_REPORT_EVERY_S = 1.0
_LOCK = "archive-tasks.lock"

T = TypeVar("T")
Result = Mapping[str, Any]


class _Stopped(Exception):
    """A verification is broken off; nothing was changed."""


class TaskProgress:
    """What a task's thread says of itself, and whether it shall stop."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Any] = {}
        self.stop = threading.Event()
        self.was_stopped = False
        """By a person, not by the end of the process."""

    def show_import(self, progress: ImportProgress) -> None:
        self.latest = progress_written(progress)

    def show_checked(self, messages: int) -> None:
        self.latest = {"messages": self.latest.get("messages", 0) + messages}
        if self.stop.is_set():
            raise _Stopped


class ArchiveTaskRunner:
    def __init__(self, app: App, archive: ArchiveService) -> None:
        self._app = app
        self._archive = archive
        self._home = home_id(app.settings.home)
        self._works: dict[TaskKind, Callable[[ArchiveTask, TaskProgress], Awaitable[Result]]] = {
            TaskKind.IMPORT: self._import,
            TaskKind.REPAIR: self._repair,
        }
        self._lock: int | None = None
        self._beginning = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what is handed over for as long as the block lasts."""
        loops = [asyncio.create_task(self._serve(kind), name=f"archive {kind}") for kind in TaskKind]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self._lock is not None:
                os.close(self._lock)

    async def _serve(self, kind: TaskKind) -> None:
        while True:
            try:
                task = await self._next(kind)
            except Retryable as error:
                log.warning("archive_task.waiting", problem=error.message)
                task = None
            if task is None:
                await asyncio.sleep(_LOOK_EVERY_S)
            else:
                await self._do(task)

    async def _next(self, kind: TaskKind) -> ArchiveTask | None:
        database, now = self._app.database, self._app.clock.now()
        if not await self._is_alone():
            return None
        if not await database.read(lambda tx: is_waiting(tx, self._home, kind)):
            return None
        return await database.write(lambda tx: claim_next(tx, self._home, kind, now))

    async def _is_alone(self) -> bool:
        """On PostgreSQL several processes may write to the archive; one of a home folder does its tasks."""
        async with self._beginning:
            if self._lock is None:
                lock = _taken(self._app.settings.home / _LOCK)
                if lock is None:
                    return False
                try:
                    await self._begin()
                except BaseException:
                    os.close(lock)
                    raise
                self._lock = lock
            return True

    async def _begin(self) -> None:
        """What was interrupted goes on, and what an interrupted upload left is removed."""
        now, home = self._app.clock.now(), self._app.settings.home
        kept = await self._app.database.write(lambda tx: queue_interrupted(tx, self._home, now))
        needed = {Path(path) for task in kept if isinstance(path := task.arguments.get("path"), str)}
        await asyncio.to_thread(remove_forgotten, home, needed, now)

    async def _do(self, task: ArchiveTask) -> None:
        log.info("archive_task.started", task=task.id, kind=task.kind)
        progress = TaskProgress()
        try:
            async with self._reporting(task.id, progress):
                result = await self._works[task.kind](task, progress)
        except asyncio.CancelledError:
            await self._settle(task, TaskState.QUEUED)
            raise
        except PostroomError as error:
            await self._settle(task, TaskState.FAILED, error=error.message)
        except Exception:
            log.exception("archive_task.crashed", task=task.id)
            await self._settle(task, TaskState.FAILED, error="It failed in a way that was not expected; see the log.")
        else:
            state = TaskState.STOPPED if progress.was_stopped and result.get("stopped") else TaskState.COMPLETED
            await self._settle(task, state, result=result)

    async def _settle(self, task: ArchiveTask, state: TaskState, **values: Any) -> None:
        def write(tx: Tx) -> None:
            settle(tx, task.id, state, self._app.clock.now(), **values)

        log.info("archive_task.ended", task=task.id, state=state)
        while True:
            try:
                return await asyncio.shield(self._app.database.write(write))
            except Retryable as error:
                log.warning("archive_task.waiting", problem=error.message)
                await asyncio.sleep(_LOOK_EVERY_S)

    @asynccontextmanager
    async def _reporting(self, task_id: str, progress: TaskProgress) -> AsyncIterator[None]:
        reporting = asyncio.create_task(self._report(task_id, progress), name="archive task progress")
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.wait([reporting])

    async def _report(self, task_id: str, progress: TaskProgress) -> None:
        while True:
            with suppress(Retryable):  # the next one says more
                await self._report_once(task_id, progress)
            await asyncio.sleep(_REPORT_EVERY_S)

    async def _report_once(self, task_id: str, progress: TaskProgress) -> None:
        shown, now = progress.latest, self._app.clock.now()
        if await self._app.database.write(lambda tx: report_progress(tx, task_id, shown, now)):
            progress.was_stopped = True
            progress.stop.set()

    async def _import(self, task: ArchiveTask, progress: TaskProgress) -> Result:
        order = ImportOrder.read(task.arguments)
        target = self._archive.import_target()
        work = partial(_import_files, order, target, progress)
        report = await _on_own_thread(work, progress.stop)
        if report.troubled:
            await list_troubled(self._app.database, self._app.clock, order.account, report.troubled)
        if order.uploaded_as is not None and not report.stopped:
            await asyncio.to_thread(remove_upload, self._app.settings.home, order.path)
        return report_written(report)

    async def _repair(self, task: ArchiveTask, progress: TaskProgress) -> Result:
        account = task.arguments.get("account")
        verify = partial(self._archive.backend.verify, account, progress.show_checked)
        try:
            report = await _on_own_thread(verify, progress.stop)
            done = await self._archive.repair(report)
            if done.rebuilt:
                report = await _on_own_thread(verify, progress.stop)
        except _Stopped:
            return {"stopped": True}
        return repair_written(report, done)


def _import_files(order: ImportOrder, target: ImportTarget, progress: TaskProgress) -> ImportReport:
    return import_mail(target, order.account, order.source(), progress=progress.show_import, stop=progress.stop)


async def _on_own_thread(work: Callable[[], T], stop: threading.Event) -> T:
    """Not on the threads that all share: this may take hours. When it is cancelled, the work is asked to stop, and
    its end is awaited."""
    with ThreadPoolExecutor(1, "archive-task") as thread:
        running = asyncio.get_running_loop().run_in_executor(thread, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([running])
            raise


def _taken(path: Path) -> int | None:
    """A lock that the kernel releases however its holder ends; None while another process holds it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle
