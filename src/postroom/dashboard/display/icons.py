"""The icons of the installed app, drawn pixel by pixel and written as PNG: phones want pixels, and no picture of
others is needed. Pure.

An edge is as smooth as the distance of a pixel's middle from it says. Coordinates go from 0 to 1.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

DRAWING = "1"
"""Part of an icon's address; to be changed with the drawing, because browsers keep what they know."""

Distance = Callable[[float, float], float]
"""How far a point is outside of a shape; negative within it."""
Colour = tuple[int, int, int]

_BLUE: Colour = (0x1F, 0x5F, 0xBF)
_WHITE: Colour = (0xFF, 0xFF, 0xFF)
_ORANGE: Colour = (0xF2, 0xB0, 0x5E)
_ROUNDING = 0.22


@dataclass(frozen=True, slots=True)
class _Shape:
    distance: Distance
    colour: Colour
    box: tuple[float, float, float, float]
    """Left, top, right, bottom: it is nowhere else."""


def icon_url(name: str) -> str:
    return f"/static/icons/{name}?v={DRAWING}"


def draw_icon(size: int, *, is_rounded: bool) -> bytes:
    """A PNG of so many pixels in both directions. Not rounded, it fills its square: the system cuts its own shape."""
    pixels = bytearray(bytes((*_BLUE, 255)) * size * size)
    for shape in _envelope(0.0 if is_rounded else 0.04):
        _paint(pixels, size, shape)
    if is_rounded:
        _round_corners(pixels, size)
    return _png(size, bytes(pixels))


def _envelope(inset: float) -> tuple[_Shape, ...]:
    """A letter with a mark on it; `inset` keeps it away from the edges."""
    left, top, right, bottom = 0.18 + inset, 0.28 + inset / 2, 0.82 - inset, 0.74 - inset / 2
    flap = ((left + 0.07, top + 0.08), (0.5, top + 0.27), (right - 0.07, top + 0.08))
    x, y, ring, dot = right - 0.02, top + 0.02, 0.135, 0.1
    return (
        _Shape(_rounded(left, top, right, bottom, 0.06), _WHITE, (left, top, right, bottom)),
        _Shape(_line(flap[:2], 0.028), _BLUE, (left, top, 0.55, bottom)),
        _Shape(_line(flap[1:], 0.028), _BLUE, (0.45, top, right, bottom)),
        _Shape(_circle(x, y, ring), _BLUE, (x - ring, y - ring, x + ring, y + ring)),
        _Shape(_circle(x, y, dot), _ORANGE, (x - dot, y - dot, x + dot, y + dot)),
    )


def _circle(cx: float, cy: float, radius: float) -> Distance:
    return lambda x, y: math.hypot(x - cx, y - cy) - radius


def _rounded(left: float, top: float, right: float, bottom: float, radius: float) -> Distance:
    cx, cy, half_width, half_height = (left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2

    def distance(x: float, y: float) -> float:
        beyond_x, beyond_y = abs(x - cx) - half_width + radius, abs(y - cy) - half_height + radius
        outside = math.hypot(max(beyond_x, 0.0), max(beyond_y, 0.0))
        return outside + min(max(beyond_x, beyond_y), 0.0) - radius

    return distance


def _line(ends: tuple[tuple[float, float], ...], half_width: float) -> Distance:
    (x0, y0), (x1, y1) = ends
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2

    def distance(x: float, y: float) -> float:
        along = max(0.0, min(1.0, ((x - x0) * (x1 - x0) + (y - y0) * (y1 - y0)) / length))
        return math.hypot(x - x0 - along * (x1 - x0), y - y0 - along * (y1 - y0)) - half_width

    return distance


def _paint(pixels: bytearray, size: int, shape: _Shape) -> None:
    left, top, right, bottom = (round(edge * size) for edge in shape.box)
    for row in range(max(top - 1, 0), min(bottom + 1, size)):
        for column in range(max(left - 1, 0), min(right + 1, size)):
            share = _cover(shape.distance, column, row, size)
            if share > 0:
                at = 4 * (row * size + column)
                for part, value in enumerate(shape.colour):
                    pixels[at + part] = round(pixels[at + part] * (1 - share) + value * share)


def _cover(distance: Distance, column: int, row: int, size: int) -> float:
    """How much of a pixel a shape covers."""
    return max(0.0, min(1.0, 0.5 - distance((column + 0.5) / size, (row + 0.5) / size) * size))


def _round_corners(pixels: bytearray, size: int) -> None:
    outline, corner = _rounded(0.0, 0.0, 1.0, 1.0, _ROUNDING), math.ceil(_ROUNDING * size)
    edges = (*range(corner), *range(size - corner, size))
    for row in edges:
        for column in edges:
            pixels[4 * (row * size + column) + 3] = round(255 * _cover(outline, column, row, size))


def _png(size: int, pixels: bytes) -> bytes:
    stride = 4 * size
    rows = b"".join(b"\0" + pixels[start : start + stride] for start in range(0, len(pixels), stride))
    header = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, data) for name, data in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
