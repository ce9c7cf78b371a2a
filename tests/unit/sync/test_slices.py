"""Cutting time into slices, and the row of them that progress rests on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.accounts.history import HistoryStanding
from postroom.domain.clock import ManualClock
from postroom.mailboxes.limiter import limiter_for
from postroom.sync.slices import (
    DAY_S,
    EARLIEST_CUT,
    Granularity,
    Slice,
    SliceStanding,
    advance,
    granularity_for,
    in_walk_order,
    newest_from,
    plan,
    split,
    to_list_again,
)
from postroom.sync.state import Listing, SliceRow, standing_of
from postroom.sync.status import ProgressCounters, SyncPhase, progress_words

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


@pytest.mark.req("SY-1")
@given(
    st.integers(1_000_000_000, 1_800_000_000), st.integers(1_000_000_000, 1_800_000_000), st.sampled_from(Granularity)
)
def test_the_newest_days_are_walked_first_and_then_the_rest_from_the_oldest_on(
    oldest: int, until: int, granularity: Granularity
) -> None:
    slices = plan(oldest, until, granularity)
    order = in_walk_order(slices, until)
    assert sorted(order) == sorted(slices)
    assert order[0] == Slice(until, None), "what came in the last minutes"
    newest = [part for part in order if part.start >= newest_from(until)]
    assert order[: len(newest)] == sorted(newest, reverse=True)
    assert order[len(newest) :] == sorted(order[len(newest) :])
    assert all(part.end is None or part.end - part.start <= DAY_S for part in newest)
    assert until - newest_from(until) >= 30 * DAY_S


NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.req("SY-8")
@pytest.mark.parametrize(
    ("row", "history", "expected"),
    [
        (SliceRow(Slice(0, 9), False, 0), HistoryStanding(), SliceStanding.OPEN),
        (SliceRow(Slice(0, 9), True, 0), HistoryStanding(), SliceStanding.DOUBTFUL),
        (SliceRow(Slice(0, 9), True, 0, Listing(NOW, 0)), HistoryStanding(), SliceStanding.DONE),
        (SliceRow(Slice(0, 9), True, 0, Listing(NOW, 0)), HistoryStanding(1, NOW), SliceStanding.DOUBTFUL),
        (SliceRow(Slice(0, 9), True, 0, Listing(NOW - 2 * HOUR, 0)), HistoryStanding(), SliceStanding.DOUBTFUL),
        (SliceRow(Slice(0, 9), True, 0, Listing(NOW - 2 * HOUR, 0)), HistoryStanding(0, NOW), SliceStanding.DONE),
        (
            SliceRow(Slice(0, 9), True, 0, Listing(NOW - 2 * HOUR, 0)),
            HistoryStanding(0, NOW - 3 * HOUR),
            SliceStanding.DOUBTFUL,
        ),
    ],
)
def test_the_history_vouches_for_a_slice_only_if_it_is_unbroken_since_the_listing(
    row: SliceRow, history: HistoryStanding, expected: SliceStanding
) -> None:
    assert standing_of(row, history, NOW) is expected


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Slice], list[tuple[str, int]]]:
    """A row of slices, and what happens: one is listed, done, fails, is split; the history breaks; all begins anew."""
    cuts = sorted(draw(st.sets(st.integers(1, 400), min_size=1, max_size=12)))
    slices = [Slice(start, end) for start, end in zip([0, *cuts[:-1]], cuts, strict=True)]
    kinds = ["list", "list", "done", "done", "done", "fail", "split", "break", "restart"]
    steps = draw(st.lists(st.tuples(st.sampled_from(kinds), st.integers(0, 50)), max_size=80))
    return [*slices, Slice(cuts[-1], None)], steps


class FrontierModel:
    """The slices of a walk, as the database keeps them, and what is true of each moment of time."""

    def __init__(self, slices: list[Slice]) -> None:
        self.state = dict.fromkeys(slices, SliceStanding.OPEN)
        self.under_way: dict[Slice, int] = {}
        """By slice: the epoch of the listing that is under way."""
        self.listed_in: dict[Slice, int] = {}
        self.epoch = self.frontier = 0

    def step(self, what: str, which: int) -> None:
        still_open = sorted(part for part, standing in self.state.items() if standing is SliceStanding.OPEN)
        if what == "break":
            self.epoch += 1
        elif what == "restart":  # listings under way are lost, and what is below the frontier is forgotten
            self.under_way.clear()
            below = [part for part in self.state if part.end is not None and part.end <= self.frontier]
            self.state = {part: standing for part, standing in self.state.items() if part not in below}
        elif still_open:
            self._change(what, still_open[which % len(still_open)])

    def _change(self, what: str, part: Slice) -> None:
        if what == "list":
            self.under_way[part] = self.epoch
        elif what == "fail":
            self.under_way.pop(part, None)
        elif what == "split" and part.end is not None and part.end - part.start > 1:
            del self.state[part]
            self.under_way.pop(part, None)
            middle = (part.start + part.end) // 2
            self.state |= {Slice(part.start, middle): SliceStanding.OPEN, Slice(middle, part.end): SliceStanding.OPEN}
        elif what == "done" and part in self.under_way:
            self.listed_in[part] = self.under_way.pop(part)
            self.state[part] = SliceStanding.DONE
            self._close()

    def _close(self) -> None:
        """As `finish_slice` does it."""
        for part, standing in self.state.items():
            if standing is not SliceStanding.OPEN and part.end is not None and part.end > self.frontier:
                is_same = self.listed_in[part] == self.epoch
                self.state[part] = SliceStanding.DONE if is_same else SliceStanding.DOUBTFUL
        self.frontier = advance(self.frontier, self.state)
        for part in to_list_again(self.frontier, self.state):
            self.state[part] = SliceStanding.OPEN


@pytest.mark.req("SY-8", "SY-9")
@given(histories())
def test_the_frontier_never_goes_back_and_passes_only_what_the_unbroken_history_vouches_for(
    history: tuple[list[Slice], list[tuple[str, int]]],
) -> None:
    slices, steps = history
    model = FrontierModel(slices)
    for what, which in steps:
        before, epoch = model.frontier, model.epoch
        model.step(what, which)
        assert model.frontier >= before
        passed = [part for part in model.listed_in if part.end is not None and before < part.end <= model.frontier]
        assert all(model.listed_in[part] == epoch for part in passed), "listed before the history broke"
        assert all(
            standing is SliceStanding.DONE
            for part, standing in model.state.items()
            if part.end is not None and part.end <= model.frontier
        )
        assert all(part.start >= model.frontier or model.state[part] is SliceStanding.DONE for part in model.state)
    for part in [part for _ in range(3) for part in sorted(model.state)]:  # and it always ends
        if model.state[part] is SliceStanding.OPEN:
            model._change("list", part)
            model._change("done", part)
    assert model.frontier == max(part.start for part in model.state if part.end is None)


def test_doubtful_slices_wait_until_the_frontier_has_come_to_them() -> None:
    parts = Slice(0, 10), Slice(10, 20), Slice(20, 30)
    standings = dict(zip(parts, (SliceStanding.OPEN, SliceStanding.DOUBTFUL, SliceStanding.DOUBTFUL), strict=True))
    assert to_list_again(0, standings) == []
    assert to_list_again(10, standings | {parts[0]: SliceStanding.DONE}) == [*parts[1:]]


def test_a_gap_holds_the_frontier_as_an_unfinished_slice_does() -> None:
    assert advance(0, {Slice(0, 10): SliceStanding.DONE, Slice(20, 30): SliceStanding.DONE}) == 10


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ((12_400, 98_000, 5.0, 17_120.0), "12,400 of 98,000 · 5/s · 5 h left"),
        ((0, 98_000, 0.0, None), "0 of 98,000"),
        ((97_990, 98_000, 0.4, 25.0), "97,990 of 98,000 · 0.4/s · 25 s left"),
        ((10, 1_000_000, 5.2, 192_305.0), "10 of 1,000,000 · 5/s · 2 days left"),
        ((98_000, 98_000, 5.0, 0.0), "98,000 of 98,000"),
    ],
)
def test_progress_is_said_in_the_same_words_everywhere(
    figures: tuple[int, int, float, float | None], words: str
) -> None:
    assert progress_words(*figures) == words


@pytest.mark.req("SY-3")
def test_mail_that_is_known_counts_for_the_pace_of_a_walk() -> None:
    """Else a walk over mail that is all in the archive would seem to take for ever."""
    clock = ManualClock()
    counters = ProgressCounters(clock, limiter_for(None, clock), None)
    counters.phase, counters.messages_total = SyncPhase.WALKING, 1_000
    clock.advance(10)
    counters.add({"known": 495, "stored": 5})
    now = counters.snapshot()
    assert (now.messages_per_second, now.words) == (50, "500 of 1,000 · 50/s · 10 s left")
