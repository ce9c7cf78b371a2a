"""The first words of a message, found without parsing all of it: every answer carries them, so they must be quick."""

from __future__ import annotations

import base64
import html
import quopri
import re

_LENGTH = 180
_WINDOW = 1024
_HTML_WINDOW = 4096
_NESTING = 8
_BOUNDARY = re.compile(rb'boundary\s*=\s*(?:"([^"]+)"|([^\s;]+))', re.IGNORECASE)
_CHARSET = re.compile(rb"charset\s*=\s*\"?([\w.:-]+)", re.IGNORECASE)
_HEADERS = {
    name: re.compile(rb"^" + name + rb":[ \t]*((?:.|\n[ \t])*)", re.IGNORECASE | re.MULTILINE)
    for name in (b"content-type", b"content-transfer-encoding")
}
_TAG = re.compile(r"<(?:style|script)\b.*?(?:</(?:style|script)>|$)|<[^>]*(?:>|$)", re.IGNORECASE | re.DOTALL)


def snippet(raw: bytes) -> str:
    """The start of the first text in the message, on one line, escaped for HTML as Gmail does."""
    head, body = _first_leaf(raw)
    content_type = _header(head, b"content-type").lower()
    if content_type and not content_type.startswith(b"text/"):
        return ""
    is_html = content_type.startswith(b"text/html")
    start = body[: _HTML_WINDOW if is_html else _WINDOW]
    text = _decoded(_undo_transfer(start, _header(head, b"content-transfer-encoding")), content_type)
    if is_html:
        text = html.unescape(_TAG.sub(" ", text))
    return html.escape(" ".join(text.split())[:_LENGTH].rstrip())


def _first_leaf(raw: bytes) -> tuple[bytes, bytes]:
    head, body = _split(raw)
    for _ in range(_NESTING):
        content_type = _header(head, b"content-type")
        found = _BOUNDARY.search(content_type) if content_type[:10].lower() == b"multipart/" else None
        if not found:
            break
        delimiter = b"--" + (found[1] or found[2])
        start = body.find(delimiter)
        if start < 0:
            break
        start = body.find(b"\n", start) + 1
        end = body.find(b"\n" + delimiter, start)
        head, body = _split(body[start : end if end >= 0 else None])
    return head, body


def _split(raw: bytes) -> tuple[bytes, bytes]:
    if raw[:1] in (b"\n", b"\r"):
        return b"", raw
    crlf = raw.find(b"\r\n\r\n")
    plain = raw.find(b"\n\n", 0, crlf if crlf >= 0 else len(raw))
    if plain >= 0:
        return raw[:plain], raw[plain + 2 :]
    return (raw[:crlf], raw[crlf + 4 :]) if crlf >= 0 else (raw, b"")


def _header(head: bytes, name: bytes) -> bytes:
    found = _HEADERS[name].search(head)
    return found[1].strip() if found else b""


def _undo_transfer(body: bytes, encoding: bytes) -> bytes:
    match encoding.lower():
        case b"quoted-printable":
            return quopri.decodestring(body)
        case b"base64":
            letters = re.sub(rb"[^A-Za-z0-9+/]", b"", body)
            if len(letters) % 4 == 1:
                letters = letters[:-1]
            return base64.b64decode(letters + b"=" * (-len(letters) % 4))
        case _:
            return body


def _decoded(body: bytes, content_type: bytes) -> str:
    found = _CHARSET.search(content_type)
    try:
        return body.decode(found[1].decode("ascii", "replace") if found else "utf-8", "replace")
    except (LookupError, ValueError):
        return body.decode("latin-1")
