"""What parts hold: transfer encodings undone, attachments described, file names made harmless.

Linear in time; at most twice the size of a part in memory beside the message itself.
"""

from __future__ import annotations

import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from postroom.mail.encoded_words import decode_words
from postroom.mail.mime import Part

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


def transfer_encoding_of(part: Part) -> str:
    return (part.headers.get("Content-Transfer-Encoding") or "").partition(";")[0].strip().lower()


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


def decode_beginning(part: Part, most: int) -> tuple[bytes, str | None, bool]:
    """The first bytes of a part, of at most `most` encoded ones; what was wrong; and whether there are more."""
    encoding = transfer_encoding_of(part)
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


def attachment_of(part: Part, problems: list[str]) -> Attachment:
    encoding = transfer_encoding_of(part)
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


def filename_of(part: Part) -> str:
    return safe_filename(part.disposition_parameters.get("filename") or part.parameters.get("name") or "")


def safe_filename(name: str) -> str:
    """The last component of whatever the sender wrote, without anything a file system or a reader trips over."""
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
