"""A span of time in Gmail's search language: it may hold a little more than was asked for, and never less."""

from __future__ import annotations

import pytest

from postroom.mailboxes.gmail.calls import search_query
from postroom.mailboxes.gmail.methods import SHORTEST_EPOCH
from postroom.mailboxes.protocol import Span


@pytest.mark.req("SY-1")
def test_a_span_in_gmails_words_loses_nothing_at_its_edges() -> None:
    assert search_query(Span(0, 1_700_000_000)) == "before:1700000000"
    assert search_query(Span(1_700_000_000, 1_700_086_400)) == "after:1699999999 before:1700086400"
    assert search_query(Span(1_700_086_400, None)) == "after:1700086399"


def test_no_span_and_a_span_of_all_time_ask_for_everything() -> None:
    assert search_query(None) == search_query(Span(0)) == ""


@pytest.mark.parametrize("start", [1, 86_400, SHORTEST_EPOCH])
def test_a_start_before_1973_could_be_taken_for_a_date_and_is_left_out(start: int) -> None:
    assert search_query(Span(start, 1_700_000_000)) == "before:1700000000"


def test_an_end_before_1973_is_moved_to_the_first_second_that_cannot_be_taken_for_a_date() -> None:
    assert search_query(Span(0, 5)) == f"before:{SHORTEST_EPOCH}"


def test_a_year_alone_is_sent_as_a_day_so_that_it_cannot_be_taken_for_seconds() -> None:
    assert search_query(None, "(invoice Before:2030) -after:2019") == "(invoice Before:2030/01/01) -after:2019/01/01"
    left = 'after:2019/05/01 before:1700000000 "after:2019" subject:after:2019 after:20'
    assert search_query(None, left) == left


def test_further_terms_follow_and_empty_ones_leave_nothing_behind() -> None:
    assert search_query(Span(1_700_000_000), "-in:sent", "", "(invoice)") == "after:1699999999 -in:sent (invoice)"
    assert search_query(None, "", "in:sent") == "in:sent"
