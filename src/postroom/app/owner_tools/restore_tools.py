"""Tools that put archived mail back into a mailbox. The owner starts a restore with the passphrase; an assistant can
only propose one, which does nothing until the owner approves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from postroom.actions.restore import runs
from postroom.actions.restore.runs import RestoreOrder, RestorePlan, RestoreProgress, RestoreRun
from postroom.archive.backend import ArchiveBackend
from postroom.audit import Actor
from postroom.contract import restores as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.actions import ItemState
from postroom.domain.errors import BadInput
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.queue import JobQueue
from postroom.settings import RestoreSettings
from postroom.switchboard.toolbox import Tool


class RestoreTools:
    def __init__(self, queue: JobQueue, archive: ArchiveBackend, settings: RestoreSettings) -> None:
        self._queue = queue
        self._archive = archive
        self._settings = settings

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(
            contract.LIST,
            Permission.READ,
            "Restores of archived mail into mailboxes, newest first, with how far each is.",
            self.list_restores,
        )
        yield _tool(
            contract.PLAN, Permission.READ, "Count what a restore would put back. Changes nothing.", self.plan_restore
        )
        yield _tool(
            contract.START,
            Permission.ACT,
            "Let a worker put archived mail back into a mailbox, each message once, and read all of it back.",
            self.start,
        )
        yield _tool(contract.APPROVE, Permission.APPROVE, "Start a restore that an assistant proposed.", self.approve)
        yield _tool(contract.REJECT, Permission.APPROVE, "Reject a restore that an assistant proposed.", self.reject)
        yield _tool(contract.STOP, Permission.ACT, "Stop a restore. What it put back stays.", self.stop)
        yield _tool(contract.RESUME, Permission.ACT, "Go on with a restore, and try again what failed.", self.resume)
        yield _tool(
            contract.UNDO,
            Permission.ACT,
            "Let a worker move exactly what a restore added to the mailbox's trash.",
            self.undo,
        )
        yield Tool(
            contract.PROPOSE,
            Role.AGENT,
            Permission.PROPOSE,
            "Propose to put archived mail back into a mailbox. Nothing is done before a person approves it.",
            self.propose,
        )

    async def list_restores(self, caller: Caller, given: contract.RestoresArguments) -> contract.RestoresReply:
        found = await self._queue.database.read(lambda tx: runs.list_runs(tx, given.limit))
        return contract.RestoresReply(restores=[reply_of(each) for each in found])

    async def plan_restore(self, caller: Caller, given: contract.RestoreArguments) -> contract.RestorePlanReply:
        return contract.RestorePlanReply.model_validate(await self._planned(_order(given)))

    async def start(self, caller: Caller, given: contract.RestoreArguments) -> contract.RestoreReply:
        order, who = _order(given), Actor.of(caller)
        require_proof(caller, SensitiveChange.RESTORE)
        await self._require_some(order)
        return await self._changed(lambda tx: runs.begin(tx, self._queue, order, who))

    async def propose(self, caller: Caller, given: contract.ProposeRestoreArguments) -> contract.RestoreReply:
        order, who = _order(given), Actor.of(caller)
        await self._require_some(order)
        return await self._changed(lambda tx: runs.begin(tx, self._queue, order, who, proposed=given.why))

    async def approve(self, caller: Caller, given: contract.RestoreRunArguments) -> contract.RestoreReply:
        require_proof(caller, SensitiveChange.RESTORE)
        return await self._steered(caller, given, runs.start)

    async def reject(self, caller: Caller, given: contract.RestoreRunArguments) -> contract.RestoreReply:
        return await self._steered(caller, given, runs.reject)

    async def stop(self, caller: Caller, given: contract.RestoreRunArguments) -> contract.RestoreReply:
        return await self._steered(caller, given, runs.stop)

    async def resume(self, caller: Caller, given: contract.RestoreRunArguments) -> contract.RestoreReply:
        require_proof(caller, SensitiveChange.RESTORE)
        return await self._steered(caller, given, runs.resume)

    async def undo(self, caller: Caller, given: contract.RestoreRunArguments) -> contract.RestoreReply:
        return await self._steered(caller, given, runs.undo)

    async def _planned(self, order: RestoreOrder) -> RestorePlan:
        """Raises BadInput where that is too much."""
        return await asyncio.to_thread(runs.plan, self._archive, order, self._settings)

    async def _require_some(self, order: RestoreOrder) -> None:
        if not (await self._planned(order)).messages:
            raise BadInput("query", f"finds no mail of {order.source} in the archive")

    async def _steered(
        self,
        caller: Caller,
        given: contract.RestoreRunArguments,
        change: Callable[[Tx, JobQueue, str, Actor], RestoreRun],
    ) -> contract.RestoreReply:
        who = Actor.of(caller)
        return await self._changed(lambda tx: change(tx, self._queue, given.run, who))

    async def _changed(self, change: Callable[[Tx], RestoreRun]) -> contract.RestoreReply:
        return reply_of(await self._queue.database.write(lambda tx: runs.progress_of(tx, change(tx))))


def _order(given: contract.RestoreArguments) -> RestoreOrder:
    return RestoreOrder.of(given.account, given.query, given.to_account, given.folder)


def _tool(
    signature: ToolSignature[Any, Any],
    permission: Permission,
    description: str,
    run: Callable[[Caller, Any], Awaitable[Reply]],
) -> Tool[Any, Any]:
    reads_only = permission is Permission.READ
    return Tool(signature, Role.DASHBOARD, permission, description, run, reads_only=reads_only)


def reply_of(found: RestoreProgress) -> contract.RestoreReply:
    run = found.run
    return contract.RestoreReply(
        id=run.id,
        source=run.source,
        target=run.target,
        query=run.query,
        folder=run.folder,
        state=run.state,
        messages=found.total,
        bytes=found.bytes,
        done=found.done,
        counts={state.value: found.counts.get(state, 0) for state in ItemState},
        left_out=run.left_out,
        is_planned=run.is_planned,
        reason=run.reason,
        certificate=None if run.certificate is None else dict(run.certificate),
        can_go_on=found.can_go_on,
        can_be_undone=found.can_be_undone,
        requested_by=run.requested_by,
        created_at=run.created_at,
        updated_at=run.updated_at,
        finished_at=run.finished_at,
    )
