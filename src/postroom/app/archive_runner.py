"""Does the work that is handed to the process that owns the archive: imports, repairs, syncs and indexing attachments
(`archive_tasks.py`); and the jobs that index attachments and conversations and that make vectors.

One task of a kind at a time; imports and repairs on a thread of their own. When the process ends, a task stores what
it has read and is queued again; one that was killed is queued again by the next start. Imports remember by themselves
how far they are, and what they have counted.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from postroom import audit
from postroom.accounts.account import list_accounts
from postroom.app import archive_tasks
from postroom.app.archive_statistics import count_coverage
from postroom.app.installation import App
from postroom.archive.backend import ArchiveBackend, ImportTarget, MailReader, MailWriter
from postroom.archive.conversations.forest import ConversationCounts
from postroom.archive.coverage import reader_version
from postroom.archive.importing.run import import_mail
from postroom.archive.importing.state import ImportProgress, ImportReport
from postroom.archive.indexing import IndexedConversations, ReadBatch, index_conversations, read_batch, versions_in_turn
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import ArchiveService, read_apart
from postroom.archive.status import OwnedElsewhere
from postroom.db import Tx
from postroom.domain.errors import PostroomError, Retryable
from postroom.domain.extras import Extra, require
from postroom.queue import Handler, JobContext, Postponed
from postroom.queue.job import Json
from postroom.reading.documents import end_recognition
from postroom.sync.service import AccountSync
from postroom.telemetry import logs

log = logs.get(__name__)

_LOOK_EVERY_S = 1.0
_REPORT_EVERY_S = 1.0
_LOCK = "archive-tasks.lock"
_INDEXING = "postroom worker (indexing attachments)"
_INDEXING_TURN_S = 300.0
_NEXT_TURN = timedelta(seconds=1)

T = TypeVar("T")
Result = Mapping[str, Any]


class _Stopped(Exception):
    """A verification is broken off; nothing was changed."""


class TaskProgress:
    """What a task's thread says of itself, and whether it shall stop."""

    def __init__(self) -> None:
        self.latest: Mapping[str, Any] | None = None
        """None: nothing yet; what an earlier run has shown stays until then."""
        self.stop = threading.Event()
        self.was_stopped = False
        """By a person, not by the end of the process."""

    def show_import(self, progress: ImportProgress) -> None:
        self.latest = archive_tasks.progress_written(progress)

    def show_syncs(self, syncs: Sequence[AccountSync]) -> None:
        self.latest = {"accounts": {each.account.email: each.progress().words for each in syncs}}

    def show_indexed(self, attachments: int) -> None:
        self.latest = {"attachments": attachments}

    def show_checked(self, messages: int) -> None:
        self.latest = {"messages": (self.latest or {}).get("messages", 0) + messages}
        if self.stop.is_set():
            raise _Stopped


class ArchiveTaskRunner:
    def __init__(self, app: App, archive: ArchiveService) -> None:
        self._app = app
        self._archive = archive
        self._home = archive_tasks.home_id(app.settings.home)
        self._works: dict[
            archive_tasks.TaskKind, Callable[[archive_tasks.ArchiveTask, TaskProgress], Awaitable[Result]]
        ] = {
            archive_tasks.TaskKind.IMPORT: self._import,
            archive_tasks.TaskKind.REPAIR: self._repair,
            archive_tasks.TaskKind.SYNC: self._sync,
            archive_tasks.TaskKind.INDEX: self._index,
        }
        self._lock: int | None = None
        self._beginning = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Do what is handed over for as long as the block lasts."""
        loops = [asyncio.create_task(self._serve(kind), name=f"archive {kind}") for kind in archive_tasks.TaskKind]
        try:
            yield
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            if self._lock is not None:
                os.close(self._lock)

    async def _serve(self, kind: archive_tasks.TaskKind) -> None:
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

    async def _next(self, kind: archive_tasks.TaskKind) -> archive_tasks.ArchiveTask | None:
        database, now = self._app.database, self._app.clock.now()
        if not await self._is_alone():
            return None
        if not await database.read(lambda tx: archive_tasks.is_waiting(tx, self._home, kind)):
            return None
        return await database.write(lambda tx: archive_tasks.claim_next(tx, self._home, kind, now))

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
        kept = await self._app.database.write(lambda tx: archive_tasks.queue_interrupted(tx, self._home, now))
        needed = {Path(path) for task in kept if isinstance(path := task.arguments.get("path"), str)}
        await asyncio.to_thread(archive_tasks.remove_forgotten, home, needed, now)

    async def _do(self, task: archive_tasks.ArchiveTask) -> None:
        log.info("archive_task.started", task=task.id, kind=task.kind)
        progress = TaskProgress()
        try:
            async with self._reporting(task.id, progress):
                result = await self._works[task.kind](task, progress)
        except asyncio.CancelledError:
            await self._settle(task, archive_tasks.TaskState.QUEUED)
            raise
        except PostroomError as error:
            await self._settle(task, archive_tasks.TaskState.FAILED, error=error.message)
        except Exception:
            log.exception("archive_task.crashed", task=task.id)
            await self._settle(
                task, archive_tasks.TaskState.FAILED, error="It failed in a way that was not expected; see the log."
            )
        else:
            state = (
                archive_tasks.TaskState.STOPPED
                if progress.was_stopped and result.get("stopped")
                else archive_tasks.TaskState.COMPLETED
            )
            await self._settle(task, state, result=result)

    async def _settle(self, task: archive_tasks.ArchiveTask, state: archive_tasks.TaskState, **values: Any) -> None:
        def write(tx: Tx) -> None:
            archive_tasks.settle(tx, task.id, state, self._app.clock.now(), **values)

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
        if await self._app.database.write(lambda tx: archive_tasks.report_progress(tx, task_id, shown, now)):
            progress.was_stopped = True
            progress.stop.set()

    async def _import(self, task: archive_tasks.ArchiveTask, progress: TaskProgress) -> Result:
        order = archive_tasks.ImportOrder.read(task.arguments)
        target = self._archive.import_target()
        work = partial(_import_files, order, target, progress)
        report = await _on_own_thread(work, progress.stop)
        if report.troubled:
            await archive_tasks.list_troubled(self._app.database, self._app.clock, order.account, report.troubled)
        if order.uploaded_as is not None and not report.stopped:
            await asyncio.to_thread(archive_tasks.remove_upload, self._app.settings.home, order.path)
        return archive_tasks.report_written(report)

    async def _repair(self, task: archive_tasks.ArchiveTask, progress: TaskProgress) -> Result:
        account = task.arguments.get("account")
        verify = partial(self._archive.backend.verify, account, progress.show_checked)
        try:
            report = await _on_own_thread(verify, progress.stop)
            done = await self._archive.repair(report)
            if done.rebuilt:
                report = await _on_own_thread(verify, progress.stop)
        except _Stopped:
            return {"stopped": True}
        return archive_tasks.repair_written(report, done)

    async def _sync(self, task: archive_tasks.ArchiveTask, progress: TaskProgress) -> Result:
        """The whole of the named mailboxes, once; one that fails does not stop the others."""
        wanted = task.arguments.get("accounts")
        known = await self._app.database.read(list_accounts)
        accounts = [each for each in known if isinstance(wanted, list) and each.id in wanted]
        async with self._app.sync.opened(accounts, "a sync that was asked for") as syncs:
            runs = [asyncio.create_task(each.engine.run(once=True), name=f"sync {each.account.id}") for each in syncs]
            try:
                stopped = not await _all_over(runs, lambda: progress.show_syncs(syncs), progress.stop)
            finally:
                for run in runs:
                    run.cancel()
                await asyncio.gather(*runs, return_exceptions=True)
            ended = {sync.account.email: _synced(sync, run) for sync, run in zip(syncs, runs, strict=True)}
        return {"accounts": ended, "stopped": stopped}

    async def _index(self, task: archive_tasks.ArchiveTask, progress: TaskProgress) -> Result:
        version = reader_version(self._app.settings)
        read, _ = await index_waiting(self._archive, progress.show_indexed, progress.stop.is_set, version)
        await count_coverage(self._app.database, self._archive.backend, self._app.clock, version)
        return {"attachments": read, "stopped": progress.stop.is_set()}


async def index_waiting(
    archive: ArchiveService, show: Callable[[int], None], is_over: Callable[[], bool], version: int
) -> tuple[int, bool]:
    """Index attachments that wait, in batches, then mail that an older version has indexed, until nothing is left or it
    is over; returns how many attachments were read, and whether nothing is left. A batch that has begun is finished.
    Pictures come after all other attachments of all accounts."""
    try:
        return await _index_in_turn(archive, show, is_over, version)
    finally:
        await asyncio.to_thread(end_recognition)


async def _index_in_turn(
    archive: ArchiveService, show: Callable[[int], None], is_over: Callable[[], bool], version: int
) -> tuple[int, bool]:
    read = 0
    accounts = await archive.read_apart(lambda reader: reader.accounts())
    for version_now, email in product(versions_in_turn(version), accounts):
        last: ArchivedMessage | None = None
        while not is_over():
            batch = await _read_next(archive.backend, email, last, version_now)
            if batch is None:
                break
            await archive.of(email).run(partial(_record, email=email, batch=batch))
            read, last = read + batch.attachments, batch.last
            show(read)
        else:
            return read, False
    return read, await _upgrade_indexes(archive, is_over)


async def _upgrade_indexes(archive: ArchiveService, is_over: Callable[[], bool]) -> bool:
    """What an older version has indexed, portion by portion; returns whether nothing is left."""
    for email in await archive.read_apart(_old_indexes):
        is_left = True
        while is_left:
            if is_over():
                return False
            is_left = await archive.of(email).run(partial(_upgrade, email=email))
    return True


def _upgrade(writer: MailWriter, email: str) -> bool:
    return writer.improve_index(email)


def _old_indexes(reader: MailReader) -> list[str]:
    return [email for email in reader.accounts() if reader.index_needs_work(email)]


async def _read_next(
    archive: ArchiveBackend, email: str, last: ArchivedMessage | None, version: int
) -> ReadBatch | None:
    """When it is cancelled, the thread stops after the message that it is reading."""
    stop = threading.Event()
    try:
        return await asyncio.to_thread(read_batch, archive, email, last, version=version, is_over=stop.is_set)
    finally:
        stop.set()


def _record(writer: MailWriter, email: str, batch: ReadBatch) -> None:
    writer.record_readings(email, batch.messages)


def index_handler(app: App) -> Handler:
    """The job that indexes attachments. Where another process owns the archive, that one is asked to do it."""

    async def handle(context: JobContext) -> Json:
        version = reader_version(app.settings)
        if not await read_apart(app.archive.backend, partial(_some_wait, version=version)):
            await count_coverage(app.database, app.archive.backend, app.clock, version)
            return {"attachments": 0}
        until = app.clock.monotonic() + _INDEXING_TURN_S
        try:
            async with context.step("index") as step, app.archive.owned(_INDEXING) as archive:
                read, is_done = await index_waiting(
                    archive, lambda read: None, lambda: app.clock.monotonic() > until, version
                )
                coverage = await count_coverage(app.database, archive.backend, app.clock, version)
                step.result = {"attachments": read, "waiting": coverage.whole.waiting}
        except OwnedElsewhere as error:
            await _hand_over(app)
            return {"handed_over": error.writer}
        if not is_done:
            raise Postponed(_NEXT_TURN, f"{coverage.whole.waiting} parts wait to be indexed")
        return step.result

    return handle


def conversations_handler(app: App) -> Handler:
    """The job that indexes conversations. It writes to an index of its own, so it needs no owner of the archive."""

    async def handle(context: JobContext) -> Json:
        until, stop, backend = app.clock.monotonic() + _INDEXING_TURN_S, threading.Event(), app.archive.backend

        def work() -> tuple[IndexedConversations, ConversationCounts, int]:
            done = index_conversations(backend, is_over=lambda: stop.is_set() or app.clock.monotonic() > until)
            with backend.conversations() as index, backend.reader() as reader:
                return done, index.counts(), 0 if done.is_done else reader.count()

        async with context.step("index") as step:
            done, counts, all_mail = await _on_own_thread(work, stop)
            step.result = {"added": done.added, "messages": counts.messages, "conversations": counts.conversations}
        if not done.is_done:
            raise Postponed(_NEXT_TURN, f"{counts.messages:,} of {all_mail:,} messages are indexed")
        return step.result

    return handle


def vectors_handler(app: App) -> Handler:
    """The job that makes vectors. It only reads the archive, so it needs no owner."""

    async def handle(context: JobContext) -> Json:
        require(Extra.MEANING, "similar mail")
        until, stop = app.clock.monotonic() + _INDEXING_TURN_S, threading.Event()
        try:
            async with context.step("vectors") as step:
                made, waiting = await asyncio.to_thread(
                    _make_vectors, app.archive.backend, lambda: stop.is_set() or app.clock.monotonic() > until
                )
                step.result = {"vectors": made, "waiting": waiting}
        finally:
            stop.set()  # when it is cancelled, the thread stops after the messages that it is at
        if waiting:
            raise Postponed(_NEXT_TURN, f"{waiting:,} messages wait for their vectors")
        return step.result

    return handle


def _make_vectors(archive: ArchiveBackend, is_over: Callable[[], bool]) -> tuple[int, int]:
    """How many were made, and how many messages still lack theirs."""
    from postroom.archive.meaning.vectors import make_vectors, remove_vectors, vector_state

    if archive.vectors is None:
        return 0, 0
    with archive.reader() as reader:
        accounts = reader.accounts()
        remove_vectors(archive.vectors, accounts)
        made = sum(make_vectors(reader, archive.vectors, email, is_over=is_over) for email in accounts)
        if not is_over():
            return made, 0
        return made, sum(vector_state(reader, archive.vectors, email).waiting for email in accounts)


async def _hand_over(app: App) -> None:
    home, who, now = archive_tasks.home_id(app.settings.home), audit.SYSTEM, app.clock.now()
    await app.database.write(lambda tx: archive_tasks.add_task(tx, home, archive_tasks.TaskKind.INDEX, {}, who, now))


def _some_wait(reader: MailReader, version: int) -> bool:
    return any(
        reader.waiting_attachments(email, None, 1, version) or reader.index_needs_work(email)
        for email in reader.accounts()
    )


async def _all_over(runs: Sequence[asyncio.Task[None]], show: Callable[[], None], stop: threading.Event) -> bool:
    """False if it was asked to stop before."""
    waiting = set(runs)
    while waiting and not stop.is_set():
        _, waiting = await asyncio.wait(waiting, timeout=_REPORT_EVERY_S)
        show()
    return not waiting


def _synced(sync: AccountSync, run: asyncio.Task[None]) -> Result:
    error = None if run.cancelled() else run.exception()
    if isinstance(error, PostroomError):
        return {"error": error.message}
    if error is not None:
        raise error
    return sync.result()


def _import_files(order: archive_tasks.ImportOrder, target: ImportTarget, progress: TaskProgress) -> ImportReport:
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
