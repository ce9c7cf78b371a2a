"""Routers for pages and for the JSON API under `/api`, and the permission that each API route declares.

A token needs the declared permission and, where it is bound to one mailbox, a request about that mailbox. A route
that declares nothing is closed to every token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter, Depends
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field
from starlette.requests import Request

from postroom.dashboard.context import Here
from postroom.db import Tx
from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller, Permission

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
MailboxOf = Callable[[Tx, Request], str | None]
"""The mailbox that a request is about; None where what it names does not exist."""

_KEY = "postroom_permit"


@dataclass(frozen=True, slots=True)
class Permit:
    permission: Permission
    mailbox: MailboxOf | None = None
    keeps_to_mailbox: bool = False
    """The mailbox need not be checked here: a tool of the Switchboard checks it, or the reply is about no mailbox."""

    def refusal(self, caller: Caller) -> str | None:
        """Why this caller may not ask for it, whatever the request is about; None if it may."""
        if not caller.may(self.permission):
            return f"This needs a token with the permission `{self.permission}`; {caller.name} does not have it."
        if caller.endpoint_identity is not None and self.mailbox is None and not self.keeps_to_mailbox:
            return f"This covers every mailbox; the token is for {caller.endpoint_identity} only."
        return None


def permits(
    permission: Permission, mailbox: MailboxOf | None = None, *, keeps_to_mailbox: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """A decorator of every API route, below its `@router.get(..)`."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__[_KEY] = Permit(permission, mailbox, keeps_to_mailbox)
        return endpoint

    return mark


def permit_of(endpoint: Any) -> Permit | None:
    return getattr(endpoint, _KEY, None)


def named_by(parameter: str) -> MailboxOf:
    """The mailbox that the path or the query names; None if the query names more than one."""

    def mailbox(tx: Tx, request: Request) -> str | None:
        if parameter in request.path_params:
            return str(request.path_params[parameter])
        named = request.query_params.getlist(parameter)
        if not named:
            raise NotAllowed(f"This token is for one mailbox only: name it with `{parameter}=`.")
        return named[0] if len(named) == 1 else None

    return mailbox


async def check_permit(here: Here) -> None:
    """The dependency of every API route. A person who is logged in may do everything."""
    caller = here.visitor.caller
    if caller.token_id is None:
        return
    permit = permit_of(here.request.scope["endpoint"])
    if permit is None:
        raise NotAllowed("Tokens cannot do this; log in to the dashboard.")
    if (refusal := permit.refusal(caller)) is not None:
        raise NotAllowed(refusal)
    mine, mailbox_of = caller.endpoint_identity, permit.mailbox
    if mine is None or mailbox_of is None:
        return
    asked = await here.read(lambda tx: mailbox_of(tx, here.request))
    if asked is None or asked.strip().lower() != mine:
        raise NotAllowed(f"This token is for {mine} only.")


class ErrorDetail(BaseModel):
    kind: str = Field(description="bad_input, not_found, not_allowed, retryable or fatal")
    message: str = Field(description="what is wrong and what to do about it")
    field: str | None = Field(None, description="for bad input: which value was refused")
    problem: str | None = Field(None, description="for bad input: why")
    retry_after: float | None = Field(None, description="seconds after which it may succeed")
    reference: str | None = Field(None, description="for an internal error: what to search the log for")


class ErrorReply(BaseModel):
    """The body of every reply that is not a success."""

    error: ErrorDetail


_STATUSES = {
    401: "not logged in, and no valid token",
    403: "the token lacks the role, permission or mailbox; the change needs the passphrase first; or the request did "
    "not come from a page of this session",
    404: "not found",
    409: "not possible in the current state",
    413: "the request is too large",
    422: "a value was refused; nothing was changed",
    429: "too many wrong passphrases; wait before trying again",
    503: "try again later",
}
ERROR_REPLIES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": text} for status, text in _STATUSES.items()
}


def api_router(name: str) -> APIRouter:
    """Routes under `/api/NAME`, with the error replies that any of them may give."""
    return APIRouter(prefix=f"/api/{name}", tags=[name], responses=ERROR_REPLIES, dependencies=[Depends(check_permit)])


_BYTES: dict[str, Any] = {"type": "string", "format": "binary"}


def file_reply(media_type: str, text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": {media_type: {"schema": _BYTES}}}}


def pages_router() -> APIRouter:
    """Routes of pages; they are not part of the API's description."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
