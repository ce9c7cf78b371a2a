"""Who makes a request: a person with a session, or a program with a token of the dashboard's role."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from postroom.audit import Actor
from postroom.dashboard.security import browser_secrets
from postroom.dashboard.security.sessions import Session
from postroom.domain.errors import Fatal
from postroom.domain.roles import Caller, Role

KEY = "postroom.visitor"
OWNER = Caller(Role.DASHBOARD, "owner")


@dataclass(frozen=True, slots=True)
class Visitor:
    caller: Caller
    session: Session | None = None
    secret: str = ""
    """Of the session; empty for a program."""

    @property
    def csrf(self) -> str:
        return browser_secrets.csrf_token(self.secret) if self.session is not None else ""

    @property
    def actor(self) -> Actor:
        return Actor.of(self.caller)


def visitor_of(scope: Scope) -> Visitor | None:
    visitor: Visitor | None = scope.get(KEY)
    return visitor


def require_visitor(scope: Scope) -> Visitor:
    visitor = visitor_of(scope)
    if visitor is None:
        raise Fatal("A page was asked for without passing the gate.")
    return visitor
