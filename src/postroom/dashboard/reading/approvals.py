"""Questions that wait for a person, with all that is needed to answer them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from postroom.actions import approvals, wording
from postroom.actions.approvals import Question
from postroom.db import Tx

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


def _row(question: Question) -> QuestionRow:
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
