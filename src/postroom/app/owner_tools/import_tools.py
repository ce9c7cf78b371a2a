"""Tools for imports: list them, start one of an uploaded file, stop it, go on with it, forget it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from postroom.app.archive_tasks import (
    ArchiveTask,
    TaskKind,
    add_task,
    forget_task,
    get_task,
    home_id,
    list_tasks,
    resume_task,
    stop_task,
)
from postroom.app.importing import ImportOrder, progress_read, report_read
from postroom.app.upload_files import UNFINISHED, remove_upload, uploads_folder
from postroom.archive.importing.sources import GZIP_MARK, MailFormat, format_of, looks_like_takeout
from postroom.archive.layout import account_name
from postroom.audit import Actor
from postroom.contract import imports as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.switchboard.toolbox import Tool

_ENDINGS = {MailFormat.TAKEOUT: ".mbox", MailFormat.MBOX: ".mbox", MailFormat.EML: ".eml"}


class ImportTools:
    def __init__(self, queue: JobQueue, home: Path) -> None:
        self._queue = queue
        self._home = home

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LIST,
            Role.DASHBOARD,
            Permission.READ,
            "Imports of files, newest first, with how far each is.",
            self.list_imports,
            reads_only=True,
        )
        yield _tool(contract.START, "Import a file that was uploaded to the archive page.", self.start)
        yield _tool(contract.STOP, "Stop an import. What it stored stays, and it can go on later.", self.stop)
        yield _tool(contract.RESUME, "Go on with an import that was stopped or has failed.", self.resume)
        yield _tool(
            contract.FORGET, "Remove an import from the list, and its uploaded file. What it stored stays.", self.forget
        )

    async def list_imports(self, caller: Caller, given: contract.ImportsArguments) -> contract.ImportsReply:
        found = await self._queue.database.read(lambda tx: list_tasks(tx, TaskKind.IMPORT, given.limit))
        return contract.ImportsReply(imports=[_reply(each) for each in found])

    async def start(self, caller: Caller, given: contract.StartImportArguments) -> contract.ImportReply:
        """The file gets its ending, which sets it apart from what was uploaded and never imported."""
        account = account_name(normal_email(given.endpoint_identity, "endpoint_identity"))
        path, format = await asyncio.to_thread(_named_by_content, uploads_folder(self._home), given.upload, given.name)
        order = ImportOrder(format, path, account, uploaded_as=given.name)
        home, who, now = home_id(self._home), Actor.of(caller), self._queue.clock.now()
        task, _ = await self._queue.database.write(
            lambda tx: add_task(tx, home, TaskKind.IMPORT, order.written(), who, now)
        )
        return _reply(task)

    async def stop(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        return _reply(await self._changed(stop_task, caller, given))

    async def resume(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        return _reply(await self._changed(resume_task, caller, given))

    async def forget(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        task = await self._changed(forget_task, caller, given)
        order = ImportOrder.read(task.arguments)
        if order.uploaded_as is not None:
            await asyncio.to_thread(remove_upload, self._home, order.path)
        return _reply(task)

    async def _changed(
        self,
        change: Callable[[Tx, str, Actor, datetime], ArchiveTask],
        caller: Caller,
        given: contract.ImportArguments,
    ) -> ArchiveTask:
        who, now = Actor.of(caller), self._queue.clock.now()

        def whole(tx: Tx) -> ArchiveTask:
            if get_task(tx, given.import_id, "import_id").kind is not TaskKind.IMPORT:
                raise NotFound("import_id", f"there is no import {given.import_id}")
            return change(tx, given.import_id, who, now)

        return await self._queue.database.write(whole)


def _tool(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.ACCOUNTS, description, run)


def _named_by_content(folder: Path, upload: str, name: str) -> tuple[Path, MailFormat]:
    """The uploaded file, with the ending of what it is. What holds no mail is removed and refused."""
    path = folder / f"{upload}{UNFINISHED}"
    if not path.is_file():
        raise NotFound("upload", f"there is no uploaded file {upload}")
    found = format_of(path)
    if found not in _ENDINGS or _is_gzip(path):
        path.unlink()
        raise BadInput("files", f"{name} is not mail: choose an mbox, an .eml file, or a .zip of those")
    is_zip = found is MailFormat.TAKEOUT
    target = path.with_suffix(".zip" if is_zip else _ENDINGS[found])
    path.rename(target)
    return target, MailFormat.TAKEOUT if is_zip or looks_like_takeout(target) else found


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(GZIP_MARK)) == GZIP_MARK


def _reply(task: ArchiveTask) -> contract.ImportReply:
    order = ImportOrder.read(task.arguments)
    progress = progress_read(task.progress or {})
    report = progress.report if task.result is None else report_read(task.result)
    return contract.ImportReply(
        id=task.id,
        state=task.state,
        account=order.account,
        format=order.format,
        name=order.uploaded_as or str(order.path),
        is_upload=order.uploaded_as is not None,
        requested_by=task.requested_by,
        created_at=task.created_at,
        updated_at=task.updated_at,
        bytes_done=progress.bytes_done,
        bytes_total=progress.bytes_total,
        found=report.found,
        stored=report.stored,
        duplicates=report.duplicates,
        unreadable=report.unreadable_count,
        seconds_left=None if task.is_over else progress.seconds_left,
        error=task.error,
    )
