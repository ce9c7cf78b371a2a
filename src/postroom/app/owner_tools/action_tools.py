"""Tools for actions: answer approvals, undo, retry, cancel, and change when snoozed mail returns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from postroom.actions import approvals, requests, snoozes, undo
from postroom.actions.approvals import ApprovalVerdict
from postroom.actions.lifecycle import mailbox_of_action
from postroom.actions.undo import UndoSpan
from postroom.audit import Actor
from postroom.contract import actions as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.switchboard.toolbox import Tool

T = TypeVar("T")
Change = Callable[[Tx, JobQueue, str, Actor], T]


class ActionTools:
    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.ANSWER,
            Role.DASHBOARD,
            Permission.APPROVE,
            "Approve or reject an action that needs a person's answer. Each question is answered once.",
            self.answer,
            keeps_to_mailbox=True,
        )
        yield _act(contract.UNDO, "Let a worker undo an action; the undo is an action of its own.", self.undo)
        yield _act(
            contract.RETRY, "Try a failed action again as it was first wanted.", self._changing(requests.retry_action)
        )
        yield _act(contract.CANCEL, "Cancel an action that has not started.", self._changing(requests.cancel_action))
        yield _act(contract.WAKE, "Return snoozed mail to the inbox now.", self._changing(snoozes.wake_now))
        yield _act(contract.SNOOZE, "Return snoozed mail to the inbox at another time.", self.snooze)
        yield Tool(
            contract.UNDO_ALL,
            Role.DASHBOARD,
            Permission.ACT,
            "Let a worker undo everything that the model, or rules, did in a period, the newest first.",
            self.undo_all,
        )

    async def answer(self, caller: Caller, given: contract.AnswerArguments) -> contract.AnsweredReply:
        verdict, note = ApprovalVerdict(given.verdict), given.note
        outcome = await self._change(
            caller, given.action, lambda tx, queue, id, who: approvals.answer(tx, queue, id, verdict, who, note=note)
        )
        return contract.AnsweredReply(counted=outcome.counted, standing=outcome.said)

    async def undo(self, caller: Caller, given: contract.ActionArguments) -> contract.UndoReply:
        return contract.UndoReply(undo=await self._change(caller, given.action, undo.request_undo))

    async def snooze(self, caller: Caller, given: contract.SnoozeArguments) -> contract.ActionReply:
        await self._change(
            caller, given.action, lambda tx, queue, id, who: snoozes.reschedule(tx, queue, id, given.until, who)
        )
        return contract.ActionReply(action=given.action)

    async def undo_all(self, caller: Caller, given: contract.UndoSpanArguments) -> contract.UndoSpanReply:
        span = UndoSpan(given.since, given.until or self._queue.clock.now(), given.by)
        who = Actor.of(caller)
        job = await self._queue.database.write(lambda tx: undo.start_undo_many(tx, self._queue, span, who))
        return contract.UndoSpanReply(job=job, since=span.since, until=span.until)

    def _changing(
        self, change: Change[object]
    ) -> Callable[[Caller, contract.ActionArguments], Awaitable[contract.ActionReply]]:
        async def run(caller: Caller, given: contract.ActionArguments) -> contract.ActionReply:
            await self._change(caller, given.action, change)
            return contract.ActionReply(action=given.action)

        return run

    async def _change(self, caller: Caller, action_id: str, change: Change[T]) -> T:
        """In one transaction with the check that the action is of the mailbox that the caller is bound to."""

        def run(tx: Tx) -> T:
            mine = caller.endpoint_identity
            if mine is not None and mailbox_of_action(tx, action_id) != mine:
                raise NotAllowed(f"This token is for {mine} only.")
            return change(tx, self._queue, action_id, Actor.of(caller))

        return await self._queue.database.write(run)


def _act(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.ACT, description, run, keeps_to_mailbox=True)
