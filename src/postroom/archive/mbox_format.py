"""How messages stand in an mbox file (mboxrd), in one place for reading and for writing.

A message is a `From ` line, its bytes with every line that starts with `From `, `>From `, `>>From ` ... quoted by one
more `>`, a newline, and a blank line. Taking one `>` away gives the bytes back. A message that does not end in a
newline needs one in the file; its `From ` line says so in the sender, so that reading takes that newline away again.
"""

from __future__ import annotations

import re
from datetime import datetime

SENDER = b"message@postroom.invalid"
SENDER_UNTERMINATED = b"unterminated@postroom.invalid"
_TO_QUOTE = re.compile(rb"^(?=>*+From )", re.MULTILINE)
_QUOTED = re.compile(rb"^>(?=>*+From )", re.MULTILINE)
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def written(raw: bytes, date: datetime) -> bytes:
    """The message as it stands in the file, from its `From ` line to its blank line."""
    terminated = raw.endswith(b"\n")
    sender = SENDER if terminated else SENDER_UNTERMINATED
    return b"From %b %b\n%b%b\n" % (sender, _asctime(date), quoted(raw), b"" if terminated else b"\n")


def message_of(from_line: bytes, content: bytes, *, unquote: bool) -> bytes:
    """The message's bytes, given all that stands between its `From ` line and the blank line after it."""
    if from_line.startswith(b"From " + SENDER_UNTERMINATED + b" ") and content.endswith(b"\n"):
        content = content[:-1]
    return unquoted(content) if unquote else content


def quoted(raw: bytes) -> bytes:
    return _TO_QUOTE.sub(b">", raw) if b"From " in raw else raw


def unquoted(content: bytes) -> bytes:
    return _QUOTED.sub(b"", content) if b">From " in content else content


def _asctime(date: datetime) -> bytes:
    """By hand: `strftime` would speak the language of the machine."""
    text = f"{_DAYS[date.weekday()]} {_MONTHS[date.month - 1]} {date.day:2} {date:%H:%M:%S} {date.year:04}"
    return text.encode("ascii")
