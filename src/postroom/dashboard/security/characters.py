"""The character that no text has, NUL, is refused wherever it is sent: PostgreSQL cannot hold it."""

from __future__ import annotations

import re

from starlette.types import Scope

from postroom.domain.errors import BadInput

_PROBLEM = "holds a character that no text has"
_IN_JSON = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_address(scope: Scope) -> None:
    if "\0" in scope["path"]:
        raise BadInput("path", _PROBLEM)
    if b"%00" in scope["query_string"]:
        raise BadInput("query", _PROBLEM)


def check_body(body: bytes) -> None:
    """Of JSON, where it is written as an escape; forms are looked at field by field."""
    if _IN_JSON.search(body):
        raise BadInput("body", _PROBLEM)
