"""The tools for what is done with mail: act on it or propose that; answer approvals; list, undo, retry, cancel and
reschedule actions; work off the mail that a person has to look at; load a message's remote pictures, and keep track of
lists that the owner left.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, StrictBool

from postroom.contract.tool import Arguments, Id, Moment, Reply, ToolSignature
from postroom.domain.actions import ActionStatus, ActionType, Origin, ReviewCause
from postroom.domain.validation import LONGEST_NOTE

MOST_AT_ONCE = 200
"""Approvals in one call."""
MOST_MESSAGES = 700
"""Messages, or actions on them, in one call: all that a page of conversations stands for."""


class VerdictArguments(Arguments):
    verdict: Literal["approve", "reject"]
    note: str | None = Field(None, min_length=1, max_length=LONGEST_NOTE, description="kept in the audit log")


class AnswerArguments(VerdictArguments):
    action: Id


class AnswerManyArguments(VerdictArguments):
    actions: list[Id] = Field(min_length=1, max_length=MOST_AT_ONCE)


class TakeBackArguments(Arguments):
    actions: list[Id] = Field(min_length=1, max_length=MOST_MESSAGES)


class ActionArguments(Arguments):
    action: Id


class ActArguments(Arguments):
    message: str = Field(
        min_length=1,
        max_length=300,
        description="a message's `key` from a search or a list, its id, or its Message-ID in angle brackets",
    )
    type: ActionType
    parameters: dict[str, Any] = Field(
        {},
        description="as the type needs them: label; until, or amount with units; to and note, or body, and with either "
        "cc, subject, body_html and attachments (filename, mime_type, data in base64)",
    )


class MailName(Arguments):
    """A message by its mailbox and its key there, as search and lists show them."""

    mailbox: str = Field(min_length=3, max_length=320, description="the mailbox's address")
    key: str = Field(min_length=1, max_length=200)


class ActOnManyArguments(Arguments):
    messages: list[MailName] = Field(min_length=1, max_length=MOST_MESSAGES)
    type: ActionType = Field(description="not forward, auto_reply or delete: those are done one by one")
    parameters: dict[str, Any] = Field({}, description="as the type needs them: label; until, or amount with units")


class ProposeActionArguments(ActArguments):
    why: str = Field(min_length=1, max_length=500, description="for the person who decides")


class ListActionsArguments(Arguments):
    status: ActionStatus | None = None
    by: Origin | None = Field(None, description="who wanted it")
    endpoint_identity: str | None = Field(None, max_length=320, description="only actions on mail of this mailbox")
    after: Id | None = Field(None, description="`next` of the page before")
    limit: int = Field(50, ge=1, le=200)


class ListApprovalsArguments(Arguments):
    endpoint_identity: str | None = Field(None, max_length=320, description="only questions about this mailbox")
    after: Id | None = Field(None, description="`next` of the page before")
    limit: int = Field(50, ge=1, le=200)


class ReturnTime(Arguments):
    until: AwareDatetime = Field(description="when it returns, with its zone; ten years ahead at most")


class SnoozeArguments(ReturnTime):
    action: Id


class UndoSpanArguments(Arguments):
    by: Origin = Field(Origin.MODEL, description="model or rule")
    since: AwareDatetime
    until: AwareDatetime | None = Field(None, description="not included; unset: now")


class AnsweredReply(Reply):
    counted: bool
    """False: it was already answered, or had expired."""
    standing: str
    """How the question stands now, in words."""


class OneAnswerReply(AnsweredReply):
    action: str


class AnsweredManyReply(Reply):
    answers: list[OneAnswerReply]
    """In the order of the call."""


class ActionReply(Reply):
    action: str


class ListedActionReply(Reply):
    id: str
    summary: str
    type: ActionType
    status: ActionStatus
    is_undone: bool
    wanted_by: str
    mailbox: str
    key: str
    """The mailbox's own id of the message."""
    subject: str | None
    sender: str | None
    reasons: list[str]
    """Why it needs or needed approval."""
    error: str | None
    created_at: Moment
    finished_at: Moment | None


class ActionsReply(Reply):
    actions: list[ListedActionReply]
    next: str | None


class UndoReply(Reply):
    undo: str
    """The undo, which is an action of its own."""


class MailActedOnReply(Reply):
    mailbox: str
    key: str
    action: str | None
    """Null where nothing is done."""
    reason: str | None
    """Why nothing is done."""


class ActOnManyReply(Reply):
    messages: list[MailActedOnReply]
    """In the order of the call."""


class UndoSpanReply(Reply):
    job: str
    since: Moment
    until: Moment


DO = ToolSignature("actions.do", ActArguments, ActionReply)
DO_MANY = ToolSignature("actions.do_many", ActOnManyArguments, ActOnManyReply)
ANSWER = ToolSignature("approvals.answer", AnswerArguments, AnsweredReply)
ANSWER_MANY = ToolSignature("approvals.answer_many", AnswerManyArguments, AnsweredManyReply)
TAKE_BACK = ToolSignature("actions.take_back", TakeBackArguments, AnsweredManyReply)
UNDO = ToolSignature("actions.undo", ActionArguments, UndoReply)
RETRY = ToolSignature("actions.retry", ActionArguments, ActionReply)
DISMISS = ToolSignature("actions.dismiss", ActionArguments, ActionReply)
CANCEL = ToolSignature("actions.cancel", ActionArguments, ActionReply)
WAKE = ToolSignature("actions.wake", ActionArguments, ActionReply)
SNOOZE = ToolSignature("actions.snooze", SnoozeArguments, ActionReply)
UNDO_ALL = ToolSignature("actions.undo_all", UndoSpanArguments, UndoSpanReply)
LIST_FOR_AGENT = ToolSignature("list_actions", ListActionsArguments, ActionsReply)
APPROVALS_FOR_AGENT = ToolSignature("list_approvals", ListApprovalsArguments, ActionsReply)
PROPOSE = ToolSignature("propose_action", ProposeActionArguments, ActionReply)
UNDO_FOR_AGENT = ToolSignature("undo_action", ActionArguments, UndoReply)


_MOST = 500


class ReviewArguments(Arguments):
    cause: ReviewCause | None = Field(None, description="only items with this cause")
    endpoint_identity: str | None = Field(None, max_length=320, description="only mail of this mailbox")
    after: Id | None = Field(None, description="`next` of the page before")
    limit: int = Field(50, ge=1, le=_MOST)


class ReviewSelection(Arguments):
    """Items by their ids, or all that need review now."""

    items: list[Id] = Field([], max_length=_MOST, description="ids of the list")
    all: StrictBool = Field(False, description="every item, in place of ids; a few hundred to a transaction")
    cause: ReviewCause | None = Field(None, description="with `all`: only items with this cause")


class ReviewItems(Arguments):
    items: list[Id] = Field(min_length=1, max_length=_MOST)


class ReviewItemReply(Reply):
    id: str
    mailbox: str
    key: str
    """The mailbox's own id of the message."""
    subject: str | None
    sender: str
    received_at: Moment
    since: Moment
    reason: str
    cause: str | None
    can_ask: bool
    """Whether it can be judged again."""


class ReviewReply(Reply):
    items: list[ReviewItemReply]
    next: str | None


class ReviewDoneReply(Reply):
    done: int


class ReviewReopenedReply(Reply):
    reopened: int


class ReviewAskedReply(Reply):
    asked: int
    left: int
    """How many cannot be judged again, because the model has answered."""


LIST_REVIEW = ToolSignature("review.list", ReviewArguments, ReviewReply)
REVIEW_DONE = ToolSignature("review.done", ReviewSelection, ReviewDoneReply)
REVIEW_ASK = ToolSignature("review.ask", ReviewSelection, ReviewAskedReply)
REVIEW_REOPEN = ToolSignature("review.reopen", ReviewItems, ReviewReopenedReply)
REVIEW_FOR_AGENT = ToolSignature("list_review", ReviewArguments, ReviewReply)


_Mailbox = Annotated[str, Field(min_length=3, max_length=320, description="the mailbox's address")]
_Key = Annotated[str, Field(min_length=1, max_length=200, description="`key` of the message")]
_Sender = Annotated[str, Field(min_length=3, max_length=320, description="an e-mail address")]


class ArchivedMailArguments(Arguments):
    endpoint_identity: _Mailbox
    key: _Key


class PictureSenderArguments(Arguments):
    sender: _Sender


class NoteUnsubscribedArguments(ArchivedMailArguments):
    way: Literal["mail", "link"] = Field(description="how the owner unsubscribed")
    action: Id | None = Field(None, description="the action that sends the mail")


class UnsubscribedArguments(Arguments):
    endpoint_identity: _Mailbox
    sender: _Sender


class PicturesReply(Reply):
    loaded: int
    failed: int
    """Not downloaded, too large, or no picture."""
    left_out: int
    """There only to count readers, or beyond the most that are fetched."""


class PictureSenderReply(Reply):
    address: str
    allowed_by: str
    allowed_at: Moment


class UnsubscribedReply(Reply):
    mailbox: str
    sender: str
    way: str
    asked_at: Moment


LOAD_PICTURES = ToolSignature("pictures.load", ArchivedMailArguments, PicturesReply)
ALLOW_PICTURES = ToolSignature("pictures.allow", ArchivedMailArguments, PictureSenderReply)
FORGET_PICTURES = ToolSignature("pictures.forget", PictureSenderArguments, PictureSenderReply)
NOTE_UNSUBSCRIBED = ToolSignature("unsubscribe.note", NoteUnsubscribedArguments, UnsubscribedReply)
FORGET_UNSUBSCRIBED = ToolSignature("unsubscribe.forget", UnsubscribedArguments, UnsubscribedReply)
