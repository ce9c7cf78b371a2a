"""The payload of `outbound.send`. Postroom's own jobs name the action and leave the content out; others may give it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from postroom.actions.outbound.prepare import MessageType
from postroom.domain.actions import LONGEST_BODY, MOST_RECIPIENTS
from postroom.domain.errors import BadInput
from postroom.mail.enclosures import OutgoingAttachment

MOST_ATTACHMENTS = 20

_Address = Annotated[str, StringConstraints(strip_whitespace=True, min_length=3, max_length=320)]
_Addresses = Annotated[list[_Address], Field(max_length=MOST_RECIPIENTS)]
_Id = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InlineAttachment(_Part):
    filename: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    mime_type: Annotated[str, StringConstraints(min_length=3, max_length=255)]
    data: str

    def decoded(self) -> OutgoingAttachment:
        try:
            content = base64.b64decode(self.data, validate=True)
        except (binascii.Error, ValueError):
            raise BadInput("attachments", f"{self.filename[:60]!r} is not base64") from None
        return OutgoingAttachment(self.filename, self.mime_type, content)


class Request(_Part):
    """What to send. Everything from `to` on is taken from the action and from the original where it is left out."""

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
    attachments: Annotated[list[InlineAttachment], Field(max_length=MOST_ATTACHMENTS)] = []


def parse_request(payload: Mapping[str, Any]) -> Request:
    try:
        return Request.model_validate(payload)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        raise BadInput(".".join(map(str, problem["loc"])) or "payload", problem["msg"]) from None
