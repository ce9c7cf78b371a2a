"""What the service does to mail on its way out: the Message-ID given by the sender is replaced, the rest stays."""

from __future__ import annotations

import re
from datetime import datetime
from email.utils import format_datetime, getaddresses

from postroom.gmail.sim.mime import headers_of

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
    headers = [value for name, value in headers_of(raw) if name.lower() in ("to", "cc", "bcc")]
    return {address.lower() for _, address in getaddresses(headers) if "@" in address}
