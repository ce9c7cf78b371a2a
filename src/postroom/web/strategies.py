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
from postroom.web.listings import DateWindow, Modified, read_links, read_sitemap, with_page
from postroom.web.sources import Endpoint, EndpointMode, ItemFilter, WebSource
from postroom.web.urls import LONGEST_URL, canonicalize_url, host_of, pages_between, tidy, url_hash

_BARREN_PAGES = 3
"""So many pages of a list without anything new, one after the other, are its end: some lists have no other."""
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
    """What a page had: items, further pages of the walk, and what was wrong with it."""

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
        """Raises BadAnswer for anything that `encoded` does not make."""
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
    """The page that is read next, or is being read: then `url` is the last item that was taken from it."""

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
    """One endpoint's way."""

    def __init__(self, source: WebSource, endpoint: Endpoint) -> None:
        self.source = source
        self.endpoint = endpoint
        self._wanted = ItemFilter.of(source, endpoint)

    @abstractmethod
    def start(self) -> WalkPlace: ...

    @abstractmethod
    def read(self, place: WalkPlace, page: Fetched) -> ListReading: ...

    def described(self) -> dict[str, Any]:
        """As JSON, all that `read` needs to know."""
        source = self.source.model_copy(update={"endpoint": [self.endpoint]})
        return {"source": source.model_dump(mode="json")}

    def trusted(self, reading: ListReading) -> ListReading:
        """The same, once it is known to lead nowhere else than its source may: it comes from a process that met
        foreign bytes."""
        urls = [*(item.url for item in reading.found), *(item.fetch_url for item in reading.found), *reading.following]
        if any(len(url) > 4 * LONGEST_URL for url in urls):
            raise BadAnswer("What was read of the list is no address.")
        if not all(self.source.has_host(_host(site)) for site in {_site(url) for url in urls}):
            raise BadAnswer("What was read of the list lies outside of the source's domains.")
        return reading

    @abstractmethod
    def hangs_on(self, place: WalkPlace) -> bool:
        """Whether the page of this place is the only way to the rest."""

    @abstractmethod
    def may_end_at(self, place: WalkPlace) -> bool:
        """Whether it is no fault if there is no such page."""

    def page_url(self, place: WalkPlace) -> str | None:
        """What to read now; None at the end of the way."""
        return place.pending[0] if place.pending else None

    def onward(self, place: WalkPlace, reading: ListReading, fresh: int) -> WalkPlace:
        """After the page of this place, which had so many items that the walk had not seen before."""
        visited = (*place.visited, _short(place.pending[0]))
        rest = place.pending[1:]
        known = {*visited, *map(_short, rest)}
        following = tuple(url for url in _distinct(reading.following) if _short(url) not in known)
        barren = 0 if fresh else place.barren + 1
        return replace(place, page=place.page + 1, url=None, pending=following + rest, visited=visited, barren=barren)

    def _items(self, addresses: Iterable[tuple[str, Modified | None]]) -> tuple[tuple[FoundPage, ...], tuple[str, ...]]:
        """The wanted ones, each once, and what is wrong with others."""
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


class SitemapStrategy(WalkStrategy):
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

    def _own(self, urls: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Those that may be followed, and what is wrong with the others."""
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
        """The plan knows the pages: none can lead elsewhere, and a page without anything is a day without anything."""
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
        case _:
            assert_never(endpoint.mode)


def described_strategy(fields: dict[str, Any]) -> WalkStrategy:
    """The route that was described, for reading only: it does not know where an archive begins and ends."""
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
    """Of an address that may be anything; no source has the empty host."""
    try:
        return host_of(canonicalize_url(url))
    except BadInput:
        return ""


def _site(url: str) -> str:
    """An address without its path, which may be long: cheap for thousands of addresses."""
    try:
        parts = urlsplit(_QUERY.split(url, 1)[0].replace("\\", "/"))
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}/"


def _short(url: str) -> str:
    return url_hash(canonicalize_url(url))[:_SHORT_HASH]


def _distinct(urls: Iterable[str]) -> list[str]:
    return list({_short(url): url for url in reversed(list(urls))}.values())[::-1]
