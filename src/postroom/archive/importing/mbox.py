"""The mbox format (mboxrd), both ways: quoting, and a reader that cuts a file of any size in constant memory.

A separator is a `From ` line at the start of the file or after a blank line. If the file's first one has a time of
day, so must the others: an unquoted paragraph that begins with "From " stays text. A message without a final newline
is marked in its `From ` line, so that reading gives back exactly its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Protocol

from postroom.archive.importing.state import LARGEST_MESSAGE, FoundMessage, ImportFinding, RefusedMessage
from postroom.domain.errors import BadInput

SENDER = b"message@postroom.invalid"
SENDER_UNTERMINATED = b"unterminated@postroom.invalid"
_MAY_BE_QUOTED = re.compile(rb">From ")  # found sooner than by `in`, which stops at every ">" of a page
_TO_QUOTE = re.compile(rb"^(?=>*+From )", re.MULTILINE)
_QUOTED = re.compile(rb"^>(?=>*+From )", re.MULTILINE)
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def mbox_entry(raw: bytes, date: datetime) -> bytes:
    """The message as it stands in the file, from its `From ` line to its blank line."""
    terminated = raw.endswith(b"\n")
    sender = SENDER if terminated else SENDER_UNTERMINATED
    return b"From %b %b\n%b%b\n" % (sender, _asctime(date), quote_from_lines(raw), b"" if terminated else b"\n")


def message_of(from_line: bytes, content: bytes, *, unquote: bool) -> bytes:
    """The message's bytes, given all that stands between its `From ` line and the blank line after it."""
    if from_line.startswith(b"From " + SENDER_UNTERMINATED + b" ") and content.endswith(b"\n"):
        content = content[:-1]
    return unquote_from_lines(content) if unquote else content


def quote_from_lines(raw: bytes) -> bytes:
    return _TO_QUOTE.sub(b">", raw) if b"From " in raw else raw


def unquote_from_lines(content: bytes) -> bytes:
    return _QUOTED.sub(b"", content) if _MAY_BE_QUOTED.search(content) else content


def _asctime(date: datetime) -> bytes:
    """By hand: `strftime` would speak the language of the machine."""
    text = f"{_DAYS[date.weekday()]} {_MONTHS[date.month - 1]} {date.day:2} {date:%H:%M:%S} {date.year:04}"
    return text.encode("ascii")


CHUNK = 1 << 20
_MARK = b"\nFrom "
_NEXT_MARK = re.compile(_MARK)  # in a large buffer it is found in two thirds of the time that `find` takes
_LONGEST_FROM_LINE = 1_000
_TIME_OF_DAY = re.compile(rb"\d{1,2}:\d\d")


class ByteStream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def starts_like_mbox(head: bytes) -> bool:
    return not head.strip() or head.lstrip(b"\r\n").startswith(b"From ")


class MboxReader:
    """Cuts a stream into messages. The stream must stand at the start of the file, whatever the offset."""

    def __init__(
        self, stream: ByteStream, name: str, *, unquote: bool = True, largest_message: int = LARGEST_MESSAGE
    ) -> None:
        self._stream = stream
        self._name = name
        self._unquote = unquote
        self._largest = largest_message
        self._buffer = bytearray()
        self._base = 0  # where the buffer begins in the file
        self._at_end = False
        self._timed = False

    def messages(self, offset: int = 0) -> Iterator[ImportFinding]:
        """The messages from this offset on, which is one that `end` of a message named, or 0."""
        self._start()
        self._skip(offset)
        while self._buffer or self._fill():
            yield self._next()

    def _start(self) -> None:
        while len(self._buffer) < len(b"From ") and self._fill():
            self._drop(len(self._buffer) - len(self._buffer.lstrip(b"\r\n")))
        if self._buffer and not self._buffer.startswith(b"From "):
            raise BadInput("path", f"{self._name} does not begin with a `From ` line, so it is not an mbox")
        self._timed = _TIME_OF_DAY.search(self._from_line(0)) is not None

    def _skip(self, offset: int) -> None:
        while self._base < offset and (self._buffer or self._fill()):
            self._drop(min(len(self._buffer), offset - self._base))

    def _next(self) -> ImportFinding:
        """The message at the front of the buffer, which begins with its `From ` line."""
        start = self._base
        searched = 0
        while (separator := self._separator(searched)) < 0 and not self._at_end:
            searched = max(0, len(self._buffer) - len(_MARK))
            if len(self._buffer) > self._largest:
                return self._refuse(start)
            self._fill()
        end = separator if separator >= 0 else len(self._buffer)
        if end > self._largest:
            return self._refuse(start)
        whole = bytes(memoryview(self._buffer)[:end])
        self._drop(end)
        return self._message(whole)

    def _message(self, whole: bytes) -> FoundMessage:
        from_line, _, content = whole.partition(b"\n")
        if content.endswith(b"\n\n"):
            content = content[:-1]
        elif content.endswith(b"\n\r\n") or content == b"\r\n":
            content = content[:-2]
        elif content == b"\n":
            content = b""
        return FoundMessage(message_of(from_line, content, unquote=self._unquote), self._base, from_line.rstrip(b"\r"))

    def _separator(self, searched: int) -> int:
        """Where the next message's `From ` line begins in the buffer, or -1 if that is not known yet."""
        while (mark := _NEXT_MARK.search(self._buffer, searched)) is not None:
            if self._is_separator(mark.start()):
                return mark.start() + 1
            searched = mark.start() + 1
        return -1

    def _is_separator(self, newline: int) -> bool:
        before = self._buffer[max(0, newline - 2) : newline]
        if not (before.endswith(b"\n") or before == b"\n\r"):
            return False
        return not self._timed or _TIME_OF_DAY.search(self._from_line(newline + 1)) is not None

    def _from_line(self, start: int) -> bytes:
        """The line, once it is in the buffer to its end."""
        while (end := self._buffer.find(b"\n", start, start + _LONGEST_FROM_LINE)) < 0:
            if len(self._buffer) - start >= _LONGEST_FROM_LINE or not self._fill():
                end = start + _LONGEST_FROM_LINE
                break
        return bytes(self._buffer[start:end])

    def _refuse(self, start: int) -> RefusedMessage:
        """Pass over a message without keeping it."""
        separator = self._separator(0)
        while separator < 0 and not self._at_end:
            self._drop(max(0, len(self._buffer) - _LONGEST_FROM_LINE))
            self._fill()
            separator = self._separator(0)
        self._drop(separator if separator >= 0 else len(self._buffer))
        problem = f"{self._base - start:,} bytes are more than the {self._largest:,} that a message may have"
        return RefusedMessage(f"{self._name}, byte {start:,}", problem, self._base)

    def _fill(self) -> bool:
        chunk = b"" if self._at_end else self._stream.read(CHUNK)
        self._at_end = not chunk
        self._buffer += chunk
        return bool(chunk)

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._base += count
