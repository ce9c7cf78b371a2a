"""Reads what lists other pages: sitemaps (XML or text, compressed or not), feeds (RSS, Atom), and HTML pages with
links. Pure.

Nothing in such a file can load another file, expand an entity, or grow beyond its bounds.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit
from xml.etree.ElementTree import Element, ParseError

from postroom.web.fetching.decompression import gunzip
from postroom.web.fetching.interface import BadAnswer

MOST_ENTRIES = 50_000
"""The sitemap protocol's own limit."""

_GZIP = b"\x1f\x8b"
_PARTIAL_DATE = re.compile(r"(\d{4})(?:-(\d{2}))?(?:-(\d{2}))?")


@dataclass(frozen=True, slots=True)
class DateWindow:
    """A span of time, its end excluded; an open side lets everything through."""

    first: datetime | None = None
    end: datetime | None = None

    def has(self, modified: Modified | None) -> bool:
        """Whether something of this age may lie within; an unknown age may."""
        return modified is None or (self.reaches(modified) and (self.end is None or modified.earliest < self.end))

    def reaches(self, modified: Modified | None) -> bool:
        """Whether a list that last changed then can contain anything that lies within."""
        return modified is None or self.first is None or modified.latest >= self.first


@dataclass(frozen=True, slots=True)
class Modified:
    """A `lastmod` as exact as it was written: a day or a month is a span."""

    earliest: datetime
    latest: datetime

    def encoded(self) -> tuple[str, str]:
        return self.earliest.isoformat(), self.latest.isoformat()

    @classmethod
    def decode(cls, earliest: str, latest: str) -> Modified:
        """Raises ValueError or TypeError for anything that `encoded` cannot produce."""
        moments = datetime.fromisoformat(earliest), datetime.fromisoformat(latest)
        if any(moment.tzinfo is None for moment in moments):
            raise ValueError("a moment without a time zone")
        return cls(*moments)


@dataclass(frozen=True, slots=True)
class ListedUrl:
    url: str
    modified: Modified | None = None


@dataclass(frozen=True, slots=True)
class Sitemap:
    """Either further sitemaps or pages; `problem` where not all of it could be read."""

    children: tuple[ListedUrl, ...] = ()
    pages: tuple[ListedUrl, ...] = ()
    problem: str | None = None


def read_sitemap(body: bytes, largest: int) -> Sitemap:
    """Raises BadAnswer if it is no sitemap, TooLarge if it unpacks to more than `largest` bytes."""
    data = _unpacked(body, largest)
    return _of_root(_xml_root(data, "sitemap")) if _looks_like_xml(data) else _of_text(data)


def _unpacked(body: bytes, largest: int) -> bytes:
    return gunzip(body, largest) if body.startswith(_GZIP) else body


def _xml_root(data: bytes, what: str) -> Element:
    """Without a document type, entities and references to other files."""
    from defusedxml import DefusedXmlException  # of the web extra
    from defusedxml.ElementTree import fromstring

    try:
        root: Element = fromstring(data, forbid_dtd=True)
    except DefusedXmlException as error:
        raise BadAnswer(f"The {what} declares a document type or entities ({type(error).__name__}).") from None
    except (ParseError, ValueError, LookupError) as error:
        raise BadAnswer(f"The {what} is not valid XML: {error}") from None
    return root


def read_modified(text: str) -> Modified | None:
    """A date of the W3C's profile, a year alone included; None for anything else."""
    text = text.strip()
    if match := _PARTIAL_DATE.fullmatch(text):
        return _span(int(match[1]), match[2], match[3])
    try:
        moment = datetime.fromisoformat(text)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return Modified(moment, moment)


def _of_root(root: Element) -> Sitemap:
    kind = _local(root)
    if kind not in ("sitemapindex", "urlset"):
        raise BadAnswer(f"The document is no sitemap: it begins with <{kind[:40]}>.")
    entries = tuple(_entries(root, "sitemap" if kind == "sitemapindex" else "url"))
    kept, problem = _bounded(entries)
    return Sitemap(children=kept, problem=problem) if kind == "sitemapindex" else Sitemap(pages=kept, problem=problem)


def _entries(root: Element, wanted: str) -> Iterator[ListedUrl]:
    for element in root:
        if _local(element) != wanted:
            continue
        values = {_local(child): (child.text or "").strip() for child in element if _is_of_protocol(child, root)}
        if address := values.get("loc"):
            yield ListedUrl(address, read_modified(values.get("lastmod", "")))


def _of_text(data: bytes) -> Sitemap:
    """One address a line. Raises BadAnswer for text without any."""
    lines = (line.strip() for line in data.decode("utf-8-sig", "replace").splitlines())
    entries = [ListedUrl(line) for line in lines if line.startswith(("http://", "https://"))]
    if not entries and data.strip():
        raise BadAnswer("The document is no sitemap: neither XML nor a list of addresses.")
    kept, problem = _bounded(entries)
    return Sitemap(pages=kept, problem=problem)


def _bounded(entries: Sequence[ListedUrl]) -> tuple[tuple[ListedUrl, ...], str | None]:
    problem = f"has more than {MOST_ENTRIES:,} entries; the rest was left out" if len(entries) > MOST_ENTRIES else None
    return tuple(entries[:MOST_ENTRIES]), problem


def _looks_like_xml(data: bytes) -> bool:
    start = data[:200].lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"<") or data.startswith((b"\xff\xfe", b"\xfe\xff"))


def _is_of_protocol(child: Element, root: Element) -> bool:
    """Extensions (images, videos) have a `loc` of their own, in another namespace."""
    return _namespace(child) == _namespace(root)


def _namespace(element: Element) -> str:
    return element.tag.rpartition("}")[0] if isinstance(element.tag, str) else ""


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _span(year: int, month: str | None, day: str | None) -> Modified | None:
    try:
        first = date(year, int(month or 1), int(day or 1))
        last_month = int(month or 12)
        last = date(year, last_month, int(day or calendar.monthrange(year, last_month)[1]))
    except ValueError:
        return None
    earliest = datetime(first.year, first.month, first.day, tzinfo=UTC)
    return Modified(earliest, datetime(last.year, last.month, last.day, tzinfo=UTC) + timedelta(hours=23, minutes=59))


_ATOM = "{http://www.w3.org/2005/Atom"
_OLDER_PAGES = ("next", "prev-archive")
"""The relations by which a feed leads to its older entries (RFC 5005)."""


@dataclass(frozen=True, slots=True)
class Feed:
    """`older_url` leads to entries that no longer fit on this page, if the site keeps such pages."""

    title: str
    entries: tuple[ListedUrl, ...]
    older_url: str | None = None
    problem: str | None = None


def read_feed(body: bytes, base_url: str, largest: int) -> Feed:
    """RSS 0.9 to 2.0 or Atom. Raises BadAnswer if it is neither, TooLarge if it unpacks to more than `largest`."""
    root = _xml_root(_unpacked(body, largest), "feed")
    kind = _local(root)
    if kind not in ("rss", "RDF", "feed"):
        raise BadAnswer(f"The document is no feed: it begins with <{kind[:40]}>.")
    channel = root if kind == "feed" else next((child for child in root if _local(child) == "channel"), root)
    items = channel if kind == "rss" else root
    wanted = "entry" if kind == "feed" else "item"
    read = _atom_entry if kind == "feed" else _rss_item
    found = (read(element, base_url) for element in items if _local(element) == wanted)
    entries, problem = _bounded([entry for entry in found if entry is not None])
    title = next(((child.text or "").strip() for child in channel if _local(child) == "title"), "")
    return Feed(title[:200], entries, _older(channel, base_url), problem)


def _rss_item(item: Element, base_url: str) -> ListedUrl | None:
    own = {_local(child): child for child in item if _namespace(child) == _namespace(item)}
    address = _text_of(own.get("link"))
    guid = own.get("guid")
    if not address and guid is not None and guid.get("isPermaLink", "true") != "false":
        address = _text_of(guid)
    dates = [_text_of(child) for child in item if _local(child) in ("pubDate", "date")]
    return _listed(base_url, address, next((_read_date(text) for text in dates if text), None))


def _atom_entry(entry: Element, base_url: str) -> ListedUrl | None:
    own = [child for child in entry if _namespace(child) == _namespace(entry)]
    links = [link for link in own if _local(link) == "link" and link.get("rel", "alternate") == "alternate"]
    links.sort(key=lambda link: link.get("type", "text/html") != "text/html")
    texts = {_local(child): _text_of(child) for child in own}
    modified = read_modified(texts.get("updated", "")) or read_modified(texts.get("published", ""))
    return _listed(base_url, links[0].get("href", "") if links else "", modified)


def _listed(base_url: str, address: str, modified: Modified | None) -> ListedUrl | None:
    url = _joined(base_url, address) if address else None
    return None if url is None else ListedUrl(url, modified)


def _older(channel: Element, base_url: str) -> str | None:
    links = [child for child in channel if _local(child) == "link" and _namespace(child) == _ATOM]
    for relation in _OLDER_PAGES:
        for link in links:
            if link.get("rel") == relation and (url := _joined(base_url, link.get("href", ""))):
                return url
    return None


def _text_of(element: Element | None) -> str:
    return "" if element is None else (element.text or "").strip()


def _read_date(text: str) -> Modified | None:
    """A date of a feed: as in mail, or of the W3C's profile."""
    try:
        moment = parsedate_to_datetime(text[:100])
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return read_modified(text)
    return Modified(moment, moment)


MOST_LINKS = 10_000
"""Of one page; no page for people has more."""

_NEXT_WORDS = frozenset(
    [
        *("next", "next page", "older", "older posts", "older entries", "\u203a", "»", ">", ">>", "→"),
        *("weiter", "nächste", "nächste seite", "suivant", "page suivante", "siguiente", "successivo", "avanti"),
        *("sljedeća", "sljedeća stranica", "sljedeće", "dalje", "starije", "następna", "další"),
    ]
)
_NEXT_CLASSES = frozenset({"next", "next-page", "nextpostslink", "pagination-next", "pager-next", "nav-next", "older"})


_FEED_TYPES = ("application/rss+xml", "application/atom+xml")


@dataclass(frozen=True, slots=True)
class LinkPage:
    """All links in the order of the page, without the one that leads to the next page; and what a reader of feeds would
    find here."""

    links: tuple[str, ...]
    next_url: str | None
    feeds: tuple[str, ...] = ()
    title: str = ""


def read_links(text: str, base_url: str) -> LinkPage:
    """Never raises: what is no HTML has no links."""
    root = _parsed(text)
    if root is None:
        return LinkPage((), None)
    base = _base(root, base_url)
    following: list[tuple[int, str]] = []
    links: dict[str, None] = {}
    feeds: dict[str, None] = {}
    for element in root.iter("a", "area", "link"):
        address = _address(element, base)
        if address is None:
            continue
        if _is_feed(element):
            feeds[address] = None
        elif (rank := _rank(element)) is not None:
            following.append((rank, address))
        elif element.tag != "link" and len(links) < MOST_LINKS:
            links[address] = None
    next_url = min(following, default=(0, None), key=lambda pair: pair[0])[1]
    title = " ".join(str(root.findtext(".//title") or "").split())[:200]
    return LinkPage(tuple(links), next_url, tuple(feeds)[:MOST_FEEDS], title)


def with_page(url: str, parameter: str, number: int) -> str:
    """The address of this page of a list that is paged by a parameter."""
    parts = urlsplit(url)
    pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != parameter]
    return urlunsplit(parts._replace(query=urlencode([*pairs, (parameter, str(number))]), fragment=""))


MOST_FEEDS = 20


def _is_feed(element: Any) -> bool:
    kind = str(element.get("type") or "").split(";")[0].strip().lower()
    return "alternate" in str(element.get("rel") or "").lower().split() and kind in _FEED_TYPES


def _parsed(text: str) -> Any:
    from lxml import etree  # type: ignore[import-untyped] # of the web extra

    parser = etree.HTMLParser(encoding="utf-8", no_network=True, recover=True, huge_tree=False)
    try:
        return etree.fromstring(text.encode("utf-8", "replace"), parser)
    except (etree.XMLSyntaxError, ValueError):
        return None


def _base(root: Any, base_url: str) -> str:
    declared = next((str(element.get("href")) for element in root.iter("base") if element.get("href")), "")
    return _joined(base_url, declared) or base_url


def _address(element: Any, base: str) -> str | None:
    href = element.get("href")
    return _joined(base, str(href)) if href else None


def _joined(base: str, href: str) -> str | None:
    """An absolute web address, or None for everything else that a link can hold."""
    try:
        address = urljoin(base, href.strip())
        is_web = urlsplit(address).scheme in ("http", "https")
    except ValueError:
        return None
    return address if is_web else None


def _rank(element: Any) -> int | None:
    """How likely a link leads to the next page, the most likely first; None for other links."""
    if "next" in str(element.get("rel") or "").lower().split():
        return 0
    if element.tag == "link":
        return None
    if _NEXT_CLASSES & set(str(element.get("class") or "").lower().split()):
        return 1
    label = str(element.get("aria-label") or "") or " ".join(str(element.xpath("string()")).split())
    return 2 if label.strip().lower() in _NEXT_WORDS else None
