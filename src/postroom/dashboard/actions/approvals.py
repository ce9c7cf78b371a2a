"""Approvals: actions of rules or the model that need a person's answer first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.actions import approvals, wording
from postroom.actions.approvals import ApprovalQuestion, ApprovalVerdict
from postroom.contract.actions import ANSWER, VerdictArguments
from postroom.contract.fields import Id
from postroom.dashboard.actions.routes import mailbox_of_path
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.db import Tx
from postroom.domain.roles import Permission

MOST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class QuestionRow:
    id: str
    summary: str
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
    state: str
    """In words, with who answered."""


def open_questions(tx: Tx) -> list[QuestionRow]:
    """The oldest first."""
    return [_row(question) for question in approvals.list_questions(tx, MOST_SHOWN)]


def question(tx: Tx, action_id: str) -> QuestionRow:
    return _row(approvals.get_question(tx, action_id))


def _row(question: ApprovalQuestion) -> QuestionRow:
    action = question.action
    summary = wording.deed(action)
    return QuestionRow(
        id=action.id,
        summary=summary[:1].upper() + summary[1:],
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
        state=approvals.standing(action),
    )


pages = pages_router()
api = api_router("approvals")

SECTION = "approvals"


class ApprovalResult(BaseModel):
    counted: bool = Field(description="false: it was already answered, or had expired")
    question: QuestionRow


@pages.get("/approvals")
async def approvals_page(here: Here) -> Response:
    return await here.page("approvals/list.html", SECTION, questions=await show_questions(here), most=MOST_SHOWN)


@api.get("")
@permits(Permission.READ)
async def show_questions(here: Here) -> list[QuestionRow]:
    """Open questions, the oldest first."""
    return await here.read(open_questions)


@api.get("/{action_id}")
@permits(Permission.READ, mailbox_of_path)
async def show_question(here: Here, action_id: Id) -> QuestionRow:
    """A question, open or answered."""
    return await here.read(lambda tx: question(tx, action_id))


@pages.post("/approvals/{action_id}/{verdict}")
async def submit_answer(here: Here, action_id: Id, verdict: ApprovalVerdict) -> Response:
    note = (await here.form()).optional("note")
    given = await here.call(ANSWER, {"action": action_id, "verdict": verdict, "note": note})
    done = "Approved; a worker does it now." if verdict is ApprovalVerdict.APPROVE else "Rejected; nothing is changed."
    return await here.go("/approvals", done if given.counted else f"Your answer came too late: it is {given.standing}.")


@api.post("/{action_id}")
@permits(Permission.APPROVE, keeps_to_mailbox=True)
async def give(here: Here, action_id: Id, given: VerdictArguments) -> ApprovalResult:
    """Answer a question; each is answered once."""
    done = await here.call(ANSWER, {**given.model_dump(), "action": action_id})
    return ApprovalResult(counted=done.counted, question=await show_question(here, action_id))
