"""Tools for imports: list them, start one of an uploaded file, stop it, go on with it, forget it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from postroom.app import archive_tasks
from postroom.archive.importing.packages import PackageKind
from postroom.archive.importing.sources import MailFormat, format_of, looks_like_takeout
from postroom.archive.messages import account_name
from postroom.audit import Actor
from postroom.contract import steering as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.switchboard.toolbox import Tool

_ENDINGS = {MailFormat.MBOX: ".mbox", MailFormat.EML: ".eml"}


class ImportTools:
    def __init__(self, queue: JobQueue, home: Path) -> None:
        self._queue = queue
        self._home = home

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LIST_IMPORTS,
            Role.DASHBOARD,
            Permission.READ,
            "Imports of files, newest first, with how far each is.",
            self.list_imports,
            reads_only=True,
        )
        yield _tool(contract.START_IMPORT, "Import a file that was uploaded to the archive page.", self.start)
        yield _tool(contract.STOP_IMPORT, "Stop an import. What it stored stays, and it can go on later.", self.stop)
        yield _tool(contract.RESUME_IMPORT, "Go on with an import that was stopped or has failed.", self.resume)
        yield _tool(
            contract.FORGET_IMPORT,
            "Remove an import from the list, and its uploaded file. What it stored stays.",
            self.forget,
        )

    async def list_imports(self, caller: Caller, given: contract.ImportsArguments) -> contract.ImportsReply:
        found = await self._queue.database.read(
            lambda tx: archive_tasks.list_tasks(tx, archive_tasks.TaskKind.IMPORT, given.limit)
        )
        return contract.ImportsReply(imports=[_reply(each) for each in found])

    async def start(self, caller: Caller, given: contract.StartImportArguments) -> contract.ImportReply:
        """The file gets its ending, which sets it apart from what was uploaded and never imported."""
        account = account_name(normal_email(given.endpoint_identity, "endpoint_identity"))
        path, format = await asyncio.to_thread(
            _named_by_content, archive_tasks.uploads_folder(self._home), given.upload, given.name
        )
        order = archive_tasks.ImportOrder(format, path, account, uploaded_as=given.name)
        home, who, now = archive_tasks.home_id(self._home), Actor.of(caller), self._queue.clock.now()
        task, _ = await self._queue.database.write(
            lambda tx: archive_tasks.add_task(tx, home, archive_tasks.TaskKind.IMPORT, order.written(), who, now)
        )
        return _reply(task)

    async def stop(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        return _reply(await self._changed(archive_tasks.stop_task, caller, given))

    async def resume(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        return _reply(await self._changed(archive_tasks.resume_task, caller, given))

    async def forget(self, caller: Caller, given: contract.ImportArguments) -> contract.ImportReply:
        task = await self._changed(archive_tasks.forget_task, caller, given)
        order = archive_tasks.ImportOrder.read(task.arguments)
        if order.uploaded_as is not None:
            await asyncio.to_thread(archive_tasks.remove_upload, self._home, order.path)
        return _reply(task)

    async def _changed(
        self,
        change: Callable[[Tx, str, Actor, datetime], archive_tasks.ArchiveTask],
        caller: Caller,
        given: contract.ImportArguments,
    ) -> archive_tasks.ArchiveTask:
        who, now = Actor.of(caller), self._queue.clock.now()

        def whole(tx: Tx) -> archive_tasks.ArchiveTask:
            if archive_tasks.get_task(tx, given.import_id, "import_id").kind is not archive_tasks.TaskKind.IMPORT:
                raise NotFound("import_id", f"there is no import {given.import_id}")
            return change(tx, given.import_id, who, now)

        return await self._queue.database.write(whole)


def _tool(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.ACCOUNTS, description, run)


def _named_by_content(folder: Path, upload: str, name: str) -> tuple[Path, MailFormat]:
    """The uploaded file, with the ending of what it is. What holds no mail is removed and refused."""
    path = folder / f"{upload}{archive_tasks.UNFINISHED}"
    if not path.is_file():
        raise NotFound("upload", f"there is no uploaded file {upload}")
    package = PackageKind.of_content(path)
    found = format_of(path)
    ending = _ENDINGS.get(found) if package is None and found is not None else package
    if ending is None or found is None:
        path.unlink()
        raise BadInput("files", f"{name} is not mail: choose an mbox, an .eml file, or a .zip or .tgz of those")
    target = path.with_suffix(ending)
    path.rename(target)
    return target, MailFormat.TAKEOUT if package is not None or looks_like_takeout(target) else found


def _reply(task: archive_tasks.ArchiveTask) -> contract.ImportReply:
    order = archive_tasks.ImportOrder.read(task.arguments)
    progress = archive_tasks.progress_read(task.progress or {})
    report = progress.report if task.result is None else archive_tasks.report_read(task.result)
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
        not_mail=report.not_mail,
        seconds_left=None if task.is_over else progress.seconds_left,
        error=task.error,
    )
