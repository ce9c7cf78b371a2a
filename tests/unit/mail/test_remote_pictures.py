"""Which remote pictures of a message are fetched, and what counts as a picture."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroom.dashboard.display.foreign_content import safe_html
from postroom.mail.html import (
    MOST_PICTURES,
    data_address,
    picture_address,
    raster_of,
    remote_pictures,
    without_tracking,
)
from tests.support.pictures import gif, jpeg, png, webp

pytestmark = pytest.mark.req("UX-1")


def test_pictures_to_see_are_fetched_without_what_tracks_and_pixels_are_left_out() -> None:
    found = remote_pictures(
        '<img src="https://a.example/1.png?id=7&amp;utm_source=x&mc_eid=9"><img src=//a.example/2.png>'
        '<img src="https://a.example/1.png?id=7"><!-- <img src="https://a.example/comment.png"> -->'
        '<noscript><img src="https://a.example/noscript.png"></noscript><img src="cid:part1"><img alt="none">'
        '<img src="https://t.example/a.gif" width=1 height="1">'
        '<img src="https://t.example/b.gif" style="height:1px;WIDTH: 1px">'
        '<img src="https://t.example/c.gif" style="display: none"><img src="https://t.example/d.gif" height="0">'
        '<img src="https://a.example/wide.gif" width="600" height="1">'
    )
    wanted = ("https://a.example/1.png?id=7", "https://a.example/2.png", "https://a.example/wide.gif")
    assert (found.addresses, found.left_out) == (wanted, 4)


@pytest.mark.parametrize(
    "source",
    [
        *("javascript:alert(1)", "file:///etc/passwd", "ftp://a.example/x", "https://", "/relative.png", "x.png"),
        *(
            "https://user@a.example/x",
            "https://a.example\\@b.example/x",
            'https://a.example/"x',
            "https://a.example/\u202e",
        ),
        *(
            "https://a.example/" + "x" * 3_000,
            "https://[::1/x",
            "data:image/png;base64,AA",
            "https://a.example/\r\nHost: b",
        ),
    ],
)
def test_an_address_that_is_no_plain_one_of_the_web_is_not_fetched(source: str) -> None:
    assert picture_address({"src": source}) is None


def test_no_more_pictures_than_a_message_needs_are_fetched() -> None:
    found = remote_pictures("".join(f'<img src="https://a.example/{number}">' for number in range(100)))
    assert (len(found.addresses), found.left_out) == (MOST_PICTURES, 100 - MOST_PICTURES)


def test_only_what_is_known_to_track_is_taken_from_a_query() -> None:
    assert without_tracking("b=2&utm_medium=mail&a=%20x&&fbclid=1&UTM_TERM=2") == "b=2&a=%20x&"
    assert without_tracking("") == ""


@pytest.mark.parametrize(("make", "kind"), [(png, "png"), (gif, "gif"), (jpeg, "jpeg"), (webp, "webp")])
def test_a_picture_is_known_by_its_bytes(make: type, kind: str) -> None:
    found = raster_of(make(300, 20))
    assert found is not None
    assert (found.media_type, found.width, found.height, found.is_pixel) == (f"image/{kind}", 300, 20, False)
    pixel = raster_of(make(1, 1))
    assert pixel is not None
    assert pixel.is_pixel
    assert all(raster_of(make(300, 20)[:cut]) is None for cut in range(10))


@pytest.mark.parametrize(
    "data",
    [
        *(
            b"",
            b"<svg xmlns='http://www.w3.org/2000/svg'/>",
            b"<html>",
            b"%PDF-1.7",
            b"\x89PNG\r\n\x1a\n",
            b"RIFF",
            b"BM",
        ),
        *(png(60_000, 60_000), gif(0, 10), jpeg()[:12]),
    ],
)
def test_everything_else_is_no_picture(data: bytes) -> None:
    assert raster_of(data) is None


@given(st.sampled_from([b"", png()[:20], gif()[:6], jpeg()[:4], webp()[:16]]), st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(beginning: bytes, rest: bytes) -> None:
    found = raster_of(beginning + rest)
    assert found is None or (found.width > 0 and found.height > 0)


def test_a_fetched_picture_stands_in_the_message_and_nothing_else_gets_its_place() -> None:
    shown = {"https://a.example/1.png": data_address("image/png", png())}
    markup = (
        '<p><img src="https://a.example/1.png?utm_id=3" alt=\'a "sign"\' width=20 onerror="x()">'
        '<a href="https://picture.invalid/0">bait</a><img src="https://picture.invalid/0">'
        '<a href="data:text/html,x">data</a><img src="data:image/png;base64,AA"></p>'
    )
    safe = safe_html(markup, pictures=shown)
    assert safe.html.count("data:") == 1
    assert f'<img src="{shown["https://a.example/1.png"]}" alt="a &quot;sign&quot;" width="20">' in safe.html
    assert "onerror" not in safe.html
    assert (safe.remote_images, safe.attached_images) == (1, 1)
    assert "<img" not in safe_html(markup).html


def test_a_picture_that_is_repeated_without_end_fills_no_memory() -> None:
    large = {"https://a.example/1.png": "data:image/png;base64," + "A" * (1 << 20)}
    safe = safe_html('<img src="https://a.example/1.png">' * 5_000, pictures=large)
    assert len(safe.html) < 26 << 20
    assert safe.remote_images == 5_000 - 23
