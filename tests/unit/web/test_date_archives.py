"""Which pages a date-patterned archive has."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.web.fetching.urls import page_of, pages_between, placeholders_in

pytestmark = pytest.mark.req("WB-9")


@pytest.mark.parametrize(
    ("pattern", "pages"),
    [
        ("/{yyyy}/{mm}/{dd}", ["/2024/03/01", "/2024/02/29", "/2024/02/28"]),
        ("/{yyyy}-{m}-{d}.html", ["/2024-3-1.html", "/2024-2-29.html", "/2024-2-28.html"]),
        ("/{yyyy}/{mm}/", ["/2024/03/", "/2024/02/"]),
        ("/{yy}", ["/24"]),
    ],
)
def test_pages_come_newest_first_and_once_each(pattern: str, pages: list[str]) -> None:
    assert list(pages_between(pattern, date(2024, 2, 28), date(2024, 3, 1))) == pages


def test_an_empty_span_has_no_pages() -> None:
    assert list(pages_between("/{yyyy}", date(2024, 1, 2), date(2024, 1, 1))) == []


@given(
    st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    st.integers(0, 800),
    st.sampled_from(["/{yyyy}", "/{yyyy}/{m}", "/{yyyy}{mm}{dd}"]),
)
def test_every_day_of_the_span_is_on_one_of_its_pages(first: date, days: int, pattern: str) -> None:
    last = date.fromordinal(first.toordinal() + days)
    pages = list(pages_between(pattern, first, last))
    assert len(set(pages)) == len(pages)
    assert set(pages) == {page_of(pattern, date.fromordinal(first.toordinal() + n)) for n in range(days + 1)}


def test_placeholders_are_found() -> None:
    assert placeholders_in("/{yyyy}/{mm}/x") == {"yyyy", "mm"}
    assert placeholders_in("/{year}/x") == frozenset()
