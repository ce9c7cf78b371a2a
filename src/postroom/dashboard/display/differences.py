"""The difference between two texts, line by line and word by word. Bounded in time and size, whatever the texts are."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MOST_LINES = 5_000
LONGEST_LINE = 1_000
MOST_ROWS = 1_500
CONTEXT = 3
_DEEPEST = 40
_MOST_CELLS = 400_000
"""Of all tables that parts without a line of their own may fill together."""
_MOST_MARKED = 400_000
"""Characters of changed lines that are compared word by word; those after them are marked whole."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")

Lines = Sequence[str]
Pair = tuple[int, int]


class LineChange(StrEnum):
    SAME = "same"
    CHANGED = "changed"
    REMOVED = "removed"
    ADDED = "added"
    LEFT_OUT = "left_out"


@dataclass(frozen=True, slots=True)
class LinePiece:
    text: str
    is_marked: bool


@dataclass(frozen=True, slots=True)
class DifferenceSide:
    """One line of one text."""

    number: int
    pieces: tuple[LinePiece, ...]


@dataclass(frozen=True, slots=True)
class DifferenceRow:
    change: LineChange
    old: DifferenceSide | None = None
    new: DifferenceSide | None = None
    left_out: int = 0
    """Of a row that stands for lines that are the same: how many."""


@dataclass(frozen=True, slots=True)
class TextDifference:
    rows: list[DifferenceRow]
    removed: int
    """Lines of the old text that the new one does not have; a changed line counts on both sides."""
    added: int
    is_cut: bool
    """One of the texts, or what differs, was too long to be shown whole."""


def difference(old: str, new: str) -> TextDifference:
    old_lines, new_lines = old.splitlines(), new.splitlines()
    is_cut = any(map(_is_long, (old_lines, new_lines)))
    before, after = (_shown(lines) for lines in (old_lines, new_lines))
    pairs = _Matching(before, after).pairs()
    rows = list(_folded(list(_rows(before, after, pairs))))
    return TextDifference(
        list(_by_words(rows[:MOST_ROWS])),
        len(before) - len(pairs),
        len(after) - len(pairs),
        is_cut or len(rows) > MOST_ROWS,
    )


def _is_long(lines: Lines) -> bool:
    return len(lines) > MOST_LINES or any(len(line) > LONGEST_LINE for line in lines)


def _shown(lines: Lines) -> Lines:
    return [line[:LONGEST_LINE].rstrip() for line in lines[:MOST_LINES]]


@dataclass(slots=True)
class _Matching:
    """Which lines are the same: pairs of their numbers that rise on both sides."""

    old: Lines
    new: Lines
    _found: list[Pair] = field(default_factory=list)
    _cells: int = 0

    def pairs(self) -> list[Pair]:
        parts = [(0, len(self.old), 0, len(self.new), 0)]
        while parts:
            i, i_end, j, j_end, depth = parts.pop()
            i, i_end, j, j_end = self._trimmed(i, i_end, j, j_end)
            if i == i_end or j == j_end:
                continue
            anchors = self._anchors(i, i_end, j, j_end) if depth < _DEEPEST else []
            if not anchors:
                self._compare(i, i_end, j, j_end)
                continue
            self._found += anchors
            starts = [(i, j), *((a + 1, b + 1) for a, b in anchors)]
            for (a, b), (a_end, b_end) in zip(starts, [*anchors, (i_end, j_end)], strict=True):
                parts.append((a, a_end, b, b_end, depth + 1))
        return sorted(self._found)

    def _trimmed(self, i: int, i_end: int, j: int, j_end: int) -> tuple[int, int, int, int]:
        """Without the lines at both ends that are the same; those are pairs."""
        while i < i_end and j < j_end and self.old[i] == self.new[j]:
            self._found.append((i, j))
            i, j = i + 1, j + 1
        while i < i_end and j < j_end and self.old[i_end - 1] == self.new[j_end - 1]:
            i_end, j_end = i_end - 1, j_end - 1
            self._found.append((i_end, j_end))
        return i, i_end, j, j_end

    def _anchors(self, i: int, i_end: int, j: int, j_end: int) -> list[Pair]:
        """Lines that occur once on each side: as many as keep their order."""
        once_old, once_new = _once(self.old, i, i_end), _once(self.new, j, j_end)
        common = sorted((place, once_new[line]) for line, place in once_old.items() if line in once_new)
        return _rising(common)

    def _compare(self, i: int, i_end: int, j: int, j_end: int) -> None:
        """Exactly, by a table, while there is room for one."""
        height, width = i_end - i, j_end - j
        self._cells += height * width
        if self._cells > _MOST_CELLS:
            return
        longest = [[0] * (width + 1) for _ in range(height + 1)]
        for a in range(height - 1, -1, -1):
            row, below = longest[a], longest[a + 1]
            for b in range(width - 1, -1, -1):
                is_same = self.old[i + a] == self.new[j + b]
                row[b] = below[b + 1] + 1 if is_same else max(below[b], row[b + 1])
        a = b = 0
        while a < height and b < width:
            if self.old[i + a] == self.new[j + b]:
                self._found.append((i + a, j + b))
                a, b = a + 1, b + 1
            elif longest[a + 1][b] >= longest[a][b + 1]:
                a += 1
            else:
                b += 1


def _once(lines: Lines, start: int, end: int) -> dict[str, int]:
    counts = Counter(lines[start:end])
    return {lines[place]: place for place in range(start, end) if counts[lines[place]] == 1}


def _rising(pairs: Sequence[Pair]) -> list[Pair]:
    """The longest part of pairs, which rise in the first, that rises in the second too."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for place, (_, second) in enumerate(pairs):
        length = bisect_left(ends, second)
        before.append(last[length - 1] if length else -1)
        ends[length : length + 1] = [second]
        last[length : length + 1] = [place]
    found: list[Pair] = []
    place = last[-1] if last else -1
    while place >= 0:
        found.append(pairs[place])
        place = before[place]
    return found[::-1]


def _rows(old: Lines, new: Lines, pairs: Sequence[Pair]) -> Iterator[DifferenceRow]:
    i = j = 0
    for next_i, next_j in pairs:
        yield from _differing(old, new, range(i, next_i), range(j, next_j))
        same = (LinePiece(new[next_j], False),)
        yield DifferenceRow(LineChange.SAME, DifferenceSide(next_i + 1, same), DifferenceSide(next_j + 1, same))
        i, j = next_i + 1, next_j + 1
    yield from _differing(old, new, range(i, len(old)), range(j, len(new)))


def _differing(old: Lines, new: Lines, gone: range, come: range) -> Iterator[DifferenceRow]:
    """Lines that stand in for each other side by side, then those that one text has more."""
    for a, b in zip(gone, come, strict=False):
        yield DifferenceRow(LineChange.CHANGED, _whole(a, old), _whole(b, new))
    for a in gone[len(come) :]:
        yield DifferenceRow(LineChange.REMOVED, old=_whole(a, old))
    for b in come[len(gone) :]:
        yield DifferenceRow(LineChange.ADDED, new=_whole(b, new))


def _whole(place: int, lines: Lines) -> DifferenceSide:
    return DifferenceSide(place + 1, (LinePiece(lines[place], True),))


def _by_words(rows: Sequence[DifferenceRow]) -> Iterator[DifferenceRow]:
    """Of changed lines only the words that differ are marked, as far as there is time for it."""
    room = _MOST_MARKED
    for row in rows:
        if row.change is LineChange.CHANGED and row.old and row.new:
            old, new = row.old.pieces[0].text, row.new.pieces[0].text
            room -= len(old) + len(new)
            if room >= 0:
                before, after = _marked(old, new)
                row = DifferenceRow(
                    row.change, DifferenceSide(row.old.number, before), DifferenceSide(row.new.number, after)
                )
        yield row


def _marked(old: str, new: str) -> tuple[tuple[LinePiece, ...], tuple[LinePiece, ...]]:
    """The words between what both lines begin and end with."""
    before, after = _WORD.findall(old), _WORD.findall(new)
    shortest = min(len(before), len(after))
    head = next((n for n in range(shortest) if before[n] != after[n]), shortest)
    rest = shortest - head
    tail = next((n for n in range(rest) if before[-1 - n] != after[-1 - n]), rest)
    return _cut(before, head, tail), _cut(after, head, tail)


def _cut(words: list[str], head: int, tail: int) -> tuple[LinePiece, ...]:
    end = len(words) - tail
    pieces = ((words[:head], False), (words[head:end], True), (words[end:], False))
    return tuple(LinePiece("".join(part), is_marked) for part, is_marked in pieces if part)


def _folded(rows: Sequence[DifferenceRow]) -> Iterator[DifferenceRow]:
    """Of long parts that are the same only the lines next to a difference."""
    start = 0
    while start < len(rows):
        end = start
        while end < len(rows) and rows[end].change is LineChange.SAME:
            end += 1
        yield from _fold(rows, start, end)
        if end < len(rows):
            yield rows[end]
        start = end + 1


def _fold(rows: Sequence[DifferenceRow], start: int, end: int) -> Iterator[DifferenceRow]:
    head = CONTEXT if start > 0 else 0
    tail = CONTEXT if end < len(rows) else 0
    hidden = end - start - head - tail
    if hidden <= 1:
        yield from rows[start:end]
        return
    yield from rows[start : start + head]
    yield DifferenceRow(LineChange.LEFT_OUT, left_out=hidden)
    yield from rows[end - tail : end]
