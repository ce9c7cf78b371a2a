"""Feeds: RSS and Atom as sites write them, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from postroom.web.fetching.interface import BadAnswer
from postroom.web.listings import Feed, read_feed

pytestmark = pytest.mark.req("WB-9", "WB-13")

BASE = "https://gazette.example/feeds/all.xml"


def read(body: str | bytes) -> Feed:
    return read_feed(body.encode() if isinstance(body, str) else body, BASE, 1_000_000)


def test_rss_2_with_dates_of_mail_and_permanent_ids() -> None:
    feed = read(
        """<?xml version="1.0"?><rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
        <title>The Gazette</title><link>https://gazette.example/</link><atom:link rel="self" href="/feeds/all.xml"/>
        <item><link> https://gazette.example/1 </link><pubDate>Tue, 03 Mar 2026 10:00:00 +0100</pubDate></item>
        <item><guid>https://gazette.example/2</guid></item>
        <item><guid isPermaLink="false">https://gazette.example/not-a-page</guid></item>
        <item><link>/relative</link><pubDate>some day</pubDate></item>
        </channel></rss>"""
    )
    assert (feed.title, feed.older_url) == ("The Gazette", None)
    assert [entry.url.rpartition("/")[2] for entry in feed.entries] == ["1", "2", "relative"]
    modified = feed.entries[0].modified
    assert modified is not None
    assert modified.latest == datetime(2026, 3, 3, 9, tzinfo=UTC)
    assert feed.entries[2].modified is None


def test_rss_1_has_its_items_beside_the_channel() -> None:
    feed = read(
        """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/"
        xmlns:dc="http://purl.org/dc/elements/1.1/"><channel><title>Old</title></channel>
        <item><link>https://gazette.example/1</link><dc:date>2026-03-03</dc:date></item></rdf:RDF>"""
    )
    assert [entry.url for entry in feed.entries] == ["https://gazette.example/1"]
    assert feed.entries[0].modified is not None


def test_atom_takes_the_page_and_not_its_comments_and_knows_older_pages() -> None:
    feed = read(
        """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><link rel="next" href="?page=2"/>
        <entry><link rel="replies" href="/comments"/><link rel="alternate" type="application/pdf" href="/1.pdf"/>
        <link href="/1"/><published>2020-01-01T00:00:00Z</published><updated>2026-03-03T10:00:00Z</updated></entry>
        <entry><title>without a link</title></entry></feed>"""
    )
    assert [entry.url for entry in feed.entries] == ["https://gazette.example/1"]
    assert feed.entries[0].modified is not None
    assert feed.entries[0].modified.latest == datetime(2026, 3, 3, 10, tzinfo=UTC)
    assert feed.older_url == "https://gazette.example/feeds/all.xml?page=2"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<html><body>hello</body></html>", "no feed"),
        ("<urlset/>", "no feed"),
        ("", "not valid XML"),
        ("<rss><channel>", "not valid XML"),
        ('<!DOCTYPE r [<!ENTITY a "b">]><rss><channel>&a;</channel></rss>', "document type or entities"),
        ('<!DOCTYPE r SYSTEM "file:///etc/passwd"><rss/>', "document type or entities"),
    ],
)
def test_what_is_no_feed_or_wants_more_is_refused(body: str, problem: str) -> None:
    with pytest.raises(BadAnswer, match=problem):
        read(body)


def test_links_that_are_no_web_addresses_are_left_out() -> None:
    items = "".join(f"<item><link>{link}</link></item>" for link in ("javascript:x", "mailto:a@b", "http://[", ""))
    assert read(f"<rss><channel>{items}</channel></rss>").entries == ()
