"""The tools for putting archived mail back into a mailbox: plan it, start it, steer it, undo it; and propose it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from postroom.contract.tool import Arguments, Id, Moment, Reply, ToolSignature

_QUERY = "only archived mail that this search finds, as in Gmail; empty: all"


class RestoreArguments(Arguments):
    account: str = Field(min_length=3, max_length=320, description="whose archived mail to put back, by address")
    query: str = Field("", max_length=1_000, description=_QUERY)
    to_account: str | None = Field(
        None, min_length=3, max_length=320, description="the account to put it into; unset: the same"
    )
    folder: str | None = Field(
        None, min_length=1, max_length=200, description="put all of it into this folder or label; unset: where it was"
    )


class ProposeRestoreArguments(RestoreArguments):
    why: str = Field(min_length=1, max_length=500, description="for the person who decides")


class RestoreRunArguments(Arguments):
    run: Id


class RestoresArguments(Arguments):
    limit: int = Field(20, ge=1, le=100)


class RestorePlanReply(Reply):
    messages: int
    bytes: int
    left_out: int
    """Drafts, chats, and equal copies."""
    at_source: int
    """So many are probably in the target still; they are left alone."""
    oldest: Moment | None
    newest: Moment | None


class RestoreReply(Reply):
    id: str
    source: str
    target: str
    query: str
    folder: str | None
    state: str
    """proposed, rejected, running, completed, stopped, failed, undoing or undone"""
    messages: int
    """Found so far."""
    bytes: int
    done: int
    counts: dict[str, int]
    """By state: planned, appending, untrashing, appended, verified, already_there, failed, trashed."""
    left_out: int
    is_planned: bool
    reason: str | None
    certificate: dict[str, Any] | None
    """What was read back from the target; only of a completed restore."""
    can_go_on: bool
    can_be_undone: bool
    requested_by: str
    created_at: Moment
    updated_at: Moment
    finished_at: Moment | None


class RestoresReply(Reply):
    restores: list[RestoreReply]


LIST = ToolSignature("restores.list", RestoresArguments, RestoresReply)
PLAN = ToolSignature("restores.plan", RestoreArguments, RestorePlanReply)
START = ToolSignature("restores.start", RestoreArguments, RestoreReply)
APPROVE = ToolSignature("restores.approve", RestoreRunArguments, RestoreReply)
REJECT = ToolSignature("restores.reject", RestoreRunArguments, RestoreReply)
STOP = ToolSignature("restores.stop", RestoreRunArguments, RestoreReply)
RESUME = ToolSignature("restores.resume", RestoreRunArguments, RestoreReply)
UNDO = ToolSignature("restores.undo", RestoreRunArguments, RestoreReply)
PROPOSE = ToolSignature("propose_restore", ProposeRestoreArguments, RestoreReply)
