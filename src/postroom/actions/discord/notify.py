"""The job `approval.notify`: bring one question to where people are, and take it away again once it is answered.

It may run any number of times: it looks at the action and at what it has said, and says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import select, update

from postroom.actions import approvals, store
from postroom.actions.approvals import Question
from postroom.actions.discord import messages
from postroom.actions.discord.client import DiscordChannel, MessageGone
from postroom.actions.notices import NoticeState
from postroom.db import Tx
from postroom.db.tables.actions import approval_notices
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import BadInput, Retryable
from postroom.domain.ids import parse_id
from postroom.queue import JobContext, JobType, KeyUse, RetryPolicy
from postroom.queue.model import Json

NOTIFY = JobType(jobs.APPROVAL_NOTIFY, KeyUse.REPEATABLE, RetryPolicy(max_attempts=8), timedelta(minutes=2))
CHANNEL = "discord"


@dataclass(frozen=True, slots=True)
class _Notice:
    message_id: str | None
    state: NoticeState


class ApprovalNotifier:
    def __init__(self, channel: DiscordChannel | None) -> None:
        self._channel = channel

    async def __call__(self, context: JobContext) -> Json:
        if self._channel is None:
            return {"outcome": "nobody to tell"}
        question, notice = await _situation(context)
        if question.is_open and (notice is None or notice.message_id is None):
            notice = await self._ask(context, self._channel, question)
            question, _ = await _situation(context)
        if question.is_open:
            return await _finish(context, question, "asked")
        if notice is None or notice.state == NoticeState.CLOSED:
            return {"outcome": "nothing to ask"}
        if notice.message_id is not None:
            async with context.step("close"):
                await self._close(self._channel, notice.message_id, question)
        return await _finish(context, question, NoticeState.CLOSED)

    async def _ask(self, context: JobContext, channel: DiscordChannel, question: Question) -> _Notice:
        """On record before and after; a message that was posted and not recorded has the same nonce, and works too."""
        action_id = question.action.id
        await context.write(lambda tx: _begin(tx, context, action_id))
        async with context.step("ask") as step:
            message_id = await channel.post(messages.asking(question), messages.nonce_of(action_id))
            step.result = {"message_id": message_id}
        await context.write(lambda tx: _note(tx, context, action_id, NoticeState.SENT, message_id))
        return _Notice(message_id, NoticeState.SENT)

    async def _close(self, channel: DiscordChannel, message_id: str, question: Question) -> None:
        try:
            await channel.edit(message_id, messages.answered(question))
        except MessageGone:
            return


async def _situation(context: JobContext) -> tuple[Question, _Notice | None]:
    payload = context.job.payload
    action_id = parse_id(str(payload.get("action_id")), "action_id")

    def read(tx: Tx) -> tuple[Question, _Notice | None]:
        question = approvals.get_question(tx, action_id)
        if question.action.account_id != payload.get("account_id"):
            raise BadInput("account_id", f"action {action_id} belongs to another account")
        row = tx.execute(select(approval_notices).where(approval_notices.c.action_id == action_id)).one_or_none()
        return question, None if row is None else _Notice(row.external_message_id, NoticeState(row.state))

    return await context.queue.database.read(read)


async def _finish(context: JobContext, question: Question, outcome: str) -> Json:
    """The job ends only if what it said still holds: an answer that came meanwhile found this job at work."""
    action_id = question.action.id

    def end(tx: Tx) -> Json:
        status = store.get(tx, action_id, lock=True).status
        if question.is_open and status is not ActionStatus.APPROVED_PENDING:
            raise Retryable("The question was answered just now.", retry_after=timedelta(0))
        if outcome == NoticeState.CLOSED:
            _note(tx, context, action_id, NoticeState.CLOSED)
        return {"outcome": outcome}

    await context.complete(end)
    return None


def _begin(tx: Tx, context: JobContext, action_id: str) -> None:
    now = context.queue.clock.now()
    row = {
        "action_id": action_id,
        "channel": CHANNEL,
        "state": NoticeState.SENDING,
        "created_at": now,
        "updated_at": now,
    }
    tx.insert_missing(approval_notices, row)


def _note(tx: Tx, context: JobContext, action_id: str, state: NoticeState, message_id: str | None = None) -> None:
    values = {"state": state, "updated_at": context.queue.clock.now()}
    values |= {} if message_id is None else {"external_message_id": message_id}
    tx.execute(update(approval_notices).where(approval_notices.c.action_id == action_id).values(**values))
