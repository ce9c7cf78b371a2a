"""Tools that apply a rule to past mail, show how far that is, stop it, go on with it, and undo it as one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from postroom.actions import undo
from postroom.archive.backend import ArchiveBackend
from postroom.audit import Actor
from postroom.contract import rules as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Tx
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.queue import JobQueue
from postroom.switchboard.toolbox import Tool
from postroom.triage.rules import applying
from postroom.triage.rules.applying import PastMail, RuleApplication
from postroom.triage.rules.store import rule_with_id


class PastMailTools:
    def __init__(self, queue: JobQueue, archive: ArchiveBackend) -> None:
        self._queue = queue
        self._archive = archive

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.APPLICATIONS,
            Role.DASHBOARD,
            Permission.READ,
            "Rules that were applied to past mail, newest first, with how far each is.",
            self.applications,
            reads_only=True,
        )
        yield _tool(
            contract.APPLY,
            "Let a worker apply a rule to past mail that is still in its mailbox, newest first, up to a cap.",
            self.apply,
        )
        yield _tool(contract.STOP_APPLICATION, "Stop applying a rule to past mail. What it did stays.", self.stop)
        yield _tool(
            contract.RESUME_APPLICATION, "Go on applying a rule to past mail, with another cap if given.", self.resume
        )
        yield _tool(
            contract.UNDO_APPLICATION,
            "Let a worker undo all that one application of a rule to past mail did, the newest first.",
            self.undo,
        )

    async def applications(self, caller: Caller, given: contract.ApplicationsArguments) -> contract.ApplicationsReply:
        found = await self._queue.database.read(lambda tx: applying.list_applications(tx, given.rule, given.limit))
        return contract.ApplicationsReply(applications=[_reply(each) for each in found])

    async def apply(self, caller: Caller, given: contract.ApplyRuleArguments) -> contract.ApplicationReply:
        """A rule that destroys mail needs the passphrase, as one that does so unattended."""
        mailbox = None if given.mailbox is None else normal_email(given.mailbox, "mailbox")
        mail = PastMail(given.query, mailbox, given.cap)
        rule = await self._queue.database.read(lambda tx: rule_with_id(tx, given.rule))
        if rule.draft is not None:
            applying.require_applicable(rule.draft)
            if applying.destroys(rule.draft):
                require_proof(caller, SensitiveChange.PAST_MAIL)
        total = await asyncio.to_thread(mail.count, self._archive)
        who = Actor.of(caller)
        return await self._changed(lambda tx: applying.begin(tx, self._queue, rule, mail, total, who))

    async def stop(self, caller: Caller, given: contract.ApplicationArguments) -> contract.ApplicationReply:
        return await self._changed(lambda tx: applying.stop(tx, self._queue, given.application, Actor.of(caller)))

    async def resume(self, caller: Caller, given: contract.ResumeApplicationArguments) -> contract.ApplicationReply:
        """The same: with another cap it destroys more."""
        who = Actor.of(caller)
        before = await self._queue.database.read(lambda tx: applying.get_application(tx, given.application))
        if applying.destroys(before.draft):
            require_proof(caller, SensitiveChange.PAST_MAIL)
        return await self._changed(lambda tx: applying.resume(tx, self._queue, given.application, given.cap, who))

    async def undo(self, caller: Caller, given: contract.ApplicationArguments) -> contract.UndoApplicationReply:
        who = Actor.of(caller)
        job, canceled = await self._queue.database.write(
            lambda tx: undo_application(tx, self._queue, given.application, who)
        )
        return contract.UndoApplicationReply(job=job, canceled=canceled)

    async def _changed(self, change: Callable[[Tx], RuleApplication]) -> contract.ApplicationReply:
        return _reply(await self._queue.database.write(change))


def undo_application(tx: Tx, queue: JobQueue, application_id: str, who: Actor) -> tuple[str, int]:
    """End the application, and undo it: the job, and how many actions are not done."""
    application = applying.mark_undone(tx, queue, application_id, who)
    return undo.undo_application(tx, queue, application.id, application.created_at, who)


def _tool(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.RULES, description, run)


def _reply(application: RuleApplication) -> contract.ApplicationReply:
    return contract.ApplicationReply.model_validate(application)
