"""The parts of a message, found by position in the raw bytes, and what they hold: transfer encodings, attachments,
file names.

Bounded, linear in time, never an exception. Written here because neither parser at hand would do: fast-mail-parser
loses the order of headers, decodes encoded words before addresses can be split, drops the body of a multipart without
a boundary and refuses damaged base64; the standard library holds a string per line and walks all open boundaries for
each.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from postroom.mail.charsets import decode_words
from postroom.mail.headers import Headers, blank_line, parse_parameters, plain_headers, read_block

MAX_DEPTH = 20
MAX_PARTS = 1_000
MAX_PART_HEADER_BYTES = 1 << 20
"""Of all parts together; a part's own headers are seldom longer than 500 bytes."""
_REMEMBERED_BYTES = 300
_MOST_SCANS = 4
"""How often each byte is looked at for boundaries, on average. Real mail keeps its large parts near the top."""
_LEAST_SCANNED = 1 << 20
_MOST_MISLEADING = 100_000
"""Lines that begin like a boundary and go on: finding one costs more than reading a page."""
_DEFAULT_TYPE = "text/plain"
_NEWLINE, _RETURN = b"\n\r"


class PartHead(NamedTuple):
    """What a part says about itself."""

    headers: Headers
    content_type: str
    parameters: Mapping[str, str]
    disposition: str
    disposition_parameters: Mapping[str, str]
    transfer_encoding: str


class MimePart(NamedTuple):
    """A leaf of the message: its headers and its body, still encoded for transfer."""

    head: PartHead
    content_type: str
    raw: bytes
    """The whole message; the part lies in it from `start` to `end`."""
    start: int
    end: int
    number: int
    alternative: int | None = None
    """Where the innermost multipart/alternative around it begins, which tells its parts from others."""

    @property
    def headers(self) -> Headers:
        return self.head.headers

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of its Content-Type."""
        return self.head.parameters

    @property
    def disposition(self) -> str:
        return self.head.disposition

    @property
    def transfer_encoding(self) -> str:
        return self.head.transfer_encoding

    @property
    def body(self) -> bytes:
        """A copy: parts may be large."""
        return self.raw[self.start : self.end]


def parts_of(headers: Headers, raw: bytes, body_start: int, problems: list[str]) -> list[MimePart]:
    """The leaves of a message in their order. What is nested or divided beyond the limits stays one opaque part."""
    head = _head(headers, _DEFAULT_TYPE)
    if not head.content_type.startswith("multipart/"):
        return [MimePart(head, head.content_type, raw, body_start, len(raw), 1)]
    walk = _Walk(raw, problems)
    walk.add(head, body_start, len(raw), 0, None)
    return walk.found


def _head(headers: Headers, default_type: str) -> PartHead:
    values = headers.first_values
    content_type, parameters = content_type_of(headers, default_type)
    disposition, details = parse_parameters(values.get("content-disposition", ""))
    encoding = values.get("content-transfer-encoding", "").partition(";")[0].strip().lower()
    return PartHead(headers, content_type, parameters, disposition, details, encoding)


@lru_cache(1_024)
def _remembered_head(block: bytes, default_type: str) -> PartHead | None:
    """Most parts begin with the same few lines. None where something is wrong with them."""
    headers = plain_headers(block)
    return None if headers is None else _head(headers, default_type)


@dataclass(slots=True)
class _Walk:
    raw: bytes
    problems: list[str]
    found: list[MimePart] = field(default_factory=list)
    scanned: int = 0
    header_bytes: int = 0
    misleading: int = 0

    def add(self, head: PartHead, start: int, end: int, depth: int, alternative: int | None) -> None:
        """The leaves of this part, or the part itself if it is one."""
        content_type = head.content_type
        if content_type.startswith("multipart/"):
            ranges = self._children(head.parameters, start, end, depth)
            if ranges is not None:
                default_type = "message/rfc822" if content_type == "multipart/digest" else _DEFAULT_TYPE
                inner = start if content_type == "multipart/alternative" else alternative
                for child_start, child_end in ranges:
                    self._add_child(child_start, child_end, depth + 1, default_type, inner)
                return
            if depth < MAX_DEPTH:
                content_type = _DEFAULT_TYPE  # nothing divides it, so it is shown as it stands
        self.found.append(MimePart(head, content_type, self.raw, start, end, len(self.found) + 1, alternative))

    def _add_child(self, start: int, end: int, depth: int, default_type: str, alternative: int | None) -> None:
        if len(self.found) >= MAX_PARTS:
            return
        left = MAX_PART_HEADER_BYTES - self.header_bytes
        if left <= 0:
            self._report("the parts have more than 1 MiB of headers; the rest was not taken apart")
            return
        head, body = self._head_at(start, end, left, default_type)
        self.add(head, min(body, end), end, depth, alternative)

    def _head_at(self, start: int, end: int, left: int, default_type: str) -> tuple[PartHead, int]:
        """What stands before the body of a part, and where that starts."""
        block_end, body = blank_line(self.raw, start, min(end, start + left), end)
        if block_end - start <= min(_REMEMBERED_BYTES, left - 1):
            known = _remembered_head(self.raw[start:block_end], default_type)
            if known is not None:
                self.header_bytes += block_end - start
                return known, body
        headers, body, looked_at = read_block(self.raw, self.problems, start, end, left)
        self.header_bytes += looked_at
        return _head(headers, default_type), body

    def _children(
        self, parameters: Mapping[str, str], start: int, end: int, depth: int
    ) -> list[tuple[int, int]] | None:
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
        ranges, closed = self._split(b"\n--" + boundary.encode("utf-8", "replace"), start, end)
        if ranges is None:
            self._report("a multipart never uses its boundary")
        elif not closed:
            self._report("a multipart ends early" if len(ranges) < MAX_PARTS else f"more than {MAX_PARTS} parts")
        return ranges

    def _split(self, delimiter: bytes, start: int, end: int) -> tuple[list[tuple[int, int]] | None, bool]:
        """Where the parts lie between the delimiter lines, and whether a closing one was there. The delimiter begins
        with the line end before it, which belongs to it."""
        raw, size = self.raw, len(delimiter) - 1
        ranges: list[tuple[int, int]] = []
        opened: int | None = None
        is_first = raw.startswith(delimiter[1:], start, end)
        newline = start - 1 if is_first else raw.find(delimiter, start, end)
        while is_first or newline >= 0:
            position, is_first = newline + 1, False
            closing = raw.startswith(b"--", position + size, end)
            after = _line_end(raw, position + size + 2 * closing, end)
            if after is not None:
                if opened is not None:
                    ranges.append((opened, max(opened, _before_line_end(raw, position, opened))))
                if closing or len(ranges) >= MAX_PARTS:
                    return ranges, closing
                opened = after
            elif self._is_misled():
                break
            newline = raw.find(delimiter, position, end)
        if opened is None:
            return None, False
        return [*ranges, (opened, max(opened, end))], False

    def _is_misled(self) -> bool:
        """Whether one more line that is no delimiter, but begins like one, is one too many."""
        self.misleading += 1
        if self.misleading <= _MOST_MISLEADING:
            return False
        self._report("too many lines only look like a boundary; the rest was not taken apart")
        return True

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def content_type_of(headers: Headers, default_type: str = _DEFAULT_TYPE) -> tuple[str, Mapping[str, str]]:
    value = headers.first_values.get("content-type")
    if value is None:
        return default_type, {}
    content_type, parameters = parse_parameters(value)
    # A type without exactly one slash is no type (RFC 2045 5.2).
    return (content_type if content_type.count("/") == 1 else _DEFAULT_TYPE), parameters


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


MAX_FILENAME_CHARS = 150
_IDENTITY = frozenset({"", "7bit", "8bit", "binary"})
_UUENCODED = frozenset({"x-uuencode", "uuencode", "x-uue", "uue"})
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NOT_BASE64 = bytes(range(256)).translate(None, _BASE64)
_CHUNK = 1 << 20
_MOST_UU_LINES = 500_000
"""A line of real mail holds 45 bytes; a line of one byte costs as much."""
_NOT_IN_A_FILE_NAME = re.compile(r'[<>:"|?*]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Attachment:
    """A part that is not the body. Its bytes are decoded when they are asked for, and not kept."""

    filename: str
    """Never a path, never hidden, safe to save under; empty where the sender gave none."""
    content_type: str
    size: int
    sha256: str
    content_id: str
    inline: bool
    transfer_encoding: str = field(repr=False)
    start: int
    """Where it lies in the message, still encoded."""
    end: int
    source: bytes = field(repr=False, compare=False)
    """The whole message."""

    @property
    def encoded(self) -> bytes:
        return self.source[self.start : self.end]

    def content(self) -> bytes:
        return bytes(decode_transfer(memoryview(self.source)[self.start : self.end], self.transfer_encoding)[0])


def decode_transfer(body: Bytes, encoding: str) -> tuple[Bytes, str | None]:
    """The bytes as they were before the transfer, and what was wrong (None when nothing was). What needs no decoding
    is given back as it came, and not copied."""
    if encoding in _IDENTITY:
        return body, None
    if encoding == "base64":
        return _decode_base64(body)
    if encoding == "quoted-printable":
        return binascii.a2b_qp(body), None
    if encoding in _UUENCODED:
        return _decode_uu(bytes(body))
    return body, "the transfer encoding is unknown; the bytes are as they came"


def decode_beginning(part: MimePart, most: int) -> tuple[bytes, str | None, bool]:
    """The first bytes of a part, of at most `most` encoded ones; what was wrong; and whether there are more."""
    encoding = part.transfer_encoding
    if part.end - part.start <= most:
        data, problem = decode_transfer(part.body, encoding)
        return bytes(data), problem, False
    beginning = part.raw[part.start : part.start + most]
    data, problem = decode_transfer(beginning, encoding)
    if encoding == "base64":
        problem = None  # it is our cut that damaged it
    return _whole_characters(bytes(data)), problem, True


def _whole_characters(data: bytes) -> bytes:
    """Cut back to the end of a line, or else to where no character of a common charset is broken."""
    newline = data.rfind(b"\n", max(0, len(data) - 2_000))
    if newline >= 0:
        return data[: newline + 1]
    data = data[: len(data) // 4 * 4]
    broken = next((n for n in range(1, min(4, len(data)) + 1) if data[-n] & 0xC0 == 0xC0), 0)
    return data[: len(data) - broken]


def _decode_base64(body: Bytes) -> tuple[bytes, str | None]:
    try:
        return binascii.a2b_base64(body), None
    except binascii.Error:
        return b"".join(_readable_base64(body)), "base64 is damaged; what could be read was kept"


def _readable_base64(body: Bytes) -> Iterator[bytes]:
    """What its digits say, whatever stands between them."""
    digits = b""
    for start in range(0, len(body), _CHUNK):
        digits += bytes(body[start : start + _CHUNK]).translate(None, _NOT_BASE64)
        whole = len(digits) // 4 * 4
        yield binascii.a2b_base64(digits[:whole])
        digits = digits[whole:]
    # A lone last digit stands for six bits, which make no byte.
    if len(digits) > 1:
        yield binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))


def _decode_uu(body: bytes) -> tuple[bytes, str | None]:
    out = bytearray()
    start = _after_begin(body)
    damaged = start is None
    for line in _lines(body, len(body) if start is None else start):
        if line == b"end":
            break
        if len(out) > len(body):  # lines that claim to be longer than they are
            damaged = True
            break
        try:
            out += binascii.a2b_uu(line)
        except binascii.Error:
            damaged = True
    return bytes(out), "uuencoded data is damaged; what could be read was kept" if damaged else None


def _after_begin(body: bytes) -> int | None:
    """Where the line after `begin ...` starts."""
    begin = 0 if body.startswith(b"begin ") else body.find(b"\nbegin ") + 1
    newline = body.find(b"\n", begin)
    return newline + 1 if body.startswith(b"begin ", begin) and newline >= 0 else None


def _lines(body: bytes, position: int) -> Iterator[bytes]:
    """Without line ends and blank lines; of hostile data the first ones."""
    for _ in range(_MOST_UU_LINES):
        if position >= len(body):
            return
        newline = body.find(b"\n", position)
        end = newline if newline >= 0 else len(body)
        if line := body[position:end].strip(b"\r"):
            yield line
        position = end + 1


def attachment_of(part: MimePart, problems: list[str]) -> Attachment:
    encoding = part.transfer_encoding
    content, problem = decode_transfer(memoryview(part.raw)[part.start : part.end], encoding)
    if problem:
        problems.append(f"part {part.number}: {problem}")
    content_id = (part.headers.get("Content-ID") or "").strip("<> \t")[:998]
    return Attachment(
        filename=filename_of(part),
        content_type=part.content_type,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        content_id=content_id,
        inline=part.disposition == "inline" or (not part.disposition and bool(content_id)),
        transfer_encoding=encoding,
        start=part.start,
        end=part.end,
        source=part.raw,
    )


def filename_of(part: MimePart) -> str:
    head = part.head
    return safe_filename(head.disposition_parameters.get("filename") or head.parameters.get("name") or "")


def safe_filename(name: str) -> str:
    """The last component of whatever the sender wrote, without anything a file system or a reader trips over."""
    if not name:
        return name
    name = decode_words(name).replace("\\", "/").rpartition("/")[2]
    # Unprintable includes the marks that reverse the writing direction and so hide the real extension.
    name = "".join(char for char in name if char.isprintable())
    name = _NOT_IN_A_FILE_NAME.sub("_", name).strip(". ")
    if _RESERVED.fullmatch(name):
        name = f"_{name}"
    if len(name) <= MAX_FILENAME_CHARS:
        return name
    stem, dot, extension = name.rpartition(".")
    tail = dot + extension if dot and len(extension) <= 10 else ""
    return (stem if tail else name)[: MAX_FILENAME_CHARS - len(tail)] + tail
