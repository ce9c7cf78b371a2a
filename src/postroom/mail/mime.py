"""The structure of a message: its parts, found by position in the raw bytes. Bounded, and never an exception.

Written here because neither parser at hand would do: fast-mail-parser loses the order of headers, reads encoded words
before addresses can be split, drops the body of a multipart without a boundary and refuses damaged base64; the
standard library holds a string for each line and costs a walk of all open boundaries for each. The tests compare this
module with the standard library's tree, part by part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from postroom.mail.headers import Headers, parse_parameters, read_block

MAX_DEPTH = 20
MAX_PARTS = 1_000
MAX_PART_HEADER_BYTES = 1 << 20
"""Of all parts together; a part's own headers are seldom longer than 500 bytes."""
_MOST_SCANS = 4
"""How often each byte is looked at for boundaries, on average. Real mail keeps its large parts near the top."""
_LEAST_SCANNED = 1 << 20
_MOST_MISLEADING = 100_000
"""Lines that begin like a boundary and go on: finding one costs more than reading a page."""
_DEFAULT_TYPE = "text/plain"
_NEWLINE, _RETURN = b"\n\r"


@dataclass(frozen=True, slots=True)
class Part:
    """A leaf of the message: its headers and its body, still encoded for transfer."""

    headers: Headers
    content_type: str
    parameters: dict[str, str]
    disposition: str
    disposition_parameters: dict[str, str]
    raw: bytes
    """The whole message; the part lies in it from `start` to `end`."""
    start: int
    end: int
    number: int

    @property
    def body(self) -> bytes:
        """A copy: parts may be large."""
        return self.raw[self.start : self.end]


def parts_of(headers: Headers, raw: bytes, body_start: int, problems: list[str]) -> list[Part]:
    """The leaves of a message in their order. What is nested or divided beyond the limits stays one opaque part."""
    return _Walk(raw, problems).leaves(headers, body_start)


@dataclass(slots=True)
class _Walk:
    raw: bytes
    problems: list[str]
    seen: int = 0
    scanned: int = 0
    header_bytes: int = 0
    misleading: int = 0

    def leaves(self, headers: Headers, start: int) -> list[Part]:
        return list(self._leaves(headers, start, len(self.raw), 0, _DEFAULT_TYPE))

    def _leaves(self, headers: Headers, start: int, end: int, depth: int, default_type: str) -> Iterator[Part]:
        content_type, parameters = content_type_of(headers, default_type)
        if content_type.startswith("multipart/"):
            ranges = self._children(parameters, start, end, depth)
            if ranges is not None:
                digest = "message/rfc822" if content_type == "multipart/digest" else _DEFAULT_TYPE
                for child_start, child_end in ranges:
                    yield from self._child(child_start, child_end, depth + 1, digest)
                return
            if depth < MAX_DEPTH:
                content_type = _DEFAULT_TYPE  # nothing divides it, so it is shown as it stands
        self.seen += 1
        disposition, details = parse_parameters(headers.get("Content-Disposition") or "")
        yield Part(headers, content_type, parameters, disposition, details, self.raw, start, end, self.seen)

    def _child(self, start: int, end: int, depth: int, default_type: str) -> Iterator[Part]:
        if self.seen >= MAX_PARTS:
            return
        left = MAX_PART_HEADER_BYTES - self.header_bytes
        if left <= 0:
            self._report("the parts have more than 1 MiB of headers; the rest was not taken apart")
            return
        headers, body, looked_at = read_block(self.raw, self.problems, start, end, left)
        self.header_bytes += looked_at
        yield from self._leaves(headers, min(body, end), end, depth, default_type)

    def _children(self, parameters: dict[str, str], start: int, end: int, depth: int) -> list[tuple[int, int]] | None:
        if depth >= MAX_DEPTH:
            self._report(f"parts are nested deeper than {MAX_DEPTH}; the rest was not taken apart")
            return None
        boundary = parameters.get("boundary", "").rstrip()
        if not boundary:
            self._report("a multipart names no boundary")
            return None
        self.scanned += end - start
        if self.scanned > max(_LEAST_SCANNED, _MOST_SCANS * len(self.raw)):
            self._report("large parts are nested too deeply; the rest was not taken apart")
            return None
        ranges, closed = self._split(b"--" + boundary.encode("utf-8", "replace"), start, end)
        if ranges is None:
            self._report("a multipart never uses its boundary")
        elif not closed:
            self._report("a multipart ends early" if len(ranges) < MAX_PARTS else f"more than {MAX_PARTS} parts")
        return ranges

    def _split(self, delimiter: bytes, start: int, end: int) -> tuple[list[tuple[int, int]] | None, bool]:
        """Where the parts lie between the delimiter lines, and whether a closing one was there."""
        ranges: list[tuple[int, int]] = []
        opened: int | None = None
        for position, after, closing in self._delimiters(delimiter, start, end):
            if opened is not None:
                ranges.append((opened, max(opened, _before_line_end(self.raw, position, opened))))
            if closing or len(ranges) >= MAX_PARTS:
                return ranges, closing
            opened = after
        if opened is None:
            return None, False
        return [*ranges, (opened, max(opened, end))], False

    def _delimiters(self, delimiter: bytes, start: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Each line that is a delimiter: where it starts, where the next line starts, and whether it closes."""
        raw, size = self.raw, len(delimiter)
        position = start if raw.startswith(delimiter, start, end) else _next_line(raw, delimiter, start, end)
        while position is not None:
            closing = raw.startswith(b"--", position + size, end)
            after = _line_end(raw, position + size + 2 * closing, end)
            if after is not None:
                yield position, after, closing
            else:
                self.misleading += 1
                if self.misleading > _MOST_MISLEADING:
                    self._report("too many lines only look like a boundary; the rest was not taken apart")
                    return
            position = _next_line(raw, delimiter, position, end)

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def content_type_of(headers: Headers, default_type: str = _DEFAULT_TYPE) -> tuple[str, dict[str, str]]:
    value = headers.get("Content-Type")
    if value is None:
        return default_type, {}
    content_type, parameters = parse_parameters(value)
    # A type without exactly one slash is no type (RFC 2045 5.2).
    return (content_type if content_type.count("/") == 1 else _DEFAULT_TYPE), parameters


def _next_line(raw: bytes, beginning: bytes, start: int, end: int) -> int | None:
    """Where the next line that begins so starts."""
    newline = raw.find(b"\n" + beginning, start, end)
    return newline + 1 if newline >= 0 else None


def _line_end(raw: bytes, position: int, end: int) -> int | None:
    """Where the next line starts, if nothing but white space stands before it."""
    newline = raw.find(b"\n", position, min(end, position + 1_000))
    stop = newline if newline >= 0 else end
    if stop - position >= 1_000 or raw[position:stop].strip(b" \t\r"):
        return None
    return min(stop + 1, end)


def _before_line_end(raw: bytes, position: int, floor: int) -> int:
    """The line break before a delimiter belongs to the delimiter."""
    if position > floor and raw[position - 1] == _NEWLINE:
        position -= 1
        if position > floor and raw[position - 1] == _RETURN:
            position -= 1
    return position
