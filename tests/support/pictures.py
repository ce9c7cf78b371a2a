"""Small pictures made by hand, and a message of a list that a receiving server authenticated."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping

from postroom.mail.headers import Headers
from tests.support.mail import letter

SERVERS = ("mx.google.com",)
LINK = "https://lists.example/leave?u=42"


def png(width: int = 20, height: int = 10) -> bytes:
    """The pixels end after a hundred rows, whatever the head says: a picture of 60,000 by 60,000 would fill memory."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + b"\x80" * width for _ in range(min(height, 100)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def gif(width: int = 20, height: int = 10) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0;"


def jpeg(width: int = 20, height: int = 10) -> bytes:
    application = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + b"\0" * 9
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\0\x11\0"
    return b"\xff\xd8" + application + frame + b"\xff\xd9"


def webp(width: int = 20, height: int = 10) -> bytes:
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 30) + b"WEBPVP8X" + struct.pack("<I", 10) + b"\0" * 4 + sizes


def authenticated(domain: str = "lists.example", verdict: str = "pass") -> dict[str, str]:
    checks = f"dkim={verdict} header.d={domain}; dmarc={verdict} header.from={domain}"
    return {"Authentication-Results": f"mx.google.com; {checks}"}


def list_headers(link: str = LINK, *, domain: str = "lists.example", **more: str) -> dict[str, str]:
    """Of a message that offers one click."""
    signed = "From:Subject:List-Unsubscribe:List-Unsubscribe-Post"
    return {
        **authenticated(domain),
        "DKIM-Signature": f"v=1; a=rsa-sha256; d={domain}; s=k; h={signed}; b=x",
        "List-Unsubscribe": f"<{link}>, <mailto:leave@{domain}?subject=leave%2042>",
        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


def headers_of(given: Mapping[str, str], sender: str = "News <news@lists.example>") -> Headers:
    return Headers((("From", sender), *given.items()))


def list_letter(link: str = LINK, subject: str = "News", **more: str) -> bytes:
    return letter(subject, sender="News <news@lists.example>", headers=list_headers(link, **more))
