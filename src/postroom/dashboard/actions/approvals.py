"""Approvals: actions that rules or the model want and that need a person's answer first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.actions import approvals, wording
from postroom.actions.approvals import LONGEST_NOTE, ApprovalQuestion, ApprovalVerdict, answer
from postroom.dashboard.actions.routes import mailbox_of_action
from postroom.dashboard.context import Here
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.db import Tx
from postroom.domain.roles import Permission

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class QuestionRow:
    id: str
    deed: str
    """What would be done, in words."""
    wanted_by: str
    reasons: tuple[str, ...]
    account: str
    sender: str | None
    subject: str | None
    message: str
    """The mailbox's own id."""
    answers_go_to: str | None
    received_at: datetime | None
    asked_at: datetime
    expires_at: datetime | None
    is_open: bool
    standing: str


def open_questions(tx: Tx) -> list[QuestionRow]:
    """The oldest first."""
    return [_row(question) for question in approvals.list_questions(tx, MOST_SHOWN)]


def question(tx: Tx, action_id: str) -> QuestionRow:
    return _row(approvals.get_question(tx, action_id))


def _row(question: ApprovalQuestion) -> QuestionRow:
    action = question.action
    deed = wording.deed(action)
    return QuestionRow(
        id=action.id,
        deed=deed[:1].upper() + deed[1:],
        wanted_by=action.wanted_by,
        reasons=action.reasons,
        account=question.account,
        sender=question.sender,
        subject=question.subject,
        message=action.gmail_id,
        answers_go_to=question.answers_go_to,
        received_at=question.received_at,
        asked_at=action.created_at,
        expires_at=action.expires_at,
        is_open=question.is_open,
        standing=approvals.standing(action),
    )


pages = pages_router()

SECTION = "approvals"


@pages.get("/approvals")
async def approvals_page(here: Here) -> Response:
    questions = await here.read(open_questions)
    return await here.page("approvals/list.html", SECTION, questions=questions, most=MOST_SHOWN)


@pages.post("/approvals/{action_id}/approve")
async def submit_approve(here: Here, action_id: str) -> Response:
    return await _answer(here, action_id, ApprovalVerdict.APPROVE)


@pages.post("/approvals/{action_id}/reject")
async def submit_reject(here: Here, action_id: str) -> Response:
    return await _answer(here, action_id, ApprovalVerdict.REJECT)


async def _answer(here: Here, action_id: str, verdict: ApprovalVerdict) -> Response:
    note = (await here.form())["note"].strip() or None
    given = await here.write(lambda tx: answer(tx, here.app.queue, action_id, verdict, here.actor, note=note))
    told = "Approved; a worker does it now." if verdict is ApprovalVerdict.APPROVE else "Rejected; nothing is done."
    return await here.go("/approvals", told if given.counted else f"Your answer came too late: it is {given.said}.")


api = api_router("approvals")


class ApprovalAnswer(BaseModel, extra="forbid"):
    verdict: ApprovalVerdict
    note: str | None = Field(None, min_length=1, max_length=LONGEST_NOTE, description="kept in the audit log")


class ApprovalResult(BaseModel):
    counted: bool = Field(description="false: somebody was first, or nobody answered in time")
    question: QuestionRow


@api.get("")
@permits(Permission.READ)
async def questions(here: Here) -> list[QuestionRow]:
    """Open questions, the oldest first."""
    return await here.read(open_questions)


@api.get("/{action_id}")
@permits(Permission.READ, mailbox_of_action)
async def one(here: Here, action_id: UUID) -> QuestionRow:
    """A question, open or answered."""
    return await here.read(lambda tx: question(tx, str(action_id)))


@api.post("/{action_id}")
@permits(Permission.APPROVE, mailbox_of_action)
async def give(here: Here, action_id: UUID, given: ApprovalAnswer) -> ApprovalResult:
    """Answer a question; each is answered once."""
    done = await here.write(
        lambda tx: answer(tx, here.app.queue, str(action_id), given.verdict, here.actor, note=given.note)
    )
    return ApprovalResult(counted=done.counted, question=await here.read(lambda tx: question(tx, str(action_id))))
