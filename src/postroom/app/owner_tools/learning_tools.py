"""Tools for local triage that learns: its figures, its switch, and a correction in one step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select

from postroom import audit, kill_switch
from postroom.actions import lifecycle, requests, undo
from postroom.audit import Actor
from postroom.contract import rules as contract
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, Origin, WantedAction, parse_action
from postroom.domain.errors import NotAllowed, NotFound
from postroom.domain.roles import Caller, Permission, Role
from postroom.queue import JobQueue
from postroom.settings import LearningSettings
from postroom.switchboard.toolbox import Tool
from postroom.triage.learning import store
from postroom.triage.learning.rights import answer_of
from postroom.triage.learning.status import learning_status


class LearningTools:
    def __init__(self, queue: JobQueue, settings: LearningSettings) -> None:
        self._queue = queue
        self._settings = settings

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LEARNING_STATUS,
            Role.DASHBOARD,
            Permission.READ,
            "How local triage stands: who decided lately, what was saved, and its right to each answer.",
            self.status,
            reads_only=True,
        )
        yield Tool(
            contract.SWITCH_LEARNING,
            Role.DASHBOARD,
            Permission.SETTINGS,
            "Switch local triage off, or on again. What it has learned stays.",
            self.switch,
        )
        yield Tool(
            contract.CORRECT_DECISION,
            Role.DASHBOARD,
            Permission.ACT,
            "Say that a message was decided wrongly: what was done is undone, and what should have been done is done "
            "and learned at once.",
            self.correct,
            keeps_to_mailbox=True,
        )

    async def status(self, caller: Caller, given: contract.LearningArguments) -> contract.LearningReply:
        now = self._queue.clock.now()
        found = await self._queue.database.read(lambda tx: learning_status(tx, self._settings, now))
        return contract.LearningReply.model_validate(found)

    async def switch(self, caller: Caller, given: contract.LearningSwitchArguments) -> contract.LearningSwitchReply:
        who, now = Actor.of(caller), self._queue.clock.now()
        found = await self._queue.database.write(lambda tx: kill_switch.turn_learning(tx, given.enabled, who, now))
        return contract.LearningSwitchReply.model_validate(found)

    async def correct(self, caller: Caller, given: contract.CorrectionArguments) -> contract.CorrectionReply:
        parameters = {"label": given.label} if given.label is not None else None
        wanted = None if given.action is None else parse_action(given.action, parameters)
        mine = caller.endpoint_identity
        return await self._queue.database.write(
            lambda tx: correct(tx, self._queue, given.message, wanted, Actor.of(caller), mine)
        )


def correct(
    tx: Tx, queue: JobQueue, message: str, wanted: WantedAction | None, who: Actor, mailbox: str | None = None
) -> contract.CorrectionReply:
    """Undo what the model or local triage did with the message, do what is wanted instead, and learn that. `mailbox` is
    the one that the caller is bound to."""
    target, now = requests.message_named(tx, message), queue.clock.now()
    message_id = target.message_id
    if message_id is None:
        raise NotFound("message", "rules and the model have not seen it")
    owner = tx.execute(select(accounts.c.email).where(accounts.c.id == target.account_id)).scalar_one()
    if mailbox is not None and owner != mailbox:
        raise NotAllowed(f"This token is for {mailbox} only.")
    learned = store.label_by_owner(tx, message_id, answer_of(wanted))
    undone = _take_back(tx, queue, message_id, who)
    action_id = None if wanted is None else requests.request_action(tx, queue, target, wanted, who)
    after = {"answer": answer_of(wanted), "learned": learned}
    audit.record(tx, who, "learning.correct", ("message", message_id), now, after=after)
    return contract.CorrectionReply(learned=learned, undone=undone, action=action_id)


def _take_back(tx: Tx, queue: JobQueue, message_id: str, who: Actor) -> int:
    query = select(actions).where(actions.c.message_id == message_id, actions.c.origin == Origin.MODEL)
    count = 0
    for row in tx.execute(tx.locking(query).order_by(actions.c.id.desc())).all():
        action = lifecycle.action_from_row(row)
        if action.status in (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING):
            requests.cancel_locked(tx, queue, action, who, "its decision was corrected")
        elif undo.why_not_now(tx, action) is None:
            undo.request_undo(tx, queue, action.id, who)
        else:
            continue
        count += 1
    return count
