"""Errors as replies: a page for people, JSON for programs. The HTTP status of each error class is listed here."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import Scope

from postroom.dashboard.display.rendering import render
from postroom.dashboard.forms import Form
from postroom.dashboard.security.login_throttle import TooManyAttempts
from postroom.dashboard.security.proof import PROOF_FIELD, ProofNeeded
from postroom.dashboard.security.request_checks import RequestTooLarge
from postroom.dashboard.security.sessions import visitor_of
from postroom.domain.errors import BadInput, NotAllowed, NotFound, PostroomError, Retryable, error_to_wire
from postroom.switchboard.request_limits import BodyTooLarge, TooManyRequests
from postroom.telemetry import logs

log = logs.get(__name__)

HTML, JSON = "text/html", "application/json"


class NotLoggedIn(NotAllowed):
    """Log in first. A program sends a token of role dashboard in its Authorization header."""


class UnknownHost(NotAllowed):
    """This name is not one of the dashboard's. Use the address that it listens on, or set `dashboard.url`."""


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
    403: "That is not allowed",
    404: "There is nothing here",
    405: "That cannot be done here",
    409: "That cannot be done now",
    413: "That is too large",
    421: "Unknown address",
    422: "Something in this is not right",
    429: "Too many attempts",
    500: "Something broke",
    503: "Not available just now",
}
_HTTP_MESSAGES = {
    404: "No page has this address. It may have moved, or what it showed is gone.",
    405: "This address does not take this kind of request.",
}


def error_response(scope: Scope, error: Exception) -> Response:
    """For a person who is not logged in and only looked, the way to the login."""
    request = Request(scope)
    problem = problem_of(error)
    if problem.status == 401 and request.method == "GET" and HTML in request.headers.get("accept", ""):
        return RedirectResponse(f"/login?next={quote(_local(request), safe='')}", 303)
    if _wants_json(request):
        return JSONResponse(problem.content, problem.status, problem.headers)
    if isinstance(error, ProofNeeded):
        return _confirmation(scope, error)
    html = render("problem.html", problem=problem, visitor=visitor_of(scope), section=None)
    return HTMLResponse(html, problem.status, problem.headers)


def _confirmation(scope: Scope, error: ProofNeeded) -> Response:
    """The page that asks for the passphrase, with the form that was sent in it, so that nothing is written twice."""
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
    said = error_to_wire(error)["error"]
    said |= {name: logs.clean(value) for name, value in said.items() if isinstance(value, str)}
    headers: dict[str, str] = {}
    if isinstance(error, NotLoggedIn):
        headers["www-authenticate"] = 'Bearer realm="postroom"'
    if isinstance(error, Retryable) and error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after.total_seconds())))
    return HttpProblem(_status(error), said["message"], {"error": said}, headers)


def _status(error: PostroomError) -> int:
    for kind, status in _STATUSES.items():
        if isinstance(error, kind):
            return status
    return 409


_STATUSES: dict[type[PostroomError], int] = {
    NotLoggedIn: 401,
    UnknownHost: 421,
    NotAllowed: 403,
    RequestTooLarge: 413,
    BodyTooLarge: 413,
    NotFound: 404,
    BadInput: 422,
    TooManyAttempts: 429,
    TooManyRequests: 429,
    Retryable: 503,
}
"""The first that fits; what nobody can mend by asking again is a conflict with how things stand."""


def _first(error: RequestValidationError) -> BadInput:
    """The path, the query or the body did not have the form that the page or the API says."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    return BadInput(name, str(first["msg"]))


def _of_http(error: HTTPException) -> HttpProblem:
    if error.status_code == 400:  # a body that is not what its content type says
        return problem_of(BadInput("body", "cannot be read"))
    message = _HTTP_MESSAGES.get(error.status_code, str(error.detail))
    kind = "not_found" if error.status_code == 404 else "not_allowed"
    return HttpProblem(
        error.status_code, message, {"error": {"kind": kind, "message": message}}, dict(error.headers or {})
    )


def _unexpected(error: Exception) -> HttpProblem:
    """The log has what happened; the visitor gets a word to find it by."""
    reference = secrets.token_hex(4)
    log.error("dashboard.unexpected", reference=reference, exc_info=error)
    message = f"This is a fault in Postroom. Its log says more; look for {reference}."
    return HttpProblem(500, message, {"error": {"kind": "fatal", "message": message, "reference": reference}})


def _wants_json(request: Request) -> bool:
    accept = request.headers.get("accept", "")
    return request.url.path.startswith("/api/") or (JSON in accept and HTML not in accept)


def _local(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
