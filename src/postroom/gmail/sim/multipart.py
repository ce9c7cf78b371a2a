"""Multipart bodies of requests and answers: uploads and batches. Not for mail, which may be broken; these may not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile

from postroom.gmail.sim.errors import invalid

_EMPTY_LINE = re.compile(rb"\n\r?\n")
_BOUNDARY = re.compile(r'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Section:
    headers: dict[str, str]
    body: bytes


def sections(body: bytes, content_type: str) -> list[Section]:
    found = _BOUNDARY.search(content_type)
    if not found:
        raise invalid("Failed to parse batch request, error: no boundary in the content type.")
    delimiter = b"\n--" + (found[1] or found[2]).encode("latin-1", "replace")
    pieces = (b"\n" + body).split(delimiter)
    if len(pieces) < 2:
        raise invalid("Failed to parse batch request, error: 0 items.")
    return [_piece(piece) for piece in takewhile(lambda piece: not piece.startswith(b"--"), pieces[1:])]


def section(text: bytes) -> Section:
    """Headers, an empty line, a body; the same shape at every level. The body is kept to the byte."""
    found = _EMPTY_LINE.search(b"\n" + text)
    head, body = (text[: found.start()], text[found.end() - 1 :]) if found else (text, b"")
    pairs = (line.partition(":") for line in head.decode("latin-1").splitlines() if ":" in line)
    return Section({name.strip().lower(): value.strip() for name, _, value in pairs}, body)


def _piece(piece: bytes) -> Section:
    """What stands between two delimiters, without the line ends that belong to them."""
    _, _, text = piece.partition(b"\n")
    return section(text.removesuffix(b"\r"))
