"""The one way to read the bytes of a message. Never raises, whatever they are.

Small mail is read here. What is large, or made the reader fail, is read by a confined child process, which can be
killed. What that cannot read either comes back with the few headers that plain means find, and says in `trouble` why.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from postroom import __version__
from postroom.mail.addresses import Address
from postroom.mail.headers import Headers
from postroom.mail.mime import Attachment
from postroom.mail.parsing import (
    UNREADABLE,
    CalendarPart,
    ParsedMail,
    parse_date,
    parse_headers,
    parse_mail,
    with_line_ends,
)
from postroom.reading.limited import Failure, ReadingFailed, ReadingLimits, shared_reader
from postroom.telemetry import logs

log = logs.get(__name__)

_READER = 2
"""Of the code that reads mail. Raise it where a change there should have troubled messages tried again at once."""
READ_HERE_BYTES = 256 << 10
_LIMITS = ReadingLimits(cpu_seconds=10.0, wall_seconds=60.0, memory_bytes=512 << 20)
_TASK = "postroom.reading.mail:answer"
_HEADER_BYTES = (1 << 20) + 4
_PLAIN_BYTES = 64 << 10
_PLAIN_LINES = 500
_PLAIN_CHARS = 500
_ADDRESSES = ("from_", "sender", "reply_to", "to", "cc", "bcc")
_PLAIN = ("message_id", "in_reply_to", "references", "subject", "problems")


def reader_version(product: str) -> int:
    """Of the code that reads mail in this version of Postroom; one has no order with another."""
    return zlib.crc32(f"{_READER} {product}".encode()) >> 1


READER_VERSION = reader_version(__version__)
"""Another after every upgrade, so that troubled messages are tried again."""


def read_mail(raw: bytes) -> ParsedMail:
    """The message, or what is known of it: `trouble` says why it could not be read. Blocks; large mail takes time."""
    if len(raw) <= READ_HERE_BYTES:
        try:
            return _read(raw)
        except Exception as error:
            log.warning("mail.reading_failed", bytes=len(raw), error=type(error).__name__)
    try:
        return _read_apart(raw)
    except ReadingFailed as error:
        return troubled(raw, error.reason)
    except Exception as error:
        return troubled(raw, type(error).__name__)


def read_headers(raw: bytes) -> Headers:
    """The headers of a message of which nothing else is wanted; none where they cannot be read."""
    block = raw[:_HEADER_BYTES]
    try:
        return parse_headers(block)
    except Exception as error:
        log.warning("mail.headers_failed", error=type(error).__name__)
    try:
        return _as_headers(shared_reader().run(_TASK, {"wanted": "headers"}, block, _LIMITS)[0]["headers"])
    except Exception:
        return troubled(raw, "").headers


def troubled(raw: bytes, reason: str) -> ParsedMail:
    """The result for a message that cannot be read: a few headers, found by simple means, and the reason."""
    found = _plain_headers(raw)
    sender = found.get("from", "")
    address = sender.rpartition("<")[2].partition(">")[0].strip()[:320]
    name = sender.rpartition("<")[0].strip(' "')
    message_id = found.get("message-id", "")
    return ParsedMail(
        headers=Headers(tuple((name.title(), value) for name, value in found.items())),
        message_id=message_id if message_id.startswith("<") and message_id.endswith(">") else None,
        in_reply_to=None,
        references=(),
        from_=(Address(address, name),) if address else (),
        sender=(),
        reply_to=(),
        to=(),
        cc=(),
        bcc=(),
        subject=found.get("subject", ""),
        date=parse_date(found.get("date")),
        text=None,
        html=None,
        attachments=(),
        calendars=(),
        problems=(f"{UNREADABLE}{reason}",),
        trouble=reason,
    )


def answer(header: Mapping[str, Any], raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The task of the child process: parse the message, or its headers only."""
    if header.get("wanted") == "headers":
        return {"headers": parse_headers(raw).pairs}, b""
    return to_wire(_read(raw))


def warm_up() -> None:
    """Loads what reading loads late, before the child may open no more files."""
    _read(b"From: =?utf-8?q?a?= <a@xn--bcher-kva.example>\nDate: Mon, 2 Mar 2026 10:00:00 +0100\n\n&amp;")
    Address("a@b\u00fccher.example").canonical.encode()


def to_wire(mail: ParsedMail) -> tuple[dict[str, Any], bytes]:
    """As JSON, with texts as bytes behind it and attachments as places in the message."""
    texts = [mail.text, mail.html, mail.html_as_text, mail.enclosed, *(each.text for each in mail.calendars)]
    encoded = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
    header: dict[str, Any] = {name: getattr(mail, name) for name in _PLAIN}
    header |= {name: [(each.address, each.display_name) for each in getattr(mail, name)] for name in _ADDRESSES}
    header |= {
        "headers": mail.headers.pairs,
        "date": None if mail.date is None else mail.date.isoformat(),
        "texts": [None if text is None else len(text) for text in encoded],
        "methods": [each.method for each in mail.calendars],
        "attachments": [
            (a.filename, a.content_type, a.size, a.sha256, a.content_id, a.inline, a.transfer_encoding, a.start, a.end)
            for a in mail.attachments
        ],
    }
    return header, b"".join(filter(None, encoded))


def from_wire(header: Mapping[str, Any], data: bytes, raw: bytes) -> ParsedMail:
    source = with_line_ends(raw)
    text, html, html_text, enclosed, *calendars = _texts(header["texts"], data)
    people: dict[str, Any] = {name: tuple(Address(*each) for each in header[name]) for name in _ADDRESSES}
    mail = ParsedMail(
        headers=_as_headers(header["headers"]),
        message_id=header["message_id"],
        in_reply_to=header["in_reply_to"],
        references=tuple(header["references"]),
        **people,
        subject=header["subject"],
        date=None if header["date"] is None else datetime.fromisoformat(header["date"]),
        text=text,
        html=html,
        attachments=tuple(_attachment(source, *each) for each in header["attachments"]),
        calendars=tuple(CalendarPart(*each) for each in zip(header["methods"], calendars, strict=True)),
        enclosed=enclosed or "",
        problems=tuple(header["problems"]),
    )
    mail.__dict__["html_as_text"] = html_text  # it is a cached property, and was made in the child
    return mail


def _attachment(source: bytes, *facts: Any) -> Attachment:
    names = ("filename", "content_type", "size", "sha256", "content_id", "inline", "transfer_encoding", "start", "end")
    return Attachment(**dict(zip(names, facts, strict=True)), source=source)


def _read(raw: bytes) -> ParsedMail:
    mail = parse_mail(raw)
    _ = mail.best_text  # made from the HTML when it is first asked for: here, where a failure is handled
    return mail


def _read_apart(raw: bytes) -> ParsedMail:
    try:
        return from_wire(*shared_reader().run(_TASK, {}, raw, _LIMITS), raw)
    except ReadingFailed as error:
        if error.kind is not Failure.START:
            raise
        # No message is to blame. Reading is bounded without the child too: it only cannot be stopped.
        log.warning("mail.read_without_child", bytes=len(raw), reason=error.reason)
        return _read(raw)


def _texts(lengths: list[int | None], data: bytes) -> list[Any]:
    found: list[str | None] = []
    position = 0
    for length in lengths:
        if length is None:
            found.append(None)
            continue
        found.append(data[position : position + length].decode("utf-8", "surrogatepass"))
        position += length
    return found


def _as_headers(pairs: list[list[str]]) -> Headers:
    return Headers(tuple((name, value) for name, value in pairs))


def _plain_headers(raw: bytes) -> dict[str, str]:
    """The headers a person looks for first, as they stand on their first line."""
    found: dict[str, str] = {}
    for line in raw[:_PLAIN_BYTES].replace(b"\r", b"\n").split(b"\n", _PLAIN_LINES)[:_PLAIN_LINES]:
        name, colon, value = line.partition(b":")
        key = name.strip().lower()
        if colon and key in (b"from", b"subject", b"date", b"message-id"):
            text = value[:_PLAIN_CHARS].decode("utf-8", "replace").strip()
            found.setdefault(key.decode(), "".join(char for char in text if char.isprintable()))
    return found
