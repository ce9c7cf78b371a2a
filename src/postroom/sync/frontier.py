"""The ordered frontier: slices may finish in any order, and progress moves only over an unbroken row of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from postroom.sync.slices import Slice


def advance(frontier: int, slices: Mapping[Slice, bool]) -> int:
    """The largest end such that every slice ending at or before it is done, starting from the frontier so far.

    `slices` tells of each slice from the frontier on whether it is done. A gap between two slices holds the frontier
    as an unfinished slice does: nobody has looked there.
    """
    for part in sorted(slices, key=lambda each: each.start):
        if part.start > frontier or part.end is None or not slices[part]:
            break
        frontier = max(frontier, part.end)
    return frontier
