"""The file of sources, and mistakes in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom.domain.errors import BadInput, NotFound
from postroom.web.sources import EndpointMode, ItemFilter, load_sources, parse_sources

pytestmark = pytest.mark.req("WB-9")

GOOD = """
[[source]]
slug = "gazette"
name = "The Gazette"
domains = ["Gazette.example", "archive.example"]
include = ["/news/"]
exclude = ["\\\\.jpg$"]
max_urls = 100
min_delay_ms = 8000
max_delay_ms = 15000

[[source.endpoint]]
name = "sitemap"
mode = "sitemap"
url = "https://www.gazette.example/sitemap.xml"

[[source.endpoint]]
name = "archive"
mode = "ARCHIVE"
url = "https://archive.example/{yyyy}/{mm}"
first_day = 2001-01-01
sentinel = false
links = ["/issue/"]
"""


def test_a_source_says_where_it_lists_what_and_how_it_wants_to_be_treated() -> None:
    source = parse_sources(GOOD)["gazette"]
    assert source.domains == ["gazette.example", "archive.example"]
    assert [endpoint.name for endpoint in source.endpoints(EndpointMode.ARCHIVE)] == ["archive"]
    assert source.has_host("www.gazette.example")
    assert not source.has_host("notgazette.example")


def test_which_addresses_are_items() -> None:
    source = parse_sources(GOOD)["gazette"]
    wanted = ItemFilter.of(source, source.endpoint[0])
    assert wanted.wants("https://gazette.example/news/1")
    assert not wanted.wants("https://gazette.example/about")
    assert not wanted.wants("https://gazette.example/news/1.JPG")
    assert not wanted.wants("https://elsewhere.example/news/1")
    assert ItemFilter.of(source, source.endpoint[1]).wants("https://archive.example/issue/7")


def test_no_file_is_no_sources(tmp_path: Path) -> None:
    assert list(load_sources(tmp_path)) == []


def test_a_source_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(NotFound, match=r"no source 'tax'.*known: gazette"):
        parse_sources(GOOD)["tax"]


@pytest.mark.parametrize(
    ("before", "after", "place", "problem"),
    [
        ('slug = "gazette"', 'slug = "The Gazette"', "source 'The Gazette' slug", "lower-case letters"),
        ('slug = "gazette"', "", "source 'The Gazette' slug", "missing"),
        ('name = "The Gazette"', "colour = 1", "source 'gazette' colour", "no such key"),
        (
            'domains = ["Gazette.example", "archive.example"]',
            "domains = []",
            "source 'gazette' domains",
            "fewer than 1",
        ),
        ('"Gazette.example"', '"http://x"', "source 'gazette' domains", "host"),
        ('mode = "sitemap"', 'mode = "rss"', "source 'gazette' endpoint 'sitemap' mode", "SITEMAP"),
        ("/sitemap.xml", "/{yyyy}.xml", "source 'gazette' endpoint 'sitemap'", "archive's url"),
        ("/{yyyy}/{mm}", "/all", "source 'gazette' endpoint 'archive'", "archive's url"),
        ("first_day = 2001-01-01", "", "source 'gazette' endpoint 'archive'", "first_day"),
        ("https://www.gazette.example", "https://evil.example", "source 'gazette'", "outside of the source's domains"),
        ("https://www.gazette.example", "ftp://gazette.example", "source 'gazette' endpoint 'sitemap'", "http"),
        ('name = "archive"', 'name = "sitemap"', "source 'gazette'", "same name"),
        ("max_delay_ms = 15000", "max_delay_ms = 1", "source 'gazette'", "min_delay_ms is more"),
        ('links = ["/issue/"]', 'links = ["(unclosed"]', "source 'gazette' endpoint 'archive' links", "RE2"),
        ('links = ["/issue/"]', 'page_parameter = "p"', "source 'gazette' endpoint 'archive'", "pagination"),
        ("max_urls = 100", "max_urls = 0", "source 'gazette' max_urls", "less than 1"),
        ("[[source]]", "colour = 1\n[[source]]", "colour", "no such key"),
        ("[[source]]", "[[source]", "sources.toml", "not valid TOML"),
    ],
)
def test_a_mistake_is_named_by_its_place(before: str, after: str, place: str, problem: str) -> None:
    assert before in GOOD
    with pytest.raises(BadInput) as refusal:
        parse_sources(GOOD.replace(before, after, 1))
    assert place in refusal.value.field
    assert problem in refusal.value.problem


def test_two_sources_of_one_slug_are_refused() -> None:
    with pytest.raises(BadInput, match="same slug"):
        parse_sources(GOOD + GOOD)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sources.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"sources\.toml"):
        load_sources(tmp_path)
