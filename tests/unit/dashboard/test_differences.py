"""Two texts side by side: nothing is lost, what is the same is found, and no text keeps it busy."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display.differences import (
    MOST_ROWS,
    DifferenceRow,
    DifferenceSide,
    LineChange,
    LinePiece,
    difference,
)

LINES = st.lists(st.sampled_from(["", "a", "b", "c", "a b", "a c", "the end"]), max_size=30)


def said(side: DifferenceSide) -> str:
    return "".join(piece.text for piece in side.pieces)


def pieces(side: DifferenceSide | None) -> tuple[LinePiece, ...]:
    return () if side is None else side.pieces


def changes(old: str, new: str) -> list[LineChange]:
    return [row.change for row in difference(old, new).rows]


@given(LINES, LINES)
def test_every_line_that_is_shown_is_a_line_of_its_text_in_order(old: list[str], new: list[str]) -> None:
    rows = difference("\n".join(old), "\n".join(new)).rows
    for lines, sides in ((old, [row.old for row in rows]), (new, [row.new for row in rows])):
        shown = [side for side in sides if side is not None]
        assert [side.number for side in shown] == sorted({side.number for side in shown})
        assert all(said(side) == lines[side.number - 1] for side in shown)


@given(LINES, LINES)
def test_what_is_not_shown_is_the_same_on_both_sides(old: list[str], new: list[str]) -> None:
    rows = difference("\n".join(old), "\n".join(new)).rows
    for lines, side_of in ((old, "old"), (new, "new")):
        written = "\n".join(lines).splitlines()
        seen = sum(1 if getattr(row, side_of) else row.left_out for row in rows)
        assert seen == len(written)
    for row in rows:
        if row.change is LineChange.SAME:
            assert [piece.text for piece in pieces(row.old)] == [piece.text for piece in pieces(row.new)]


@given(LINES)
def test_a_text_does_not_differ_from_itself(lines: list[str]) -> None:
    result = difference("\n".join(lines), "\n".join(lines))
    assert (result.removed, result.added) == (0, 0)
    assert {row.change for row in result.rows} <= {LineChange.SAME, LineChange.LEFT_OUT}


def test_words_that_changed_within_a_line_are_marked_and_no_others() -> None:
    (row,) = difference("The tax is 20 % from May on.", "The tax is 25 % from May on.").rows
    assert [(piece.text, piece.is_marked) for piece in pieces(row.old)] == [
        ("The tax is ", False),
        ("20", True),
        (" % from May on.", False),
    ]
    assert [piece.text for piece in pieces(row.new) if piece.is_marked] == ["25"]


def test_lines_that_came_and_went_stand_alone() -> None:
    assert changes("a\nb\nc", "a\nc") == [LineChange.SAME, LineChange.REMOVED, LineChange.SAME]
    assert changes("a\nc", "a\nb\nc") == [LineChange.SAME, LineChange.ADDED, LineChange.SAME]
    assert changes("", "a") == [LineChange.ADDED]


def test_long_parts_that_are_the_same_are_folded_to_their_edges() -> None:
    lines = [f"line {n}" for n in range(100)]
    rows = difference("\n".join(lines), "\n".join([*lines[:50], "new", *lines[50:]])).rows
    assert [row.left_out for row in rows if row.change is LineChange.LEFT_OUT] == [47, 47]
    assert len(rows) == 3 + 1 + 3 + 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("\n".join("ab"[n % 2] for n in range(50_000)), "\n".join("ba"[n % 3 == 0] for n in range(50_000))),
        ("\n".join(map(str, range(5_000))), "\n".join(map(str, reversed(range(5_000))))),
        ("x " * 2_000_000, "y " * 2_000_000),
        ("\n".join(str(n % 70) for n in range(5_000)), "\n".join(str(n * 7 % 71) for n in range(5_000))),
        ("\n" * 100_000, "a\n" * 100_000),
        ("\n".join(f"{n}{'.,' * 490}" for n in range(5_000)), "\n".join(f"{n}{';:' * 490}" for n in range(5_000))),
    ],
    ids=["two lines", "backwards", "one long line", "no line of its own", "many", "nothing but words"],
)
def test_no_text_takes_long_or_makes_a_long_page(old: str, new: str) -> None:
    start = time.process_time()
    result = difference(old, new)
    assert time.process_time() - start < 3
    assert len(result.rows) <= MOST_ROWS
    assert result.is_cut or len(result.rows) < MOST_ROWS


def test_a_row_without_a_side_is_one_that_came_or_went() -> None:
    rows = difference("a\nb", "x\ny\nz").rows
    assert rows[-1] == DifferenceRow(LineChange.ADDED, new=rows[-1].new)
