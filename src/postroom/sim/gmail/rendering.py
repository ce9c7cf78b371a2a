"""Messages as JSON in the four formats of the API, with snippets and sealed attachment ids and page tokens.

Every answer carries a snippet, so it is found without parsing the whole message.
"""

from __future__ import annotations

import base64
import hmac
import html
import json
import quopri
import re
from base64 import urlsafe_b64encode
from collections.abc import Collection
from enum import StrEnum

from postroom.sim.gmail import raw_mail
from postroom.sim.gmail.api_errors import invalid
from postroom.sim.gmail.mailbox_store import MailboxStore
from postroom.sim.gmail.raw_mail import SimPart, headers_of, take_apart
from postroom.sim.gmail.sources import MailSummary

_SEAL_BYTES = 9


class TokenSealer:
    """Turns a small JSON value into an opaque token for one purpose, and back; anything else is not a token."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()

    def seal(self, purpose: str, value: object) -> str:
        payload = json.dumps(value, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mark(purpose, payload) + payload).decode().rstrip("=")

    def open(self, purpose: str, token: str) -> object | None:
        """The value, or None if this token was not made here for this purpose."""
        try:
            sealed = raw_mail.decode_base64url(token)
        except ValueError:
            return None
        mark, payload = sealed[:_SEAL_BYTES], sealed[_SEAL_BYTES:]
        if not hmac.compare_digest(mark, self._mark(purpose, payload)):
            return None
        value: object = json.loads(payload)
        return value

    def _mark(self, purpose: str, payload: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + payload, "sha256")[:_SEAL_BYTES]


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


Json = dict[str, object]


class RenderFormat(StrEnum):
    MINIMAL = "minimal"
    FULL = "full"
    RAW = "raw"
    METADATA = "metadata"


def format_named(text: str) -> RenderFormat:
    try:
        return RenderFormat(text.lower())
    except ValueError:
        raise invalid(f"Invalid value for format: {text[:40]}") from None


def labels_shown(label_ids: frozenset[str]) -> Json:
    """Archived mail that is read may have no label, and then the answer has no list of them, not an empty one."""
    return {"labelIds": sorted(label_ids)} if label_ids else {}


class Renderer:
    def __init__(self, store: MailboxStore, sealer: TokenSealer) -> None:
        self._store = store
        self._sealer = sealer

    def message(self, mail: MailSummary, form: RenderFormat, only_headers: Collection[str] = ()) -> Json:
        raw = self._store.raw(mail.id)
        shown: Json = {
            "id": mail.id,
            "threadId": mail.thread_id,
            **labels_shown(mail.label_ids),
            "snippet": snippet(raw),
            "sizeEstimate": len(raw),
            "historyId": str(self._store.history_id(mail.id)),
            "internalDate": str(mail.internal_date),
        }
        match form:
            case RenderFormat.RAW:
                shown["raw"] = urlsafe_b64encode(raw).decode("ascii")
            case RenderFormat.FULL:
                shown["payload"] = self._part(mail.id, take_apart(raw))
            case RenderFormat.METADATA:
                shown["payload"] = _headers_only(raw, only_headers)
            case RenderFormat.MINIMAL:
                pass
        return shown

    def attachment(self, message_id: str, attachment_id: str) -> Json:
        part_id = self._sealer.open(f"attachment:{message_id}", attachment_id)
        for part in take_apart(self._store.raw(message_id)).walk() if part_id is not None else ():
            if part.part_id == part_id:
                return {"size": len(part.content), "data": urlsafe_b64encode(part.content).decode("ascii")}
        raise invalid("Invalid attachment token")

    def _part(self, message_id: str, part: SimPart) -> Json:
        shown: Json = {
            "partId": part.part_id,
            "mimeType": part.mime_type,
            "filename": part.filename,
            "headers": [{"name": name, "value": value} for name, value in part.headers],
            "body": self._body(message_id, part),
        }
        if part.children:
            shown["parts"] = [self._part(message_id, child) for child in part.children]
        return shown

    def _body(self, message_id: str, part: SimPart) -> Json:
        if part.is_attachment:
            token = self._sealer.seal(f"attachment:{message_id}", part.part_id)
            return {"attachmentId": token, "size": len(part.content)}
        if not part.content:
            return {"size": 0}
        return {"size": len(part.content), "data": urlsafe_b64encode(part.content).decode("ascii")}


def _headers_only(raw: bytes, only: Collection[str]) -> Json:
    wanted = {name.lower() for name in only}
    headers = headers_of(raw)
    mime_type = next((value for name, value in headers if name.lower() == "content-type"), "text/plain")
    return {
        "mimeType": mime_type.partition(";")[0].strip().lower(),
        "headers": [{"name": key, "value": value} for key, value in headers if not wanted or key.lower() in wanted],
    }
