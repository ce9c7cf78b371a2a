"""The tools for what was done with mail: answer approvals; undo, retry, cancel and reschedule actions."""

from __future__ import annotations

from typing import Literal

from pydantic import AwareDatetime, Field

from postroom.contract.fields import Id, Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.actions import Origin
from postroom.domain.limits import LONGEST_NOTE


class VerdictArguments(Arguments):
    verdict: Literal["approve", "reject"]
    note: str | None = Field(None, min_length=1, max_length=LONGEST_NOTE, description="kept in the audit log")


class AnswerArguments(VerdictArguments):
    action: Id


class ActionArguments(Arguments):
    action: Id


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


class ActionReply(Reply):
    action: str


class UndoReply(Reply):
    undo: str
    """The undo, which is an action of its own."""


class UndoSpanReply(Reply):
    job: str
    since: Moment
    until: Moment


ANSWER = ToolSignature("approvals.answer", AnswerArguments, AnsweredReply)
UNDO = ToolSignature("actions.undo", ActionArguments, UndoReply)
RETRY = ToolSignature("actions.retry", ActionArguments, ActionReply)
CANCEL = ToolSignature("actions.cancel", ActionArguments, ActionReply)
WAKE = ToolSignature("actions.wake", ActionArguments, ActionReply)
SNOOZE = ToolSignature("actions.snooze", SnoozeArguments, ActionReply)
UNDO_ALL = ToolSignature("actions.undo_all", UndoSpanArguments, UndoSpanReply)
