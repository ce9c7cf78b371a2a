"""Attachments: small files of the right shape, made byte by byte so that no library version changes them."""

from __future__ import annotations

import struct
import zlib

from postroom.gmail.sim.mailbox.dice import Dice

_STORED_BLOCK = 65_535


def pdf(dice: Dice, size: int) -> bytes:
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


def png(dice: Dice, size: int) -> bytes:
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


def zip_file(dice: Dice, size: int) -> bytes:
    """An archive of one stored file."""
    name, data = b"contents.bin", dice.data(max(16, size - 150))
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 0, 0, 0x5A21, zlib.crc32(data), len(data), len(data), len(name), 0)
    local = b"PK\x03\x04" + fields + name + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    end = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + end


MAKERS = {"application/pdf": pdf, "image/png": png, "application/zip": zip_file}
