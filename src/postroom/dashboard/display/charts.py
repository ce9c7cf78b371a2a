"""Small SVG charts with a text alternative inside, shown as images so that the content policy stays strict.

Colours follow the reader's light or dark scheme; shape and labels never rely on colour alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from markupsafe import Markup, escape

from postroom.dashboard.display.formatting import clean

_STYLE = (
    ".s0{fill:#1f5fbf}.s1{fill:#b45309}.s2{fill:#5b6b7d}.s3{fill:#0f766e}.s4{fill:#7c3aed}.s5{fill:#a21caf}"
    ".ink{fill:#3d4a57}.line{stroke:#1f5fbf}.rule{stroke:#c8d0d9}.empty{fill:#dfe4ea}"
    "text{font:12px system-ui,sans-serif}"
    "@media(prefers-color-scheme:dark){.s0{fill:#6ea8ff}.s1{fill:#f2b05e}.s2{fill:#9aa9b8}.s3{fill:#4fd1b8}"
    ".s4{fill:#b69cff}.s5{fill:#f09be8}.ink{fill:#c3ccd6}.line{stroke:#6ea8ff}.rule{stroke:#3a4654}"
    ".empty{fill:#2b3540}}"
)
_COLOURS = 6
_LINES = (
    "path{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}"
    ".l0{stroke:#1f5fbf}.l1{stroke:#b45309;stroke-dasharray:6 4}.l2{stroke:#5b6b7d;stroke-dasharray:2 4}"
    ".base{stroke:#c8d0d9;stroke-width:1}"
    "@media(prefers-color-scheme:dark){.l0{stroke:#6ea8ff}.l1{stroke:#f2b05e}.l2{stroke:#9aa9b8}.base{stroke:#3a4654}}"
)
"""Lines differ by dashes too; they keep their width when the picture is stretched."""


@dataclass(frozen=True, slots=True)
class ChartPart:
    label: str
    value: float
    shown: str
    """The value as it is said."""


@dataclass(frozen=True, slots=True)
class Chart:
    svg: str
    description: str
    width: int
    height: int


def pie(title: str, parts: Sequence[ChartPart]) -> Chart:
    """Slices clockwise from the top, in the order given, so that slice and legend match by position."""
    total = sum(part.value for part in parts)
    radius, turn = 70.0, 0.0
    drawn = ['<circle class="empty" cx="80" cy="80" r="70"/>'] if not total else []
    for place, part in enumerate(parts):
        share = part.value / total if total else 0.0
        drawn.append(_slice(80, 80, radius, turn, share, place))
        turn += share
    return _chart(title, parts, 160, 160, drawn)


def bars(title: str, parts: Sequence[ChartPart], width: int = 480) -> Chart:
    """Lying bars with their labels and values written beside them."""
    row, label, value = 26, 150, 90
    most = max((part.value for part in parts), default=0) or 1
    drawn = []
    for place, part in enumerate(parts):
        top = place * row
        length = max(1.0, (width - label - value) * part.value / most) if part.value else 0.0
        drawn.append(f'<text class="ink" x="0" y="{top + 17}">{_text(_short(part.label, 22))}</text>')
        drawn.append(f'<rect class="s{place % _COLOURS}" x="{label}" y="{top + 5}" width="{length:.1f}" height="16"/>')
        drawn.append(f'<text class="ink" x="{label + length + 6:.1f}" y="{top + 17}">{_text(part.shown)}</text>')
    return _chart(title, parts, width, max(row * len(parts), row), drawn)


def sparkline(title: str, points: Sequence[ChartPart], width: int = 320, height: int = 56) -> Chart:
    """How a number went over time; the first point is the oldest."""
    most = max((point.value for point in points), default=0) or 1
    step = width / max(len(points) - 1, 1)
    line = " ".join(
        f"{place * step:.1f},{height - 4 - (height - 10) * point.value / most:.1f}"
        for place, point in enumerate(points)
    )
    drawn = [f'<path class="rule" d="M0 {height - 3.5}H{width}" stroke-width="1"/>']
    if line:
        drawn.append(f'<polyline class="line" points="{line}" fill="none" stroke-width="2" stroke-linejoin="round"/>')
    return _chart(title, points, width, height, drawn)


@dataclass(frozen=True, slots=True)
class BandSegment:
    """A piece of a band: so long, of this kind."""

    kind: int
    value: float


def band(title: str, stretches: Sequence[BandSegment], totals: Sequence[ChartPart], width: int = 960) -> Chart:
    """Stretches in a row. The first kind is the highest, so that kinds differ without colours too; in words, totals."""
    height, at = 28, 0.0
    whole = sum(stretch.value for stretch in stretches) or 1
    drawn = []
    for stretch in stretches:
        length = width * stretch.value / whole
        top = 6 * stretch.kind
        shape = f'x="{at:.2f}" y="{top}" width="{max(length, 0.5):.2f}" height="{height - top}"'
        drawn.append(f'<rect class="s{stretch.kind % _COLOURS}" {shape}/>')
        at += length
    return _chart(title, totals, width, height, drawn)


@dataclass(frozen=True, slots=True)
class Track:
    """One of several numbers over time; None where nothing is known."""

    label: str
    values: Sequence[float | None]
    shown: str
    """The whole of it, as it is said."""


def columns_over_time(title: str, tracks: Sequence[Track], width: int = 480, height: int = 120) -> Chart:
    """A column for each moment, the oldest on the left; the first track is at the bottom. To be stretched."""
    moments = [[value or 0.0 for value in column] for column in zip(*(track.values for track in tracks), strict=True)]
    most = max((sum(column) for column in moments), default=0) or 1
    step = width / max(len(moments), 1)
    drawn = [f'<path class="base" d="M0 {height - 0.5}H{width}"/>']
    for place, column in enumerate(moments):
        top = float(height)
        for kind, value in enumerate(column):
            tall = (height - 4) * value / most
            top -= tall
            if value:
                shape = f'x="{place * step + step * 0.1:.1f}" y="{top:.1f}" width="{step * 0.8:.1f}"'
                drawn.append(f'<rect class="s{kind % _COLOURS}" {shape} height="{max(tall, 0.7):.1f}"/>')
    return _stretched(title, tracks, width, height, drawn)


def lines_over_time(title: str, tracks: Sequence[Track], width: int = 480, height: int = 60) -> Chart:
    """A line for each track, the oldest moment on the left, with a gap where nothing is known. To be stretched.

    A moment by itself is a dash as wide as a column, which is seen even if it is the first or the last."""
    known = [value for track in tracks for value in track.values if value is not None]
    most = max(known, default=0) or 1
    drawn = [f'<path class="base" d="M0 {height - 0.5}H{width}"/>']
    for kind, track in reversed(list(enumerate(tracks))):
        path = _path(track.values, width, height, most)
        if path:
            drawn.append(f'<path class="l{kind % 3}" d="{path}"/>')
    return _stretched(title, tracks, width, height, drawn)


def _path(values: Sequence[float | None], width: int, height: int, most: float) -> str:
    step = width / max(len(values) - 1, 1)
    parts = []
    for is_known, group in groupby(enumerate(values), lambda each: each[1] is not None):
        if is_known:
            points = [(place * step, height - 2 - (height - 6) * (value or 0) / most) for place, value in group]
            parts.append("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in _visible(points, step / 2, width)))
    return "".join(parts)


def _visible(points: list[tuple[float, float]], half: float, width: int) -> list[tuple[float, float]]:
    if len(points) > 1:
        return points
    [(x, y)] = points
    return [(max(x - half, 0), y), (min(x + half, width), y)]


def _stretched(title: str, tracks: Sequence[Track], width: int, height: int, drawn: list[str]) -> Chart:
    parts = [ChartPart(track.label, 0, track.shown) for track in tracks]
    chart = _chart(title, parts, width, height, drawn)
    svg = chart.svg.replace('role="img"', 'role="img" preserveAspectRatio="none"', 1)
    return Chart(svg.replace("</style>", f"{_LINES}</style>", 1), chart.description, width, height)


def as_image(chart: Chart, kind: str = "chart") -> Markup:
    data = base64.b64encode(chart.svg.encode()).decode()
    return Markup('<img class="{}" src="data:image/svg+xml;base64,{}" alt="{}" width="{}" height="{}">').format(
        kind, data, chart.description, chart.width, chart.height
    )


def _chart(title: str, parts: Sequence[ChartPart], width: int, height: int, drawn: list[str]) -> Chart:
    summary = ", ".join(f"{part.label} {part.shown}" for part in parts) or "nothing yet"
    description = f"{title}: {summary}"
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img"><title>{_text(title)}</title><desc>{_text(summary)}</desc><style>{_STYLE}</style>'
        f"{''.join(drawn)}</svg>"
    )
    return Chart(svg, description, width, height)


def _slice(cx: float, cy: float, radius: float, turn: float, share: float, place: int) -> str:
    colour = f"s{place % _COLOURS}"
    if share <= 0:
        return ""
    if share >= 1:
        return f'<circle class="{colour}" cx="{cx}" cy="{cy}" r="{radius}"/>'
    (x0, y0), (x1, y1) = (_point(cx, cy, radius, at) for at in (turn, turn + share))
    large = int(share > 0.5)
    return f'<path class="{colour}" d="M{cx} {cy}L{x0} {y0}A{radius} {radius} 0 {large} 1 {x1} {y1}Z"/>'


def _point(cx: float, cy: float, radius: float, turn: float) -> tuple[float, float]:
    angle = 2 * math.pi * turn
    return round(cx + radius * math.sin(angle), 2), round(cy - radius * math.cos(angle), 2)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(text: str) -> Markup:
    """Also without control characters: one of them, and no browser draws the image."""
    return escape(clean(text))
