"""The rules of the ledger, by themselves: what a call may take, and what becomes of a reservation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.domain.money import DayBook, Micros, ReservationState, Room, SpendLimit, room_for, settlement

amounts = st.integers(0, 50).map(Micros)
books = st.lists(
    st.builds(DayBook, st.sampled_from(SpendLimit), limit=amounts, reserved=amounts, settled=amounts),
    min_size=1,
    max_size=3,
).map(tuple)
ends = st.lists(st.none() | amounts, max_size=6)
"""What is said of a call, again and again: its cost, or that it is not known."""


@pytest.mark.req("BF-8", "BF-9")
@given(amounts, books)
def test_a_call_is_made_only_where_its_most_fits_every_limit(most: Micros, day: tuple[DayBook, ...]) -> None:
    found = room_for(most, day)
    fits = all(book.reserved + book.settled + most <= book.limit for book in day)
    assert (found.room is Room.FITS) == fits
    assert (found.tight is None) == fits


@pytest.mark.req("BF-8")
@given(amounts, books)
def test_a_day_is_full_only_if_no_answer_can_make_room_and_a_call_never_fits_only_if_no_day_has_room(
    most: Micros, day: tuple[DayBook, ...]
) -> None:
    found = room_for(most, day)
    if found.room is Room.NEVER:
        assert any(most > book.limit for book in day)
    if found.room is Room.FULL and found.tight is not None:
        assert found.tight.reserved == 0
        assert found.tight.settled + most > found.tight.limit
    if found.room is Room.WAITS:
        assert all(book.fits(most) or book.reserved > 0 for book in day), "an answer may still make room"


@pytest.mark.req("BF-8")
@pytest.mark.parametrize("which", SpendLimit)
def test_a_limit_of_nothing_stops_spending_for_now_and_is_not_taken_for_a_message_that_is_too_dear(
    which: SpendLimit,
) -> None:
    nothing = DayBook(which, Micros(0), Micros(0), Micros(0))
    assert room_for(Micros(7), (nothing,)).room is Room.FULL
    assert room_for(Micros(7), (DayBook(which, Micros(6), Micros(0), Micros(0)),)).room is Room.NEVER


@pytest.mark.req("BF-9")
@given(amounts, ends)
def test_a_reservation_counts_at_its_most_until_its_cost_is_known_and_then_at_its_cost_for_good(
    most: Micros, said: list[Micros | None]
) -> None:
    state, reserved, settled, known = ReservationState.RESERVED, int(most), 0, None
    for cost in said:
        moved = settlement(state, most, cost)
        if moved is None:
            assert state is ReservationState.SETTLED or cost is None
            continue
        state, reserved, settled = moved.state, reserved + moved.reserved, settled + moved.settled
        known = cost if known is None else known
        assert moved.is_overrun == (cost is not None and cost > most)
        assert reserved == 0, "it is no longer under way"
        assert settled == (most if known is None else known), "never released, and corrected once"
    first = next((cost for cost in said if cost is not None), None)
    assert (state is ReservationState.SETTLED) == (first is not None)
    assert reserved + settled == (most if first is None else first)
