"""How a walk goes from page to page, one strategy for each mode: what to read, what is found, where to go on. Pure.

`WalkStrategy.read` handles bytes from outside, so it runs in the limited child; `described` takes a strategy there.
A `WalkPlace` is all that a walk has to remember; it is stored with every batch.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any, assert_never
from urllib.parse import urlsplit

from postroom.domain.errors import BadInput
from postroom.web.fetching.interface import BadAnswer, Fetched
from postroom.web.fetching.urls import LONGEST_URL, canonicalize_url, host_of, pages_between, tidy, url_hash
from postroom.web.listings import DateWindow, Modified, read_feed, read_links, read_sitemap, with_page
from postroom.web.sources import Endpoint, EndpointMode, ItemFilter, WebSource

_BARREN_PAGES = 3
"""A list ends after this many pages in a row without anything new: some lists have no other end."""
_SHORT_HASH = 12
_QUERY = re.compile("[?#]")


@dataclass(frozen=True, slots=True)
class FoundPage:
    """An item: its canonical address, the address as the site writes it, and the age that the site claims."""

    url: str
    fetch_url: str
    modified: Modified | None = None


@dataclass(frozen=True, slots=True)
class ListReading:
    """What a page contains: items, further pages of the walk, and problems."""

    found: tuple[FoundPage, ...] = ()
    following: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        found = [
            (item.url, item.fetch_url, *(item.modified.encoded() if item.modified else (None, None)))
            for item in self.found
        ]
        return json.dumps({"found": found, "following": self.following, "problems": self.problems}).encode()

    @classmethod
    def decode(cls, data: bytes) -> ListReading:
        """Raises BadAnswer for anything that `encoded` cannot produce."""
        try:
            fields = json.loads(data)
            found = tuple(
                FoundPage(str(url), str(fetch_url), None if earliest is None else Modified.decode(earliest, latest))
                for url, fetch_url, earliest, latest in fields["found"]
            )
            return cls(found, tuple(map(str, fields["following"])), tuple(map(str, fields["problems"])))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise BadAnswer("What was read of the list makes no sense.") from error


@dataclass(frozen=True, slots=True)
class WalkPlace:
    """The page to read next, or the page being read: then `url` is the last item taken from it."""

    page: int = 1
    url: str | None = None
    pending: tuple[str, ...] = ()
    visited: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    """Failed pages; a resumed walk begins with them."""
    barren: int = 0

    def resumed(self) -> WalkPlace:
        return replace(self, pending=self.again + self.pending, again=(), barren=0)


class WalkStrategy(ABC):
    """How one endpoint is walked."""

    def __init__(self, source: WebSource, endpoint: Endpoint) -> None:
        self.source = source
        self.endpoint = endpoint
        self._wanted = ItemFilter.of(source, endpoint)

    @abstractmethod
    def start(self) -> WalkPlace: ...

    @abstractmethod
    def read(self, place: WalkPlace, page: Fetched) -> ListReading: ...

    def given(self) -> ListReading | None:
        """What is known without asking the site; None if its lists have to be read."""
        return None

    def described(self) -> dict[str, Any]:
        """All that `read` needs, as JSON."""
        source = self.source.model_copy(update={"endpoint": [self.endpoint]})
        return {"source": source.model_dump(mode="json")}

    def trusted(self, reading: ListReading) -> ListReading:
        """Check that a reading leads only to hosts of the source, and return it: it comes from a process that has read
        foreign bytes."""
        urls = [*(item.url for item in reading.found), *(item.fetch_url for item in reading.found), *reading.following]
        if any(len(url) > 4 * LONGEST_URL for url in urls):
            raise BadAnswer("What was read of the list is no address.")
        if not all(self.source.has_host(_host(site)) for site in {_site(url) for url in urls}):
            raise BadAnswer("What was read of the list lies outside of the source's domains.")
        return reading

    @abstractmethod
    def hangs_on(self, place: WalkPlace) -> bool:
        """Whether the rest of the walk can only be reached through this page."""

    @abstractmethod
    def may_end_at(self, place: WalkPlace) -> bool:
        """Whether a missing page here is the end of the list and no error."""

    def page_url(self, place: WalkPlace) -> str | None:
        """The page to read now; None at the end."""
        return place.pending[0] if place.pending else None

    def onward(self, place: WalkPlace, reading: ListReading, fresh: int) -> WalkPlace:
        """The place after this page, on which `fresh` items were new to the walk."""
        visited = (*place.visited, _short(place.pending[0]))
        rest = place.pending[1:]
        known = {*visited, *map(_short, rest)}
        following = tuple(url for url in _distinct(reading.following) if _short(url) not in known)
        barren = 0 if fresh else place.barren + 1
        return replace(place, page=place.page + 1, url=None, pending=following + rest, visited=visited, barren=barren)

    def _items(self, addresses: Iterable[tuple[str, Modified | None]]) -> tuple[tuple[FoundPage, ...], tuple[str, ...]]:
        """The wanted items, each once, and the problems of others."""
        found: dict[str, FoundPage] = {}
        problems = []
        for address, modified in addresses:
            try:
                canonical = canonicalize_url(address)
            except BadInput as error:
                problems.append(error.message)
                continue
            if canonical not in found and self._wanted.wants(canonical):
                found[canonical] = FoundPage(canonical, tidy(address), modified)
        return tuple(found.values()), tuple(problems)

    def _own(self, urls: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The pages that may be followed, and the problems of others."""
        own, strange = [], []
        for url in urls:
            try:
                canonical = canonicalize_url(url)
            except BadInput as error:
                strange.append(error.message)
                continue
            if self.source.has_host(host_of(canonical)):
                own.append(tidy(url))
            else:
                strange.append(f"{url[:200]!r} lies outside of the source's domains")
        return tuple(own), tuple(strange)


class DatedStrategy(WalkStrategy):
    """Walks lists that say how old each page is, beginning at the endpoint's own address."""

    def __init__(self, source: WebSource, endpoint: Endpoint, window: DateWindow, largest: int) -> None:
        super().__init__(source, endpoint)
        self._window = window
        self._largest = largest

    def described(self) -> dict[str, Any]:
        window = [None if end is None else end.isoformat() for end in (self._window.first, self._window.end)]
        return {**super().described(), "window": window, "largest": self._largest}

    def start(self) -> WalkPlace:
        return WalkPlace(pending=(self.endpoint.url,))

    def hangs_on(self, place: WalkPlace) -> bool:
        return place.page == 1


class SitemapStrategy(DatedStrategy):
    def may_end_at(self, place: WalkPlace) -> bool:
        return False

    def read(self, place: WalkPlace, page: Fetched) -> ListReading:
        sitemap = read_sitemap(page.body, self._largest)
        pages = ((entry.url, entry.modified) for entry in sitemap.pages if self._window.has(entry.modified))
        found, problems = self._items(pages)
        children = [entry.url for entry in sitemap.children if self._window.reaches(entry.modified)]
        own, strange = self._own(children)
        noted = (f"{page.url} {sitemap.problem}",) if sitemap.problem else ()
        return ListReading(found, own, (*problems, *strange, *noted))


class FeedStrategy(DatedStrategy):
    """The entries of a feed, and of its older pages where the site keeps them."""

    def may_end_at(self, place: WalkPlace) -> bool:
        return place.page > 1

    def page_url(self, place: WalkPlace) -> str | None:
        return None if place.barren >= _BARREN_PAGES else super().page_url(place)

    def read(self, place: WalkPlace, page: Fetched) -> ListReading:
        feed = read_feed(page.body, page.final_url, self._largest)
        entries = ((entry.url, entry.modified) for entry in feed.entries if self._window.has(entry.modified))
        found, problems = self._items(entries)
        own, strange = self._own([feed.older_url] if feed.older_url else [])
        noted = (f"{page.url} {feed.problem}",) if feed.problem else ()
        return ListReading(found, own, (*problems, *strange, *noted))


class PageStrategy(WalkStrategy):
    """A source that is one page: there is no list to read."""

    def start(self) -> WalkPlace:
        return WalkPlace(pending=(self.endpoint.url,))

    def given(self) -> ListReading:
        return ListReading((FoundPage(canonicalize_url(self.endpoint.url), tidy(self.endpoint.url)),))

    def read(self, place: WalkPlace, page: Fetched) -> ListReading:
        return self.given()

    def hangs_on(self, place: WalkPlace) -> bool:
        return True

    def may_end_at(self, place: WalkPlace) -> bool:
        return False


class ArchiveStrategy(WalkStrategy):
    def __init__(self, source: WebSource, endpoint: Endpoint, first: date, last: date) -> None:
        super().__init__(source, endpoint)
        self._pages: Sequence[str] = list(dict.fromkeys(pages_between(endpoint.url, first, last)))

    def start(self) -> WalkPlace:
        return WalkPlace()

    def hangs_on(self, place: WalkPlace) -> bool:
        return False

    def may_end_at(self, place: WalkPlace) -> bool:
        return True  # a day without an issue

    def page_url(self, place: WalkPlace) -> str | None:
        if place.pending:
            return place.pending[0]
        return self._pages[place.page - 1] if place.page <= len(self._pages) else None

    def read(self, place: WalkPlace, page: Fetched) -> ListReading:
        links = read_links(page.text, page.final_url).links
        return ListReading(self._items((url, None) for url in links)[0])

    def onward(self, place: WalkPlace, reading: ListReading, fresh: int) -> WalkPlace:
        """The pages follow from the dates, so none leads to others; an empty page is a day without items."""
        if place.pending:
            return replace(place, url=None, pending=place.pending[1:])
        return replace(place, page=place.page + 1, url=None)


class PaginationStrategy(WalkStrategy):
    def start(self) -> WalkPlace:
        parameter, first = self.endpoint.page_parameter, self.endpoint.first_page
        return WalkPlace(
            pending=(self.endpoint.url if parameter is None else with_page(self.endpoint.url, parameter, first),)
        )

    def hangs_on(self, place: WalkPlace) -> bool:
        return True

    def may_end_at(self, place: WalkPlace) -> bool:
        return place.page > 1

    def page_url(self, place: WalkPlace) -> str | None:
        return None if place.barren >= _BARREN_PAGES else super().page_url(place)

    def read(self, place: WalkPlace, page: Fetched) -> ListReading:
        links = read_links(page.text, page.final_url)
        found, _ = self._items((url, None) for url in links.links)
        following = self._next(place, links.next_url)
        return ListReading(found, () if following is None else (following,))

    def _next(self, place: WalkPlace, next_url: str | None) -> str | None:
        if (parameter := self.endpoint.page_parameter) is not None:
            return with_page(self.endpoint.url, parameter, self.endpoint.first_page + place.page)
        return tidy(next_url) if next_url is not None and self.source.has_host(_host(next_url)) else None


def strategy_of(source: WebSource, endpoint: Endpoint, window: DateWindow, today: date, largest: int) -> WalkStrategy:
    match endpoint.mode:
        case EndpointMode.SITEMAP:
            return SitemapStrategy(source, endpoint, window, largest)
        case EndpointMode.ARCHIVE:
            first, last = _days(endpoint, window, today)
            return ArchiveStrategy(source, endpoint, first, last)
        case EndpointMode.PAGINATION:
            return PaginationStrategy(source, endpoint)
        case EndpointMode.FEED:
            return FeedStrategy(source, endpoint, window, largest)
        case EndpointMode.PAGE:
            return PageStrategy(source, endpoint)
        case _:
            assert_never(endpoint.mode)


def described_strategy(fields: dict[str, Any]) -> WalkStrategy:
    """The strategy that `described` describes, for `read` only: it does not know where an archive begins and ends."""
    source = WebSource(**fields["source"])
    [endpoint] = source.endpoint
    if endpoint.mode is EndpointMode.ARCHIVE:
        return ArchiveStrategy(source, endpoint, date.max, date.min)
    ends = [None if end is None else datetime.fromisoformat(end) for end in fields.get("window", (None, None))]
    return strategy_of(source, endpoint, DateWindow(*ends), date.min, fields.get("largest", 0))


def _days(endpoint: Endpoint, window: DateWindow, today: date) -> tuple[date, date]:
    begins = endpoint.first_day or today
    first = begins if window.first is None else max(begins, window.first.astimezone(UTC).date())
    if window.end is None:
        return first, today
    return first, min(today, (window.end.astimezone(UTC) - timedelta(microseconds=1)).date())


def _host(url: str) -> str:
    """The host of any text; empty, which no source has, if it is no address."""
    try:
        return host_of(canonicalize_url(url))
    except BadInput:
        return ""


def _site(url: str) -> str:
    """An address without its path, so that thousands of addresses are cheap to check."""
    try:
        parts = urlsplit(_QUERY.split(url, 1)[0].replace("\\", "/"))
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}/"


def _short(url: str) -> str:
    return url_hash(canonicalize_url(url))[:_SHORT_HASH]


def _distinct(urls: Iterable[str]) -> list[str]:
    return list({_short(url): url for url in reversed(list(urls))}.values())[::-1]
