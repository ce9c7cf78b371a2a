"""Messages out of an mbox of any size in constant memory: read in large chunks, cut where a `From ` line begins.

A separator is a line that starts with `From ` and stands at the start of the file or after a blank line. Where the
file's first one bears a time of day (nearly all do), so must the others: text that begins a paragraph with "From " and
was not quoted stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Protocol

from postroom.archive.importing.model import LARGEST_MESSAGE, Finding, FoundMail, Refused
from postroom.archive.mbox_format import message_of
from postroom.domain.errors import BadInput

CHUNK = 1 << 20
_MARK = b"\nFrom "
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

    def messages(self, offset: int = 0) -> Iterator[Finding]:
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

    def _next(self) -> Finding:
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

    def _message(self, whole: bytes) -> FoundMail:
        from_line, _, content = whole.partition(b"\n")
        if content.endswith(b"\n\n"):
            content = content[:-1]
        elif content.endswith(b"\n\r\n") or content == b"\r\n":
            content = content[:-2]
        elif content == b"\n":
            content = b""
        return FoundMail(message_of(from_line, content, unquote=self._unquote), self._base, from_line.rstrip(b"\r"))

    def _separator(self, searched: int) -> int:
        """Where the next message's `From ` line begins in the buffer, or -1 if that is not known yet."""
        position = self._buffer.find(_MARK, searched)
        while position >= 0:
            if self._is_separator(position):
                return position + 1
            position = self._buffer.find(_MARK, position + 1)
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

    def _refuse(self, start: int) -> Refused:
        """Pass over a message without keeping it."""
        separator = self._separator(0)
        while separator < 0 and not self._at_end:
            self._drop(max(0, len(self._buffer) - _LONGEST_FROM_LINE))
            self._fill()
            separator = self._separator(0)
        self._drop(separator if separator >= 0 else len(self._buffer))
        problem = f"{self._base - start:,} bytes are more than the {self._largest:,} that a message may have"
        return Refused(f"{self._name}, byte {start:,}", problem, self._base)

    def _fill(self) -> bool:
        chunk = b"" if self._at_end else self._stream.read(CHUNK)
        self._at_end = not chunk
        self._buffer += chunk
        return bool(chunk)

    def _drop(self, count: int) -> None:
        del self._buffer[:count]
        self._base += count
