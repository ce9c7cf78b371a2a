"""The tools for mail that a person has to look at: list it, mark it as done, have it judged again."""

from __future__ import annotations

from pydantic import Field, StrictBool

from postroom.contract.fields import Id, Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.actions import ReviewCause

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


LIST = ToolSignature("review.list", ReviewArguments, ReviewReply)
DONE = ToolSignature("review.done", ReviewSelection, ReviewDoneReply)
ASK = ToolSignature("review.ask", ReviewSelection, ReviewAskedReply)
REOPEN = ToolSignature("review.reopen", ReviewItems, ReviewReopenedReply)
LIST_FOR_AGENT = ToolSignature("list_review", ReviewArguments, ReviewReply)
