"""What a token needs for a route of the API: its permission, and, where it is bound to one mailbox, that the route is
about that mailbox. Decided here for all of them; a route that says nothing is open to no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from postroom.dashboard.visit import Here
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
