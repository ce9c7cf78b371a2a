"""Raw mail taken apart the way Gmail's API shows it, as far as it can be; base64url; and mail on its way out.

A sent message gets a new Message-ID, as the real service does it; the rest stays.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import format_datetime, getaddresses, parsedate_to_datetime

_ALPHABET = re.compile(r"[A-Za-z0-9_-]*={0,2}")


def decode_base64url(text: str) -> bytes:
    """The bytes; ValueError if the text is not Base64, which the standard library would partly ignore."""
    bare = text.rstrip("=")
    if not _ALPHABET.fullmatch(text) or len(bare) % 4 == 1:
        raise ValueError("not Base64 in the URL alphabet")
    return urlsafe_b64decode(bare + "=" * (-len(bare) % 4))


_FOLD = re.compile(r"\r?\n[ \t]*")
_TAG = re.compile(r"<[^<>]*>")
MAX_DEPTH = 60
_LONGEST_DECODED = 8_000
"""Characters of a header that the standard library may decode; its time grows with the square."""


@dataclass(frozen=True, slots=True)
class SimPart:
    part_id: str
    mime_type: str
    filename: str
    headers: tuple[tuple[str, str], ...]
    content: bytes
    children: tuple[SimPart, ...]

    def walk(self) -> Iterator[SimPart]:
        yield self
        for child in self.children:
            yield from child.walk()

    def header(self, name: str) -> str:
        return next((value for key, value in self.headers if key.lower() == name), "")

    @property
    def is_attachment(self) -> bool:
        return bool(self.filename) and not self.children


def take_apart(raw: bytes) -> SimPart:
    try:
        return _part(message_from_bytes(raw), "", 0)
    except RecursionError:
        return _part(BytesHeaderParser().parsebytes(raw), "", 0)


def headers_of(raw: bytes) -> tuple[tuple[str, str], ...]:
    """The decoded headers alone, without looking at the body."""
    end = raw.find(b"\n\n")
    crlf = raw.find(b"\r\n\r\n")
    cut = min((place for place in (end, crlf) if place >= 0), default=len(raw))
    return _headers(BytesHeaderParser().parsebytes(raw[: cut + 2]))


def body_text(part: SimPart) -> str:
    """All readable text of a message, for searching."""
    return "\n".join(_leaf_text(leaf) for leaf in part.walk() if leaf.mime_type.startswith("text/"))


def filenames(part: SimPart) -> list[str]:
    return [leaf.filename for leaf in part.walk() if leaf.filename]


def date_ms(headers: tuple[tuple[str, str], ...]) -> int | None:
    """The `Date` header in milliseconds, or None where it is missing, broken or before 1970."""
    text = next((value for key, value in headers if key.lower() == "date"), "")
    try:
        stamp = int(parsedate_to_datetime(text).timestamp() * 1000)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return stamp if stamp >= 0 else None


def decoded(value: object) -> str:
    """A header on one line, with encoded words undone where that is possible."""
    text = _FOLD.sub(" ", str(value)).strip()
    if "=?" not in text or len(text) > _LONGEST_DECODED:
        return _readable(text)
    try:
        return _readable(str(make_header(decode_header(text))))
    except (LookupError, ValueError, MessageError):
        return _readable(text)


def _readable(text: str) -> str:
    """Bytes that came in raw as UTF-8 where they are that, else as Latin-1; JSON can carry neither surrogate."""
    if text.isascii():
        return text
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _part(message: Message, part_id: str, depth: int) -> SimPart:
    children: list[SimPart] = []
    if message.is_multipart() and depth < MAX_DEPTH:
        for number, child in enumerate(message.get_payload()):
            if isinstance(child, Message):
                children.append(_part(child, f"{part_id}.{number}".lstrip("."), depth + 1))
    return SimPart(
        part_id=part_id,
        mime_type=message.get_content_type(),
        filename=_filename(message),
        headers=_headers(message),
        content=b"" if children else _content(message),
        children=tuple(children),
    )


def _headers(message: Message) -> tuple[tuple[str, str], ...]:
    # Not items(): it wraps 8-bit values in Header objects that lose the bytes.
    return tuple((name, decoded(value)) for name, value in message.raw_items())


def _filename(message: Message) -> str:
    naming = (str(value) for name, value in message.raw_items() if name.lower().startswith("content-"))
    if any(len(value) > _LONGEST_DECODED for value in naming):
        return ""
    try:
        return decoded(message.get_filename() or "")
    except (LookupError, ValueError, MessageError, TypeError):
        return ""


def _content(message: Message) -> bytes:
    try:
        payload = message.get_payload(decode=True)
    except (LookupError, ValueError, MessageError, TypeError):
        return b""
    return payload if isinstance(payload, bytes) else b""


def _leaf_text(part: SimPart) -> str:
    found = re.search(r'charset\s*=\s*"?([\w.:-]+)', part.header("content-type"), re.IGNORECASE)
    try:
        text = part.content.decode(found[1] if found else "utf-8", "replace")
    except (LookupError, ValueError):
        text = part.content.decode("latin-1")
    return _TAG.sub(" ", text) if part.mime_type == "text/html" else text


_HEAD_END = re.compile(rb"\r?\n\r?\n")


def stamped(raw: bytes, message_id: str, sender: str, now: datetime) -> bytes:
    """The message as it is sent: a new Message-ID, and a sender and a date where it had none."""
    found = _HEAD_END.search(raw)
    head, rest = (raw[: found.start()], raw[found.start() :]) if found else (raw, b"\r\n\r\n")
    head = re.sub(rb"(?im)^message-id:.*(?:\r?\n[ \t].*)*(?:\r?\n|\Z)", b"", head).rstrip(b"\r\n")
    names = {name.lower() for name, _ in headers_of(raw)}
    added = [f"Message-ID: {message_id}"]
    if "from" not in names:
        added.append(f"From: {sender}")
    if "date" not in names:
        added.append(f"Date: {format_datetime(now)}")
    return "\r\n".join(added).encode() + b"\r\n" + head + rest


def recipients(raw: bytes) -> set[str]:
    return _addresses(raw, "to", "cc", "bcc")


def senders(raw: bytes) -> set[str]:
    return _addresses(raw, "from")


def _addresses(raw: bytes, *names: str) -> set[str]:
    headers = [value for name, value in headers_of(raw) if name.lower() in names]
    return {address.lower() for _, address in getaddresses(headers) if "@" in address}
