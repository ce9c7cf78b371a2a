"""Multipart bodies of requests and answers: uploads and batches. Not for mail, which may be broken; these may not."""

from __future__ import annotations

import re
from dataclasses import dataclass

from postroom.gmail.sim.errors import invalid

_BOUNDARY = re.compile(r'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Section:
    headers: dict[str, str]
    body: bytes


def sections(body: bytes, content_type: str) -> list[Section]:
    found = _BOUNDARY.search(content_type)
    if not found:
        raise invalid("Failed to parse batch request, error: no boundary in the content type.")
    delimiter = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    pieces = body.split(delimiter)
    if len(pieces) < 2:
        raise invalid("Failed to parse batch request, error: 0 items.")
    return [section(piece.strip(b"\r\n")) for piece in pieces[1:] if not piece.startswith(b"--")]


def section(text: bytes) -> Section:
    """Headers, an empty line, a body; the same shape at every level."""
    head, _, body = text.replace(b"\r\n", b"\n", 1).partition(b"\n\n") if text.startswith(b"\n") else _cut(text)
    lines = head.decode("latin-1").splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return Section({name.strip().lower(): value.strip() for name, _, value in pairs}, body)


def _cut(text: bytes) -> tuple[bytes, bytes, bytes]:
    crlf, plain = text.find(b"\r\n\r\n"), text.find(b"\n\n")
    if crlf >= 0 and (plain < 0 or crlf < plain):
        return text[:crlf], b"", text[crlf + 4 :]
    return (text[:plain], b"", text[plain + 2 :]) if plain >= 0 else (text, b"", b"")
