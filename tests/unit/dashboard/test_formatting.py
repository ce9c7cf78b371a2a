"""How numbers, times and other people's words are said."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display import formatting

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


@given(st.text())
def test_the_words_of_others_never_become_markup_and_turn_no_direction(text: str) -> None:
    for shown in (str(formatting.plain(text)), str(formatting.said(text))):
        inner = shown.removeprefix("<bdi>").removesuffix("</bdi>")
        assert not re.search(r"<(?!/?code>|wbr>)", inner)
        assert not re.search("[\x00-\x08\u202a-\u202e\u2066-\u2069\u200e\u200f]", shown)


def test_a_long_address_may_break_after_its_at_sign() -> None:
    assert formatting.plain("newsletter@seed-library.example") == "<bdi>newsletter@<wbr>seed-library.example</bdi>"
    assert formatting.plain("Ann <ann@example.org>, @home") == "<bdi>Ann &lt;ann@<wbr>example.org&gt;, @home</bdi>"
    assert formatting.plain("me@example.org") == "<bdi>me@example.org</bdi>"


def test_a_login_names_its_browser_as_people_do() -> None:
    chrome = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36"
    phone = "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 Version/18.0 Safari/604.1"
    edge = "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/156.0 Safari/537.36 Edg/156.0"
    assert [formatting.browser(each) for each in (chrome, phone, edge)] == [
        "Chrome on Linux",
        "Safari on iPhone",
        "Edge on Windows",
    ]
    assert formatting.browser("curl/8.14.1") == "curl/8.14.1"


def test_fields_are_called_as_a_page_calls_them() -> None:
    page = '<label for="f-rate">Messages &lt; an hour</label><legend id="f-what">What</legend><p id="f-note">Note</p>'
    found = formatting.labels(page)
    assert (found["rate"], found["what"], found["note"]) == ("Messages &lt; an hour", "What", "")


def test_backticks_in_pairs_are_code_and_others_are_left_alone() -> None:
    assert formatting.said("run `a <b>` now") == "<bdi>run <code>a &lt;b&gt;</code> now</bdi>"
    assert formatting.said("it`s") == "<bdi>it`s</bdi>"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0302, "30 ms"),
        (1, "1 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3_700, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (-5, "0 ms"),
    ],
)
def test_durations_have_their_two_largest_units(seconds: float, said: str) -> None:
    assert formatting.duration(seconds) == said
    assert formatting.duration(timedelta(seconds=seconds)) == said


@pytest.mark.parametrize(
    ("age_s", "said"),
    [(3, "just now"), (59, "59 seconds ago"), (60, "1 minute ago"), (7_300, "2 hours ago"), (-3_600, "in 1 hour")],
)
def test_times_are_told_from_now(age_s: int, said: str) -> None:
    assert formatting.ago(NOW - timedelta(seconds=age_s), NOW) == said
    assert formatting.ago(None, NOW) == "never"


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [(0, 10, "0%"), (1, 1_000, "0.1%"), (1, 3, "33%"), (10, 10, "100%"), (93, 100, "93%"), (999, 1_000, "99.9%")],
)
def test_shares_of_almost_nothing_and_almost_all_have_a_decimal(part: int, whole: int, said: str) -> None:
    assert formatting.percent(part, whole) == said


def test_a_share_of_nothing_is_none() -> None:
    assert formatting.percent(0, 0) == "\N{EN DASH}"


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (52_000_000, "52 MB"), (3 * 10**15, "3,000.0 TB")],
)
def test_sizes_have_a_short_number(number: int, said: str) -> None:
    assert formatting.size(number) == said
