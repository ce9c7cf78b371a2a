"""The links of a page, and which of them turns it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.web.listings import MOST_LINKS, read_links, with_page

pytestmark = pytest.mark.req("WB-9")

BASE = "https://e.com/list/?p=1"


def next_of(html: str) -> str | None:
    return read_links(html, BASE).next_url


def test_links_are_absolute_in_order_and_once_each() -> None:
    html = '<a href="/a">A</a><a href="b">B</a><a href="https://o.org/c">C</a><a href="/a">again</a><area href="?p=9">'
    assert read_links(html, BASE).links == (
        "https://e.com/a",
        "https://e.com/list/b",
        "https://o.org/c",
        "https://e.com/list/?p=9",
    )


def test_what_is_no_web_address_is_no_link() -> None:
    html = '<a href="mailto:x@y">1</a><a href="javascript:x()">2</a><a>3</a><a href="">4</a><a href="http://[::1">5</a>'
    assert read_links(html, BASE).links == ()


def test_a_declared_base_is_honoured() -> None:
    assert read_links('<base href="/other/"><a href="x">x</a>', BASE).links == ("https://e.com/other/x",)


@pytest.mark.parametrize(
    "html",
    [
        '<link rel="next" href="/n">',
        '<a rel="nofollow NEXT" href="/n">2</a>',
        '<a class="btn next" href="/n">2</a>',
        '<a href="/n"> Next </a>',
        '<a href="/n"><span>Older</span> posts</a>',
        '<a href="/n">Sljedeća</a>',
        '<a href="/n">»</a>',
        '<a aria-label="Next page" href="/n"><svg/></a>',
        '<a href="/x" class="next">maybe</a><link rel=next href="/n">',
    ],
)
def test_the_next_page_is_found_as_sites_write_it(html: str) -> None:
    assert next_of(html) == "https://e.com/n"
    assert "https://e.com/n" not in read_links(html, BASE).links


def test_a_page_without_a_next_one_is_the_last() -> None:
    assert next_of('<a href="/a">The next big thing</a><a rel="prev" href="/p">Previous</a>') is None


def test_a_page_parameter_is_set_and_the_others_stay() -> None:
    assert with_page("https://e.com/l?sort=new&page=1#x", "page", 3) == "https://e.com/l?sort=new&page=3"
    assert with_page("https://e.com/l", "p", 0) == "https://e.com/l?p=0"


def test_a_line_of_ten_megabytes_and_a_tower_of_elements_are_survived_in_time() -> None:
    began = time.perf_counter()
    read_links("<p>" + "x" * 10_000_000, BASE)
    read_links("<div>" * 200_000, BASE)
    assert len(read_links("".join(f'<a href="/{n}">x</a>' for n in range(30_000)), BASE).links) == MOST_LINKS
    assert time.perf_counter() - began < 30


@given(st.text(max_size=400))
def test_no_text_breaks_the_reader(text: str) -> None:
    read_links(text, BASE)
    read_links(f"<a href='{text}'>x</a><base href='{text}'>", BASE)
