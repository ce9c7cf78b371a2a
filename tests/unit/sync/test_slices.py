"""Cutting time into slices, and the row of them that progress rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.sync.slices import (
    DAY_S,
    EARLIEST_CUT,
    Granularity,
    Slice,
    advance,
    granularity_for,
    plan,
    split,
)

instants = st.integers(0, 4_000_000_000)


@pytest.mark.req("SY-1")
@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (0, Granularity.MONTH),
        (19_999, Granularity.MONTH),
        (20_000, Granularity.WEEK),
        (200_000, Granularity.WEEK),
        (200_001, Granularity.DAY),
    ],
)
def test_full_mailboxes_get_short_slices(messages: int, expected: Granularity) -> None:
    assert granularity_for(messages) is expected


@pytest.mark.req("SY-1")
@given(
    st.integers(1_000_000_000, 1_800_000_000), st.integers(1_000_000_000, 1_800_000_000), st.sampled_from(Granularity)
)
def test_a_plan_covers_all_time_once_and_ends_open(oldest: int, until: int, granularity: Granularity) -> None:
    slices = plan(oldest, until, granularity)
    assert slices[0].start == 0
    assert slices[-1] == Slice(until, None)
    assert [part.end for part in slices[:-1]] == [part.start for part in slices[1:]]
    longest = 31 * DAY_S
    assert all(part.end is not None and part.end - part.start <= longest for part in slices[1:-1])


@pytest.mark.req("SY-1")
def test_empty_years_are_one_slice() -> None:
    slices = plan(oldest=1_700_000_000, until=1_700_000_000 + 10 * DAY_S, granularity=Granularity.DAY)
    assert len(slices) == 12
    assert slices[0].start == 0
    assert slices[0].end is not None
    assert 0 < slices[0].end - 1_700_000_000 <= DAY_S


@given(instants, instants)
def test_halves_cover_the_whole(start: int, end: int) -> None:
    whole = Slice(min(start, end), max(start, end) + 1)
    halves = split(whole)
    if halves is None:
        assert whole.end is not None
        assert whole.end - whole.start == 1 or whole.end <= EARLIEST_CUT + 1
    else:
        assert (halves[0].start, halves[0].end, halves[1].end) == (whole.start, halves[1].start, whole.end)


def test_a_second_and_what_has_no_end_cannot_be_split() -> None:
    assert split(Slice(1_700_000_000, 1_700_000_001)) is None
    assert split(Slice(1_700_000_000, None)) is None


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Slice], list[tuple[str, int]]]:
    """A row of slices, and what happens to them: one is done, one is split, or everything begins anew."""
    cuts = sorted(draw(st.sets(st.integers(1, 400), min_size=1, max_size=12)))
    slices = [Slice(start, end) for start, end in zip([0, *cuts[:-1]], cuts, strict=True)]
    steps = draw(
        st.lists(st.tuples(st.sampled_from(["done", "done", "split", "restart"]), st.integers(0, 50)), max_size=60)
    )
    return [*slices, Slice(cuts[-1], None)], steps


@pytest.mark.req("SY-8", "SY-9")
@given(histories())
def test_the_frontier_never_goes_back_and_never_passes_an_unfinished_slice(
    history: tuple[list[Slice], list[tuple[str, int]]],
) -> None:
    slices, steps = history
    state = dict.fromkeys(slices, False)
    frontier = 0
    for what, which in steps:
        still_open = sorted(part for part, is_done in state.items() if not is_done)
        if not still_open:
            break
        part = still_open[which % len(still_open)]
        if what == "done":
            state[part] = True
        elif what == "split" and part.end is not None and part.end - part.start > 1:
            del state[part]
            middle = (part.start + part.end) // 2
            state |= {Slice(part.start, middle): False, Slice(middle, part.end): False}
        elif what == "restart":  # only what the state holds survives: slices below the frontier are forgotten
            state = {part: done for part, done in state.items() if part.end is None or part.end > frontier}
        moved = advance(frontier, state)
        assert moved >= frontier
        assert all(done for part, done in state.items() if part.end is not None and part.end <= moved)
        assert all(part.start >= moved or done for part, done in state.items())
        frontier = moved
    if all(done for part, done in state.items() if part.end is not None):
        assert frontier == max(part.start for part in state if part.end is None)


def test_a_gap_holds_the_frontier_as_an_unfinished_slice_does() -> None:
    assert advance(0, {Slice(0, 10): True, Slice(20, 30): True}) == 10
