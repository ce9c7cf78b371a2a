"""The owner's tools that reach outside on behalf of a message: load its remote pictures, and keep track of lists that
the owner left.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from postroom.contract.tool import Arguments, Id, Moment, Reply, ToolSignature

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
