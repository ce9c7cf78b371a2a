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
"""The mailbox that a request is about; None: there is no such thing."""

_KEY = "postroom_permit"


@dataclass(frozen=True, slots=True)
class Permit:
    permission: Permission
    mailbox: MailboxOf | None = None
    keeps_to_mailbox: bool = False
    """It needs no look at its mailbox: a tool of the Switchboard looks, or it tells of no mailbox."""

    def refusal(self, caller: Caller) -> str | None:
        """Why this caller may not ask for it, whatever it is about; None: it may."""
        if not caller.may(self.permission):
            return f"This needs a token with the permission `{self.permission}`; {caller.name} has none."
        if caller.endpoint_identity is not None and self.mailbox is None and not self.keeps_to_mailbox:
            return f"This concerns every mailbox; the token is for {caller.endpoint_identity} only."
        return None


def permits(
    permission: Permission, mailbox: MailboxOf | None = None, *, keeps_to_mailbox: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Stands between `@router.get(..)` and the function of every route of the API."""

    def mark(endpoint: Endpoint) -> Endpoint:
        endpoint.__dict__[_KEY] = Permit(permission, mailbox, keeps_to_mailbox)
        return endpoint

    return mark


def permit_of(endpoint: Any) -> Permit | None:
    return getattr(endpoint, _KEY, None)


def named_by(parameter: str) -> MailboxOf:
    """The mailbox stands in the path or the query. Named twice, it is none."""

    def mailbox(tx: Tx, request: Request) -> str | None:
        if parameter in request.path_params:
            return str(request.path_params[parameter])
        named = request.query_params.getlist(parameter)
        if not named:
            raise NotAllowed(f"This token is for one mailbox only: name it with `{parameter}=`.")
        return named[0] if len(named) == 1 else None

    return mailbox


async def check_permit(here: Here) -> None:
    """The dependency of every route of the API. A person who is logged in may do everything."""
    caller = here.visitor.caller
    if caller.token_id is None:
        return
    permit = permit_of(here.request.scope["endpoint"])
    if permit is None:
        raise NotAllowed("This is open to no token; log in to the dashboard.")
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
    message: str = Field(description="what is wrong and what to do, for a person")
    field: str | None = Field(None, description="of a bad input: which value was refused")
    problem: str | None = Field(None, description="of a bad input: why")
    retry_after: float | None = Field(None, description="seconds after which it may succeed")
    reference: str | None = Field(None, description="of a fault: the word to look for in the log")


class ErrorReply(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


_STATUSES = {
    401: "no login, and no good token",
    403: "a token of another role, permission or mailbox; a change that asks for the passphrase first; or a request "
    "that did not come from a page of this session",
    404: "there is no such thing",
    409: "not possible as things stand",
    413: "the request is too large",
    422: "a value was refused; nothing was changed",
    429: "too many wrong passphrases; wait",
    503: "try again later",
}
ERROR_REPLIES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": text} for status, text in _STATUSES.items()
}


def api_router(name: str) -> APIRouter:
    """Routes under `/api/NAME`, with the refusals that any of them may answer."""
    return APIRouter(prefix=f"/api/{name}", tags=[name], responses=ERROR_REPLIES, dependencies=[Depends(check_permit)])


_BYTES: dict[str, Any] = {"type": "string", "format": "binary"}


def file_reply(media_type: str, text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": {media_type: {"schema": _BYTES}}}}


def pages_router() -> APIRouter:
    """Routes of pages; they are not part of the API's description."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
