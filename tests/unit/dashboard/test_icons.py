"""Icons of the installed app: real PNG files, drawn the same every time."""

from __future__ import annotations

import struct
import zlib

import pytest

from postroom.dashboard.display.icons import draw_icon


def pixels_of(png: bytes) -> tuple[int, list[bytes]]:
    """Width, and rows of RGBA; every checksum is checked."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        name, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", png, at + 8 + length) == (zlib.crc32(name + data),)
        chunks[name], at = data, at + 12 + length
    width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (width, kind) == (height, [8, 6, 0, 0, 0])
    raw, stride = zlib.decompress(chunks[b"IDAT"]), 1 + 4 * width
    return width, [raw[start + 1 : start + stride] for start in range(0, len(raw), stride)]


@pytest.mark.parametrize("is_rounded", [True, False], ids=["rounded", "whole square"])
def test_an_icon_is_a_png_with_a_letter_in_it(is_rounded: bool) -> None:
    drawn = draw_icon(64, is_rounded=is_rounded)
    width, rows = pixels_of(drawn)
    colours = {row[at : at + 4] for row in rows for at in range(0, 4 * width, 4)}
    assert {bytes((0x1F, 0x5F, 0xBF, 255)), b"\xff" * 4, bytes((0xF2, 0xB0, 0x5E, 255))} <= colours
    assert (width, rows[0][3], rows[32][3]) == (64, 0 if is_rounded else 255, 255)
    assert drawn == draw_icon(64, is_rounded=is_rounded)
