"""`/api/approvals`: the same as the Approvals page."""

from __future__ import annotations

from uuid import UUID

from pydantic import BaseModel, Field

from postroom.actions.approvals import LONGEST_NOTE, Verdict, answer
from postroom.dashboard.api import api_router
from postroom.dashboard.api.actions import mailbox_of_action
from postroom.dashboard.reading.approvals import QuestionRow, open_questions, question
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission

router = api_router("approvals")


class Given(BaseModel, extra="forbid"):
    verdict: Verdict
    note: str | None = Field(None, min_length=1, max_length=LONGEST_NOTE, description="kept in the audit log")


class Answered(BaseModel):
    counted: bool = Field(description="false: somebody was first, or nobody answered in time")
    question: QuestionRow


@router.get("")
@permits(Permission.READ)
async def questions(here: Here) -> list[QuestionRow]:
    """Open questions, the oldest first."""
    return await here.read(open_questions)


@router.get("/{action_id}")
@permits(Permission.READ, mailbox_of_action)
async def one(here: Here, action_id: UUID) -> QuestionRow:
    """A question, open or answered."""
    return await here.read(lambda tx: question(tx, str(action_id)))


@router.post("/{action_id}")
@permits(Permission.APPROVE, mailbox_of_action)
async def give(here: Here, action_id: UUID, given: Given) -> Answered:
    """Answer a question; each is answered once."""
    done = await here.write(
        lambda tx: answer(tx, here.app.queue, str(action_id), given.verdict, here.actor, note=given.note)
    )
    return Answered(counted=done.counted, question=await here.read(lambda tx: question(tx, str(action_id))))
