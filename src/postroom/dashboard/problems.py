"""Errors as replies: a page for people, JSON for programs. The HTTP status of each error class is listed here."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.types import Scope

from postroom.dashboard.display.rendering import render
from postroom.dashboard.forms import Form
from postroom.dashboard.security.gate import HostNotServed, NotLoggedIn, RequestTooLarge
from postroom.dashboard.security.login import PROOF_FIELD, PassphraseNeeded
from postroom.dashboard.security.passphrase import TooManyAttempts
from postroom.dashboard.security.sessions import visitor_of
from postroom.domain.errors import BadInput, NotAllowed, NotFound, PostroomError, Retryable, error_to_wire
from postroom.domain.validation import problem_steps, problem_text
from postroom.switchboard.request_limits import BodyTooLarge, TooManyRequests
from postroom.telemetry import logs

log = logs.get(__name__)

HTML, JSON = "text/html", "application/json"


@dataclass(frozen=True, slots=True)
class HttpProblem:
    status: int
    message: str
    content: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return _TITLES.get(self.status) or HTTPStatus(self.status).phrase


_TITLES = {
    401: "You are not logged in",
    403: "Not allowed",
    404: "Not found",
    405: "Not possible here",
    409: "Not possible now",
    413: "Too large",
    421: "Unknown address",
    422: "Invalid input",
    429: "Too many attempts",
    500: "Internal error",
    503: "Temporarily unavailable",
}
_HTTP_MESSAGES = {
    404: "There is no page at this address. It may have moved, or its content was removed.",
    405: "This address does not accept this kind of request.",
}


def error_response(scope: Scope, error: Exception) -> Response:
    """The reply to an error. A person who opened a page without a login is redirected to the login, and one who opens
    an address that only takes forms to the page above it."""
    request = Request(scope)
    problem = problem_of(error)
    if problem.status == 401 and request.method == "GET" and HTML in request.headers.get("accept", ""):
        return RedirectResponse(f"/login?next={quote(_local(request), safe='')}", 303)
    if _wants_json(request):
        return JSONResponse(problem.content, problem.status, problem.headers)
    if isinstance(error, PassphraseNeeded):
        return _confirmation(scope, error)
    if request.method == "GET" and problem.status in (404, 405, 422) and (above := _page_above(request)) is not None:
        return RedirectResponse(above, 303)
    html = render("problem.html", problem=problem, visitor=visitor_of(scope), section=None)
    return HTMLResponse(html, problem.status, problem.headers)


def _page_above(request: Request) -> str | None:
    """For an address that only takes forms, opened by a reload of what a form led to: the nearest page above it."""
    routes: Sequence[BaseRoute] = getattr(request.scope.get("app"), "routes", ())
    takes_forms = next((route for route in routes if _answers(route, request, request.url.path, "POST")), None)
    if takes_forms is None or any(_path_of(route) == _path_of(takes_forms) and _gets(route) for route in routes):
        return None
    path = request.url.path
    name = path.rpartition("/")[2]
    if any(_answers(route, request, path, "GET") and _path_of(route).endswith(f"/{name}") for route in routes):
        return None  # a page by that very name, which says itself what is wrong
    while path := path.rpartition("/")[0]:
        if any(_gets(route) and _answers(route, request, path, "GET") for route in routes):
            return path
    return "/"


def _answers(route: BaseRoute, request: Request, path: str, method: str) -> bool:
    match, _ = route.matches({**request.scope, "path": path, "method": method})
    return match is Match.FULL


def _gets(route: BaseRoute) -> bool:
    return "GET" in (getattr(route, "methods", None) or ())


def _path_of(route: BaseRoute) -> str:
    return str(getattr(route, "path", ""))


def _confirmation(scope: Scope, error: PassphraseNeeded) -> Response:
    """The page that asks for the passphrase; it carries the submitted form, so that nothing is typed twice."""
    form = Form() if not error.problem else Form().refused(BadInput(PROOF_FIELD, error.problem))
    shown = {"change": error.change, "fields": error.fields, "action": scope["path"], "form": form}
    html = render("confirm.html", visitor=visitor_of(scope), section=None, **shown)
    return HTMLResponse(html, error.status)


def problem_of(error: Exception) -> HttpProblem:
    match error:
        case RequestValidationError():
            return problem_of(_first(error))
        case HTTPException():
            return _of_http(error)
        case PostroomError():
            return _of_ours(error)
        case _:
            return _unexpected(error)


def _of_ours(error: PostroomError) -> HttpProblem:
    detail = error_to_wire(error)["error"]
    detail |= {name: logs.clean(value) for name, value in detail.items() if isinstance(value, str)}
    headers: dict[str, str] = {}
    if isinstance(error, NotLoggedIn):
        headers["www-authenticate"] = 'Bearer realm="postroom"'
    if isinstance(error, Retryable) and error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after.total_seconds())))
    return HttpProblem(_status(error), detail["message"], {"error": detail}, headers)


def _status(error: PostroomError) -> int:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return 409


_STATUSES: dict[type[PostroomError], int] = {
    NotLoggedIn: 401,
    HostNotServed: 421,
    NotAllowed: 403,
    RequestTooLarge: 413,
    BodyTooLarge: 413,
    NotFound: 404,
    BadInput: 422,
    TooManyAttempts: 429,
    TooManyRequests: 429,
    Retryable: 503,
}
"""The first class that fits decides; any other error is a conflict with the current state, 409."""


def _first(error: RequestValidationError) -> BadInput:
    """The first part of the path, query or body that is not valid."""
    first = error.errors()[0]
    part, *steps = problem_steps(first)
    name = ".".join(steps) or part
    return BadInput(name, problem_text(first))


def _of_http(error: HTTPException) -> HttpProblem:
    if error.status_code == 400:  # the body does not match its content type
        return problem_of(BadInput("body", "cannot be read"))
    message = _HTTP_MESSAGES.get(error.status_code, str(error.detail))
    kind = "not_found" if error.status_code == 404 else "not_allowed"
    return HttpProblem(
        error.status_code, message, {"error": {"kind": kind, "message": message}}, dict(error.headers or {})
    )


def _unexpected(error: Exception) -> HttpProblem:
    """The details go to the log; the visitor gets a reference to find them."""
    reference = secrets.token_hex(4)
    log.error("dashboard.unexpected", reference=reference, exc_info=error)
    message = f"This is an error in Postroom. Search its log for {reference} to find the details."
    return HttpProblem(500, message, {"error": {"kind": "fatal", "message": message, "reference": reference}})


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return request.url.path.startswith("/api/") or (JSON in accept and HTML not in accept)


def _local(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
