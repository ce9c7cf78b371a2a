"""Dates that cannot be true, and what a message is filed under instead."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.preparing import UNDATED, prepare
from postroom.mail.parsing import date_problem, parse_date

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
RECEIVED = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)
_NEWEST = "Received: from a.example by b.example; Mon, 2 Mar 2026 10:30:00 +0100\n"
_OLDEST = "Received: from x.example by a.example; Sun, 1 Mar 2026 08:00:00 +0000\n"


def filed(date: str, headers: str = _NEWEST + _OLDEST, received: datetime | None = None) -> datetime:
    raw = f"{headers}From: ann@example.org\nMessage-ID: <a@b>\nDate: {date}\n\nHello\n".encode()
    return prepare(IncomingMail(raw, Provenance.IMPORT, received=received), NOW).date


@pytest.mark.req("SY-16")
@pytest.mark.parametrize("date", ["Sat, 1 Jan 2028 00:00:00 +0000", "Thu, 5 Mar 0102 10:00:00 +0000"])
def test_a_date_that_cannot_be_true_gives_way_to_the_newest_received_header(date: str) -> None:
    assert filed(date) == RECEIVED
    hostile = "Received: by c.example; Fri, 3 Mar 2028 10:00:00 +0000\nReceived: nonsense\n"
    assert filed(date, hostile + _NEWEST) == RECEIVED
    assert filed(date, "") == UNDATED
    assert filed(date, received=NOW) == NOW


@pytest.mark.req("SY-16")
def test_a_date_that_may_be_true_counts_and_only_the_other_is_marked() -> None:
    written = "Wed, 18 Nov 2026 20:00:00 +0000"  # a clock that is fast
    claimed = datetime(2026, 11, 18, 20, tzinfo=UTC)
    assert filed(written) == claimed
    assert date_problem(claimed, claimed) is date_problem(None, UNDATED) is None
    assert date_problem(datetime(2024, 1, 1, tzinfo=UTC), NOW) is None
    assert date_problem(datetime(102, 3, 5, tzinfo=UTC), RECEIVED) == (
        "Date says 0102-03-05, which cannot be true; filed under 2026-03-02"
    )
    assert date_problem(datetime(2028, 1, 1, tzinfo=UTC), RECEIVED)


@given(
    st.sampled_from(["", "Mon, ", "Xyz, ", "mon, "]),
    st.integers(0, 33),
    st.sampled_from(["Jan", "Feb", "Jun", "Dec", "dec", "Foo"]),
    st.sampled_from(["2026", "1999", "2000", "0099", "26"]),
    st.tuples(st.integers(0, 25), st.integers(0, 61), st.integers(0, 61)),
    st.sampled_from(["+0000", "-0000", "+0530", "-1100", "+1459", "+2400", "-0199", "GMT", "+0100 (CET)", "(CET)", ""]),
)
def test_the_usual_form_is_read_as_the_standard_library_reads_it(
    weekday: str, day: int, month: str, year: str, time: tuple[int, int, int], zone: str
) -> None:
    value = f"{weekday}{day} {month} {year} {time[0]:02}:{time[1]:02}:{time[2]:02} {zone}"
    try:
        expected = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError):
        assert parse_date(value) is None
    else:
        aware = expected if expected.tzinfo else expected.replace(tzinfo=UTC)
        assert parse_date(value) == aware.astimezone(UTC)
