"""What the stand-in sends back: a plain answer, or one that misbehaves on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

HTML = "text/html; charset=utf-8"
XML = "application/xml; charset=utf-8"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Reply:
    status: int = 200
    body: bytes = b""
    content_type: str = HTML
    headers: Headers = ()
    stream: AsyncIterator[bytes] | None = None
    """Sent piece by piece in place of the body, without a length."""
    announced_length: int | None = None
    """What Content-Length says, where that is a lie: the connection breaks off before so much was sent."""


def html(title: str, body: str, *, head: str = "", headers: Headers = (), lang: str = "hr") -> Reply:
    page = (
        f'<!doctype html>\n<html lang="{lang}">\n<head><meta charset="utf-8"><title>{title}</title>{head}</head>\n'
        f"<body>\n<nav><a href='/'>Home</a> <a href='/news'>News</a></nav>\n<main>{body}</main>\n"
        "<footer>Stand-in gazette. Nothing here is real.</footer>\n</body>\n</html>\n"
    )
    return Reply(body=page.encode(), headers=headers)


def redirect(location: str, status: int = 302) -> Reply:
    return Reply(status, headers=(("Location", location),))


def missing() -> Reply:
    return Reply(404, b"<h1>Not found</h1>")
