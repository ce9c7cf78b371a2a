"""Sitemaps as sites really have them, and as an attacker would."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.web.fetching.interface import BadAnswer, TooLarge
from postroom.web.listings import MOST_ENTRIES, DateWindow, ListedUrl, Modified, read_modified, read_sitemap

pytestmark = pytest.mark.req("WB-9")

LARGEST = 5_000_000
NAMESPACE = "http://www.sitemaps.org/schemas/sitemap/0.9"


def urlset(inside: str, root: str = "urlset", namespace: str = NAMESPACE) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?><{root} xmlns="{namespace}">{inside}</{root}>'.encode()


def urls(body: bytes) -> list[str]:
    return [entry.url for entry in read_sitemap(body, LARGEST).pages]


def test_pages_come_in_order_with_their_age() -> None:
    body = urlset(
        "<url><loc> https://e.com/a </loc><lastmod>2024-03-01</lastmod></url><url><loc>https://e.com/b?x=1&amp;y=2</loc></url>"
    )
    pages = read_sitemap(body, LARGEST).pages
    assert [page.url for page in pages] == ["https://e.com/a", "https://e.com/b?x=1&y=2"]
    assert pages[0].modified is not None
    assert pages[0].modified.earliest == datetime(2024, 3, 1, tzinfo=UTC)
    assert pages[1].modified is None


def test_an_index_has_children_and_no_pages() -> None:
    found = read_sitemap(urlset("<sitemap><loc>https://e.com/1.xml</loc></sitemap>", "sitemapindex"), LARGEST)
    assert found.children == (ListedUrl("https://e.com/1.xml"),)
    assert found.pages == ()


@pytest.mark.parametrize("body", [urlset("<url><loc>https://e.com/a</loc></url>")])
def test_a_compressed_sitemap_is_unpacked_whatever_it_is_called(body: bytes) -> None:
    assert urls(gzip.compress(body)) == ["https://e.com/a"]


def test_other_and_missing_namespaces_are_read_too() -> None:
    assert urls(b"<urlset><url><loc>https://e.com/a</loc></url></urlset>") == ["https://e.com/a"]
    assert urls(
        urlset("<url><loc>https://e.com/a</loc></url>", namespace="http://google.com/schemas/sitemap/0.84")
    ) == ["https://e.com/a"]


def test_the_address_of_an_image_is_not_the_address_of_its_page() -> None:
    image = '<image:image xmlns:image="http://www.google.com/schemas/sitemap-image/1.1"><image:loc>https://e.com/i.jpg</image:loc></image:image>'
    direct = '<i:loc xmlns:i="urn:x">https://e.com/j.jpg</i:loc>'
    assert urls(urlset(f"<url><loc>https://e.com/a</loc>{image}{direct}</url>")) == ["https://e.com/a"]


def test_a_plain_list_of_addresses_is_a_sitemap() -> None:
    assert urls(b"\xef\xbb\xbfhttps://e.com/a\r\n\r\nhttps://e.com/b\nnot an address\n") == [
        "https://e.com/a",
        "https://e.com/b",
    ]
    assert urls(b"") == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"<html><body>Not found</body></html>", "no sitemap"),
        (b"just some words", "no sitemap"),
        (b"<urlset><url>", "not valid XML"),
        (b"<urlset>\x00</urlset>", "not valid XML"),
        (b'<?xml version="1.0" encoding="x-unknown"?><urlset/>', "not valid XML"),
        (b'<!DOCTYPE urlset [<!ENTITY a "b">]><urlset><url><loc>&a;</loc></url></urlset>', "document type or entities"),
        (b'<!DOCTYPE u SYSTEM "http://127.0.0.1/x.dtd"><urlset/>', "document type or entities"),
        (b'<!DOCTYPE u [<!ENTITY x SYSTEM "file:///etc/passwd">]><urlset>&x;</urlset>', "document type or entities"),
    ],
)
def test_what_is_no_sitemap_is_refused_with_the_reason(body: bytes, problem: str) -> None:
    with pytest.raises(BadAnswer, match=problem):
        read_sitemap(body, LARGEST)


def test_a_bomb_in_a_compressed_sitemap_does_not_go_off() -> None:
    with pytest.raises(TooLarge):
        read_sitemap(gzip.compress(b"<urlset>" + b" " * 50_000_000), LARGEST)


def test_a_billion_laughs_are_not_laughed() -> None:
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    with pytest.raises(BadAnswer, match="entities"):
        read_sitemap(f'<!DOCTYPE u [<!ENTITY l0 "lol">{entities}]><urlset>&l9;</urlset>'.encode(), LARGEST)


def test_more_entries_than_the_protocol_allows_are_left_out_and_told() -> None:
    body = "\n".join(f"https://e.com/{n}" for n in range(MOST_ENTRIES + 1)).encode()
    found = read_sitemap(body, LARGEST)
    assert len(found.pages) == MOST_ENTRIES
    assert found.problem is not None


@given(st.binary())
def test_no_bytes_break_the_reader(body: bytes) -> None:
    try:
        read_sitemap(body, LARGEST)
    except (BadAnswer, TooLarge):
        return
    except Exception as error:
        assert type(error).__name__ == "Unavailable"  # noqa: PT017 (a gzip file that is cut off)


@pytest.mark.parametrize(
    ("text", "earliest", "latest"),
    [
        ("2024", (2024, 1, 1, 0, 0), (2024, 12, 31, 23, 59)),
        ("2024-02", (2024, 2, 1, 0, 0), (2024, 2, 29, 23, 59)),
        ("2024-02-29", (2024, 2, 29, 0, 0), (2024, 2, 29, 23, 59)),
        ("2024-02-29T10:30+02:00", (2024, 2, 29, 8, 30), (2024, 2, 29, 8, 30)),
        ("2024-02-29T10:30:00Z", (2024, 2, 29, 10, 30), (2024, 2, 29, 10, 30)),
        (" 2024-02-29T10:30 ", (2024, 2, 29, 10, 30), (2024, 2, 29, 10, 30)),
    ],
)
def test_an_age_is_as_exact_as_it_was_written(text: str, earliest: tuple[int, ...], latest: tuple[int, ...]) -> None:
    assert read_modified(text) == Modified(datetime(*earliest, tzinfo=UTC), datetime(*latest, tzinfo=UTC))  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2023-02-29", "2024-13", "0000", "24-01-01", "0001-01-01T00:00+14:00"]
)
def test_an_age_that_is_none_is_unknown(text: str) -> None:
    assert read_modified(text) is None


def test_a_window_lets_through_what_may_lie_within() -> None:
    window = DateWindow(datetime(2024, 2, 1, tzinfo=UTC), datetime(2024, 3, 1, tzinfo=UTC))
    assert window.has(None)
    assert window.has(read_modified("2024-02-29"))
    assert window.has(read_modified("2024"))
    assert not window.has(read_modified("2024-01-31"))
    assert not window.has(read_modified("2024-03-01"))
    assert window.reaches(read_modified("2024-06-01"))  # a file that changed in June may list pages of February
    assert not window.reaches(read_modified("2024-01-31"))
