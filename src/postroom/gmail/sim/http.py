"""Requests and answers as plain values, between the server and everything that decides."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

JSON_TYPE = "application/json; charset=UTF-8"


@dataclass(frozen=True, slots=True)
class Request:
    verb: str
    path: str
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    announced_length: int | None = None
    """What Content-Length says, where that is a lie: the connection breaks off before so much was sent."""


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode())
