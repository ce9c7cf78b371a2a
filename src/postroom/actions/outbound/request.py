"""The job `outbound.send`: its type, and its payload as an action enqueues it or another caller gives it.

Postroom's own jobs name the action and leave the content out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from postroom.domain.actions import LONGEST_BODY, MOST_ATTACHMENTS, MOST_RECIPIENTS, ActionType, FileParameters
from postroom.domain.errors import BadInput, Fatal
from postroom.domain.jobs import OUTBOUND_SEND
from postroom.domain.validation import problem_text
from postroom.queue import NewJob

# Repeatable, so that an action retried by hand takes up its sending where it stood; what was sent is never sent again.


class MessageType(StrEnum):
    REPLY = "reply"
    FORWARD = "forward"


_TYPES = {ActionType.AUTO_REPLY: MessageType.REPLY, ActionType.FORWARD: MessageType.FORWARD}


def outbound_job(
    *, account_id: str, action_id: str, action_type: ActionType, message_id: str | None, thread_id: str | None
) -> NewJob:
    """The job that sends what an action wants sent, and then ends the action.

    To be enqueued in the transaction that marks the action as executing. It names things and holds no mail: recipients
    and text are those of the action's parameters, and the original is read when it is sent.
    """
    if action_type not in _TYPES:
        raise Fatal(f"{action_type} sends nothing.")
    payload = {
        "account_id": account_id,
        "action_id": action_id,
        "message_type": _TYPES[action_type],
        "original_message_id": message_id,
        "thread_id": thread_id,
    }
    return NewJob(OUTBOUND_SEND.name, payload, key=f"{OUTBOUND_SEND.name}:{account_id}:{action_id}")


_Address = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=320)]
_Addresses = Annotated[list[_Address], Field(max_length=MOST_RECIPIENTS)]
_Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class SendRequest(BaseModel):
    """What to send. Everything from `to` on is taken from the action and from the original where it is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    account_id: _Id
    action_id: _Id
    message_type: MessageType
    original_message_id: _Id | None = None
    thread_id: Annotated[str, StringConstraints(min_length=1, max_length=100)] | None = None
    to: _Addresses = []
    cc: _Addresses = []
    subject: Annotated[str, StringConstraints(max_length=1_000)] | None = None
    body_plain: Annotated[str, StringConstraints(max_length=LONGEST_BODY)] | None = None
    body_html: Annotated[str, StringConstraints(max_length=4 * LONGEST_BODY)] | None = None
    references: Annotated[list[Annotated[str, StringConstraints(max_length=998)]], Field(max_length=100)] = []
    attachments: Annotated[list[FileParameters], Field(max_length=MOST_ATTACHMENTS)] = []


def parse_request(payload: Mapping[str, Any]) -> SendRequest:
    try:
        return SendRequest.model_validate(payload)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        raise BadInput(".".join(map(str, problem["loc"])) or "payload", problem_text(problem)) from None
