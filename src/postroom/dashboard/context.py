"""What every route begins with: the request context (read, write, call a tool, render a page, redirect with a notice),
the routers for pages and for the JSON API under `/api`, and the permission that each API route declares.

A token needs the declared permission and, where it is bound to one mailbox, a request about that mailbox. A route
that declares nothing is closed to every token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field
from sqlalchemy import select
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import compile_path

from postroom.actions.browsing import failed_jobs
from postroom.app.installation import App
from postroom.app.serving import SharedServices
from postroom.audit import Actor
from postroom.contract.tool import A, R, ToolSignature
from postroom.dashboard.display.rendering import render
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.sidebar import MailCounts
from postroom.dashboard.paging import bounded_counts
from postroom.dashboard.security import sessions
from postroom.dashboard.security.gate import Hosts
from postroom.dashboard.security.passphrase import FailedLogins, LoginDelay, PassphraseHasher
from postroom.dashboard.security.sessions import ShownOnce, Signer, Visitor, require_visitor, visitor_of
from postroom.db import Tx
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus
from postroom.domain.errors import NotAllowed
from postroom.domain.roles import Caller, Permission
from postroom.switchboard.toolbox import Direct
from postroom.triage import review

if TYPE_CHECKING:
    from postroom.dashboard.live_updates import LiveHub
    from postroom.dashboard.settings.accounts import GoogleLogins


T = TypeVar("T")

LIVE_HEADER = "x-live"
"""Sent by the script that refreshes a part of a page; such a request must not use up the notice."""

NOTICE_LIFE = timedelta(minutes=1)
"""A message about a change that no page has shown by then says nothing of how things are now."""


@dataclass(frozen=True)
class DashboardServices:
    """What all requests of the dashboard share."""

    shared: SharedServices
    hub: LiveHub
    hosts: Hosts
    failed_logins: FailedLogins
    google_logins: GoogleLogins
    hasher: PassphraseHasher = field(default_factory=PassphraseHasher)
    login_delay: LoginDelay = field(default_factory=LoginDelay)
    signer: Signer = field(default_factory=Signer)
    mail_counts: MailCounts = field(default_factory=MailCounts)
    shown_once: ShownOnce = field(default_factory=ShownOnce)
    trial_slot: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """One rule is tried over the archive at a time: it keeps a core busy for seconds."""


@dataclass(frozen=True, slots=True)
class NavigationBadge:
    text: str
    says: str
    """What is counted, for those who do not see where it stands."""


@dataclass(frozen=True, slots=True)
class Undo:
    """A button beside a notice that takes the change back: where its form goes, and its fields."""

    path: str
    fields: Mapping[str, Sequence[str]]


class RequestContext:
    def __init__(self, request: Request) -> None:
        self.request = request
        self.services: DashboardServices = request.app.state.services
        self.now: datetime = self.app.clock.now()
        self.is_proved = False
        """The passphrase came with this request."""

    @property
    def app(self) -> App:
        return self.services.shared.app

    @property
    def visitor(self) -> Visitor:
        return require_visitor(self.request.scope)

    @property
    def caller(self) -> Caller:
        """For tools: the visitor, who may have given the passphrase a short time ago."""
        visitor, minutes = self.visitor, self.app.settings.dashboard.proof_minutes
        was_proved = visitor.session is not None and visitor.session.is_proved(minutes, self.now)
        return replace(visitor.caller, is_proved=was_proved or self.is_proved)

    @property
    def actor(self) -> Actor:
        """For the audit log."""
        return self.visitor.actor

    async def read(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.read(transaction)

    async def write(self, transaction: Callable[[Tx], T]) -> T:
        return await self.app.database.write(transaction)

    async def form(self) -> Form:
        return Form.sent(await self.request.form())

    async def call(self, tool: ToolSignature[A, R], arguments: A | Mapping[str, Any]) -> R:
        """Call a tool as this visitor; a refusal is raised as our error."""
        return await Direct(self.services.shared.toolbox, self.caller).call(tool, arguments)

    async def page(self, template: str, section: str | None, status: int = 200, **values: Any) -> HTMLResponse:
        """A page in a section of the navigation. Templates can always use `form` and `notice`."""
        visitor = visitor_of(self.request.scope)
        badges = {} if visitor is None else await self.read(_badges)
        shown = {"form": Form(), "notice": await self._notice(), "visitor": visitor, "badges": badges, **values}
        html = render(template, section=section, now=self.now, path=self.request.url.path, **shown)
        return HTMLResponse(html, status)

    async def go(
        self, path: str, message: str | None = None, level: str = "done", undo: Undo | None = None
    ) -> RedirectResponse:
        """After a change: redirect to the page that shows it, with a message that it shows once."""
        session = self.visitor.session
        if message is not None and session is not None:
            notice: dict[str, Any] = {"level": level, "text": message, "at": self.now.isoformat()}
            if undo is not None:
                notice["undo"] = {"path": undo.path, "fields": {name: [*each] for name, each in undo.fields.items()}}
            await self.write(lambda tx: sessions.leave_notice(tx, session.id, notice))
        return RedirectResponse(path, 303)

    async def _notice(self) -> Mapping[str, Any] | None:
        visitor = visitor_of(self.request.scope)
        session = None if visitor is None else visitor.session
        if session is None or session.notice is None or LIVE_HEADER in self.request.headers:
            return None
        await self.write(lambda tx: sessions.leave_notice(tx, session.id, None))
        return session.notice if self.now - _left_at(session.notice) <= NOTICE_LIFE else None


_MOST_IN_BADGE = 99


def _badges(tx: Tx) -> dict[str, NavigationBadge]:
    """What waits for a person, by section of the navigation."""
    waiting = {
        "approvals": (
            select(actions.c.id).where(actions.c.status == ActionStatus.APPROVED_PENDING),
            "waiting for approval",
        ),
        "review": (review.open_items(), "to review"),
        "actions": (select(actions.c.id).where(actions.c.status == ActionStatus.FAILED), "failed"),
        "queue": (failed_jobs(), "failed"),
    }
    found = bounded_counts(tx, {section: query for section, (query, _) in waiting.items()}, _MOST_IN_BADGE)
    return {
        section: NavigationBadge(str(number), waiting[section][1]) for section, number in found.items() if number.number
    }


def _left_at(notice: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(notice["at"]) if "at" in notice else datetime.min.replace(tzinfo=UTC)


Here = Annotated[RequestContext, Depends(RequestContext)]
"""`async def page(here: Here) -> Response` is how every route begins."""


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
ERROR_REPLIES[414] = {
    "description": "the address is too long; the server says so before it reads the rest of the request",
    "content": {"text/plain": {"schema": {"type": "string"}}},
}


class LateRoute(APIRoute):
    """A route whose parameters and replies are read when it is first asked for. There are hundreds; reading all of them
    takes a second of every start, and most are never asked for."""

    def __init__(
        self, path: str, endpoint: Callable[..., Any], *, methods: Collection[str] | None = None, **options: Any
    ) -> None:
        self.path, self.endpoint, self.methods = path, endpoint, set(methods or ["GET"])
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._unread: dict[str, Any] | None = options

    def __getattr__(self, name: str) -> Any:
        options, self._unread = self.__dict__.get("_unread"), None
        if options is not None:
            super().__init__(self.path, self.endpoint, methods=self.methods, **options)
        return object.__getattribute__(self, name)


def api_router(name: str) -> APIRouter:
    """Routes under `/api/NAME`, with the error replies that any of them may give."""
    return APIRouter(
        prefix=f"/api/{name}",
        tags=[name],
        responses=ERROR_REPLIES,
        dependencies=[Depends(check_permit)],
        route_class=LateRoute,
    )


_BYTES: dict[str, Any] = {"type": "string", "format": "binary"}


def file_reply(media_type: str, text: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"description": text, "content": {media_type: {"schema": _BYTES}}}}


def pages_router() -> APIRouter:
    """Routes of pages; they are not part of the API's description."""
    return APIRouter(include_in_schema=False, default_response_class=HTMLResponse, route_class=LateRoute)
