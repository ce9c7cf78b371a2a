"""MIME parts, header lines and attachments, in the many ways in which mail programs write them.

Files are made byte by byte, so that no library version changes them.
"""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from dataclasses import dataclass
from urllib.parse import quote

from postroom.sim.gmail.generated.correspondents import Correspondent
from postroom.sim.gmail.generated.drafting import AttachedFile
from postroom.sim.gmail.generated.seeded_random import SeededRandom

_STORED_BLOCK = 65_535


def pdf(dice: SeededRandom, size: int) -> bytes:
    """A PDF of one page that holds incompressible bytes."""
    filling = dice.data(max(16, size - 300))
    return b"".join(
        (
            b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n",
            b"2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n",
            b"3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 595 842]>>endobj\n",
            b"4 0 obj<</Length %d>>stream\n" % len(filling),
            filling,
            b"\nendstream endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n",
        )
    )


def png(dice: SeededRandom, size: int) -> bytes:
    """A grey picture of noise, 64 pixels wide."""
    height = max(1, size // 65)
    rows = b"".join(b"\0" + dice.data(64) for _ in range(height))
    header = struct.pack(">IIBBBBB", 64, height, 8, 0, 0, 0, 0)
    body = _chunk(b"IHDR", header) + _chunk(b"IDAT", _stored(rows)) + _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream that compresses nothing."""
    blocks = [data[start : start + _STORED_BLOCK] for start in range(0, len(data), _STORED_BLOCK)] or [b""]
    out = [b"\x78\x01"]
    for number, block in enumerate(blocks, 1):
        out += [struct.pack("<BHH", number == len(blocks), len(block), len(block) ^ 0xFFFF), block]
    return b"".join((*out, struct.pack(">I", zlib.adler32(data))))


def zip_file(dice: SeededRandom, size: int) -> bytes:
    """An archive of one stored file."""
    name, data = b"contents.bin", dice.data(max(16, size - 150))
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x5A21, zlib.crc32(data), len(data), len(data), len(name), 0)
    local = b"PK\x03\x04" + fields + name + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


MAKERS = {"application/pdf": pdf, "image/png": png, "application/zip": zip_file}


_SPECIAL = frozenset('",:;<>@()[]\\')
_WORD_CHARS = 10  # short enough for any charset to stay within an encoded word's 75 characters


@dataclass(frozen=True, slots=True)
class WrittenPart:
    """A part: its Content headers and its body."""

    headers: bytes
    body: bytes

    def __bytes__(self) -> bytes:
        return self.headers + b"\r\n" + self.body


def header_text(text: str, charset: str) -> str:
    """ASCII as it is, anything else as encoded words in this charset."""
    if text.isascii():
        return text
    chunks = (text[start : start + _WORD_CHARS] for start in range(0, len(text), _WORD_CHARS))
    words = (f"=?{charset}?b?{base64.b64encode(chunk.encode(charset)).decode()}?=" for chunk in chunks)
    return "\r\n ".join(words)


def mailbox_text(party: Correspondent) -> str:
    if not party.name:
        return party.address
    name = party.name
    if _SPECIAL & set(name):
        return f'"{name}" <{party.address}>'
    return f"{header_text(name, 'utf-8')} <{party.address}>"


def text_piece(
    text: str, subtype: str, charset: str, dice: SeededRandom, *, declared: str = "", damaged: bool = False
) -> WrittenPart:
    data = text.encode(charset)
    encoding = "base64" if damaged else _transfer_encoding(data, charset, dice)
    if encoding == "base64":
        body = base64.encodebytes(data).replace(b"\n", b"\r\n")
    elif encoding == "quoted-printable":
        body = binascii.b2a_qp(data, istext=True)
    else:
        body = data
    if damaged:
        # One digit too many: six bits that make no byte.
        body = body.rstrip(b"=\r\n")
        body += b"A" * ((1 - len(b"".join(body.split()))) % 4)
    head = f"Content-Type: text/{subtype}; charset={declared or charset}\r\nContent-Transfer-Encoding: {encoding}\r\n"
    return WrittenPart(head.encode("ascii"), body)


def _transfer_encoding(data: bytes, charset: str, dice: SeededRandom) -> str:
    if charset == "iso-2022-jp" or (data.isascii() and dice.chance(700)):
        return "7bit"
    return dice.pick(("quoted-printable", "quoted-printable", "base64", "8bit"))


def file_piece(file: AttachedFile, dice: SeededRandom) -> WrittenPart:
    content = MAKERS[file.content_type](dice, file.size)
    disposition = "inline" if file.inline else "attachment"
    head = (
        f"Content-Type: {file.content_type}\r\nContent-Transfer-Encoding: base64\r\n"
        f"Content-Disposition: {disposition}; {_file_name(file.name, dice)}\r\n"
    )
    return WrittenPart(head.encode("ascii"), base64.encodebytes(content).replace(b"\n", b"\r\n"))


def _file_name(name: str, dice: SeededRandom) -> str:
    if name.isascii():
        return f'filename="{name}"'
    if dice.chance(500):
        return f"filename*=utf-8''{quote(name)}"
    return f'filename="=?utf-8?b?{base64.b64encode(name.encode()).decode()}?="'


def multipart(
    kind: str, pieces: list[WrittenPart], dice: SeededRandom, *, closed: bool = True, extra: str = ""
) -> WrittenPart:
    boundary = f"=_{dice.draw():016x}"
    line = f"--{boundary}".encode("ascii")
    body = b"".join(line + b"\r\n" + bytes(piece) + b"\r\n" for piece in pieces) + (line + b"--\r\n" if closed else b"")
    return WrittenPart(f'Content-Type: multipart/{kind}; boundary="{boundary}"{extra}\r\n'.encode("ascii"), body)
