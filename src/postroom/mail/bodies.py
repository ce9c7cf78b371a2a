"""What parts hold: transfer encodings undone, attachments described, file names made harmless."""

from __future__ import annotations

import binascii
import hashlib
import io
import re
from dataclasses import dataclass, field

from postroom.mail.encoded_words import decode_words
from postroom.mail.headers import parse_parameters
from postroom.mail.mime import Part

MAX_FILENAME_CHARS = 150
_IDENTITY = frozenset({"", "7bit", "8bit", "binary"})
_UUENCODED = frozenset({"x-uuencode", "uuencode", "x-uue", "uue"})
_NOT_BASE64 = re.compile(rb"[^A-Za-z0-9+/]+")
_NOT_IN_A_FILE_NAME = re.compile(r'[<>:"|?*]')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


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
    encoded: bytes = field(repr=False)
    transfer_encoding: str = field(repr=False)

    def content(self) -> bytes:
        return decode_transfer(self.encoded, self.transfer_encoding)[0]


def transfer_encoding_of(part: Part) -> str:
    return (part.headers.get("Content-Transfer-Encoding") or "").partition(";")[0].strip().lower()


def decode_transfer(body: bytes, encoding: str) -> tuple[bytes, str | None]:
    """The bytes as they were before the transfer, and what was wrong (None when nothing was)."""
    if encoding in _IDENTITY:
        return body, None
    if encoding == "base64":
        return _decode_base64(body)
    if encoding == "quoted-printable":
        return binascii.a2b_qp(body), None
    if encoding in _UUENCODED:
        return _decode_uu(body)
    return body, "the transfer encoding is unknown; the bytes are as they came"


def _decode_base64(body: bytes) -> tuple[bytes, str | None]:
    try:
        return binascii.a2b_base64(body), None
    except binascii.Error:
        digits = _NOT_BASE64.sub(b"", body)
        # A lone last digit stands for six bits, which make no byte.
        digits = digits[:-1] if len(digits) % 4 == 1 else digits
        return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4)), "base64 is damaged; what could be read was kept"


def _decode_uu(body: bytes) -> tuple[bytes, str | None]:
    out = bytearray()
    lines = iter(io.BytesIO(body))
    damaged = not any(line.startswith(b"begin ") for line in lines)
    for line in lines:
        if line.strip() == b"end":
            break
        try:
            out += binascii.a2b_uu(line)
        except binascii.Error:
            damaged = True
    return bytes(out), "uuencoded data is damaged; what could be read was kept" if damaged else None


def attachment_of(part: Part, problems: list[str]) -> Attachment:
    encoding = transfer_encoding_of(part)
    content, problem = decode_transfer(part.body, encoding)
    if problem:
        problems.append(f"part {part.number}: {problem}")
    content_id = (part.headers.get("Content-ID") or "").strip("<> \t")[:998]
    disposition = disposition_of(part)
    return Attachment(
        filename=filename_of(part),
        content_type=part.content_type,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        content_id=content_id,
        inline=disposition == "inline" or (not disposition and bool(content_id)),
        encoded=part.body,
        transfer_encoding=encoding,
    )


def disposition_of(part: Part) -> str:
    return parse_parameters(part.headers.get("Content-Disposition") or "")[0]


def filename_of(part: Part) -> str:
    disposition = part.headers.get("Content-Disposition")
    name = parse_parameters(disposition)[1].get("filename") if disposition else None
    return safe_filename(name or part.parameters.get("name") or "")


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
