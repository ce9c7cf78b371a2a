"""The JSON API under `/api`: everything that the pages do, described at `/api/openapi.json`.

A module here has a `router` made by `api_router`; it is found by itself. Each of its routes says with `@permits` what a
token needs for it.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from postroom.dashboard.security.permits import check_permit


class Refusal(BaseModel):
    kind: str = Field(description="bad_input, not_found, not_allowed, retryable or fatal")
    message: str = Field(description="what is wrong and what to do, for a person")
    field: str | None = Field(None, description="of a bad input: which value was refused")
    problem: str | None = Field(None, description="of a bad input: why")
    retry_after: float | None = Field(None, description="seconds after which it may succeed")
    reference: str | None = Field(None, description="of a fault: the word to look for in the log")


class Problem(BaseModel):
    """Every answer that is not a success."""

    error: Refusal


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
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text} for status, text in _STATUSES.items()
}


def api_router(name: str) -> APIRouter:
    """Routes under `/api/NAME`, with the refusals that any of them may answer."""
    return APIRouter(prefix=f"/api/{name}", tags=[name], responses=PROBLEMS, dependencies=[Depends(check_permit)])
