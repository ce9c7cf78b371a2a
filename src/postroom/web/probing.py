"""Finds out what an address is, so that it can be followed without a line of configuration: a feed, a sitemap, an
archive by date, a list or a single page.

A few requests at most, each as polite and as safe as any other. What the site sends is read by the limited child.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import islice
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from postroom.domain.errors import BadInput, PostroomError
from postroom.web.extraction.web_reader import ListKind, ListSummary, WebReader
from postroom.web.fetching.interface import Fetching, Purpose
from postroom.web.fetching.urls import canonicalize_url, host_of, placeholders_in
from postroom.web.sources import CheckCadence, EndpointMode, ItemFilter, NoticeWay, WebSource, source_of

PATIENCE = timedelta(seconds=20)
"""How long a person waits for the turn of a domain."""
_MOST_FEEDS_TRIED = 3
MOST_SHOWN = 10
"""Pages that a preview names."""
_DATED = re.compile(
    r"/(?P<yyyy>(?:19|20)\d\d)(?:[/-](?P<mm>0[1-9]|1[0-2])(?:[/-](?P<dd>0[1-9]|[12]\d|3[01]))?)?(?=/|$)"
)
_NOT_IN_SLUG = re.compile(r"[^a-z0-9.-]+")


@dataclass(frozen=True, slots=True)
class NewSource:
    """What a person says about a source to add; only the address is needed."""

    url: str
    mode: EndpointMode | None = None
    slug: str | None = None
    name: str | None = None
    domains: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    notify: list[NoticeWay] | None = None
    allow_private: bool = False
    watched: bool = True
    """Whether it is checked by itself."""
    every: CheckCadence = CheckCadence.DAILY


@dataclass(frozen=True, slots=True)
class FoundSource:
    """A source that can be followed, and how it was recognised, in words for a person."""

    source: WebSource
    findings: list[str]
    pages: tuple[str, ...] = ()
    """The first pages that following it would bring; empty where only a walk can say."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a site lists its pages."""

    mode: EndpointMode
    url: str
    title: str = ""
    pages: tuple[str, ...] = ()
    """The first of those that it lists."""
    first_day: date | None = None
    is_index: bool = False
    """What it lists are further lists."""


def without_placeholders(url: str) -> str:
    return url.replace("{", "").replace("}", "")


def hosts_of(wanted: NewSource) -> list[str]:
    """The domains of a source that is not known yet: what was asked for, and the host of its address."""
    host = host_of(canonicalize_url(without_placeholders(wanted.url)))
    return list(dict.fromkeys([host.removeprefix("www."), *wanted.domains]))


@dataclass
class Prober:
    """Probes one address; `findings` says what was found on the way."""

    fetching: Fetching
    wanted: NewSource
    today: date
    reader: WebReader = field(default_factory=WebReader)
    findings: list[str] = field(default_factory=list)

    async def probe(self) -> FoundSource:
        """Raises BadInput for an address that cannot be followed, and what fetching it raises."""
        place = await self._place()
        source = _source(self.wanted, place)
        self._say_what_lies_outside(source, place)
        return FoundSource(source, self.findings, _first_pages(source, place))

    async def _place(self) -> _Place:
        wanted = self.wanted
        if placeholders_in(wanted.url):
            self.findings.append("The address has a date in it, so it is an archive, followed from today on.")
            return _Place(EndpointMode.ARCHIVE, wanted.url, first_day=self.today)
        found = await self._summary(wanted.url)
        if wanted.mode is not None:
            return self._as_asked(wanted.mode, found)
        match found.kind:
            case ListKind.FEED:
                return self._feed(wanted.url, found)
            case ListKind.SITEMAP:
                return self._sitemap(wanted.url, found)
            case ListKind.PAGE:
                return await self._of_page(found)
            case ListKind.OTHER:
                self.findings.append("It is a document without links; it is followed as a single page.")
                return _Place(EndpointMode.PAGE, wanted.url)

    def _as_asked(self, mode: EndpointMode, found: ListSummary) -> _Place:
        kinds = {EndpointMode.FEED: ListKind.FEED, EndpointMode.SITEMAP: ListKind.SITEMAP}
        if (kind := kinds.get(mode)) is not None and found.kind is not kind:
            raise BadInput("as", f"{self.wanted.url} is no {mode.lower()}: {found.problem or 'it is a web page'}")
        if mode is EndpointMode.ARCHIVE:
            archive = _archive_of(self.wanted.url)
            if archive is None:
                raise BadInput("as", "write an archive with {yyyy}, {mm} or {dd} in its address")
            return archive
        return _Place(mode, self.wanted.url, found.title, found.pages)

    async def _of_page(self, found: ListSummary) -> _Place:
        domains = hosts_of(self.wanted)
        for url in found.feeds[:_MOST_FEEDS_TRIED]:
            if not _is_within(_host(url), domains):
                self.findings.append(f"The page names a feed on another site; to follow it, add that address: {url}")
            elif (feed := await self._tried(url, ListKind.FEED)) is not None:
                self.findings.append(f"The page names a feed: {url}")
                return self._feed(url, feed)
        if (archive := _archive_of(self.wanted.url)) is not None:
            self.findings.append(f"The address has a date in it, so it is an archive: {archive.url}")
            return archive
        if urlsplit(self.wanted.url).path in ("", "/"):
            site = urlunsplit(urlsplit(self.wanted.url)._replace(path="/sitemap.xml", query="", fragment=""))
            if (sitemap := await self._tried(site, ListKind.SITEMAP)) is not None:
                self.findings.append(f"The site has a sitemap: {site}")
                return self._sitemap(site, sitemap)
        if found.next_url is not None:
            self.findings.append(f"The page is a list of {len(found.pages):,} links that goes on at {found.next_url}")
            return _Place(EndpointMode.PAGINATION, self.wanted.url, found.title, found.pages)
        self.findings.append("It names no feed, has no date in its address and does not go on: it is a single page.")
        return _Place(EndpointMode.PAGE, self.wanted.url, found.title)

    def _feed(self, url: str, found: ListSummary) -> _Place:
        self.findings.append(f"It is a feed with {_counted(found.total, 'entry', 'entries')}{_titled(found)}.")
        return _Place(EndpointMode.FEED, url, found.title, found.pages)

    def _sitemap(self, url: str, found: ListSummary) -> _Place:
        one, many = ("further sitemap", "further sitemaps") if found.is_index else ("page", "pages")
        self.findings.append(f"It is a sitemap of {_counted(found.total, one, many)}.")
        return _Place(EndpointMode.SITEMAP, url, found.title, found.pages, is_index=found.is_index)

    async def _tried(self, url: str, kind: ListKind) -> ListSummary | None:
        """What is there, if it is of this kind."""
        try:
            found = await self._summary(url)
        except PostroomError as error:
            self.findings.append(f"{url} cannot be read: {error.message}")
            return None
        return found if found.kind is kind else None

    async def _summary(self, url: str) -> ListSummary:
        page = await self.fetching.get(url, purpose=Purpose.DISCOVERY, patience=PATIENCE)
        return await self.reader.summarize(page)

    def _say_what_lies_outside(self, source: WebSource, place: _Place) -> None:
        outside = Counter(host for url in place.pages if not source.has_host(host := _host(url)))
        if place.mode in (EndpointMode.FEED, EndpointMode.SITEMAP) and outside:
            host, number = outside.most_common(1)[0]
            note = f"{number:,} of its first {len(place.pages):,} pages are on {host}, which is not followed"
            self.findings.append(f"{note}; add it with --domain {host} if it should be.")


def _first_pages(source: WebSource, place: _Place) -> tuple[str, ...]:
    if place.is_index:
        return ()
    if place.mode is EndpointMode.PAGE:
        return (place.url,)
    wanted = ItemFilter.of(source, source.endpoint[0])
    pages = (canonical for url in place.pages if (canonical := _canonical(url)) and wanted.wants(canonical))
    return tuple(islice(dict.fromkeys(pages), MOST_SHOWN))


def _source(wanted: NewSource, place: _Place) -> WebSource:
    domains = hosts_of(wanted)
    endpoint: dict[str, Any] = {"name": place.mode.lower(), "mode": place.mode, "url": place.url}
    endpoint["sentinel"] = wanted.watched
    if place.mode is EndpointMode.ARCHIVE:
        endpoint["first_day"] = place.first_day
    if wanted.links:
        endpoint["links"] = wanted.links
    definition: dict[str, Any] = {
        "slug": wanted.slug or _slug(wanted, place),
        "name": wanted.name or place.title,
        "domains": domains,
        "endpoint": [endpoint],
        "allow_private": wanted.allow_private,
        "every": wanted.every,
    }
    if wanted.notify is not None:
        definition["notify"] = wanted.notify
    return source_of(definition)


def _slug(wanted: NewSource, place: _Place) -> str:
    """The host; with its path where the source is one page of it."""
    parts = urlsplit(wanted.url)
    name = (parts.hostname or "").removeprefix("www.")
    if place.mode is EndpointMode.PAGE:
        name += "-".join(["", *(part for part in parts.path.split("/") if part)])
    return _NOT_IN_SLUG.sub("-", name.lower()).strip("-.")[:100] or "source"


def _archive_of(url: str) -> _Place | None:
    """The archive that this dated page belongs to, from its day on."""
    found = _DATED.search(urlsplit(url).path)
    if found is None:
        return None
    day = date(int(found["yyyy"]), int(found["mm"] or 1), min(int(found["dd"] or 1), 28))
    pattern = found[0]
    for name in ("dd", "mm", "yyyy"):
        if found[name]:
            start, end = found.start(name) - found.start(), found.end(name) - found.start()
            pattern = f"{pattern[:start]}{{{name}}}{pattern[end:]}"
    return _Place(EndpointMode.ARCHIVE, url.replace(found[0], pattern, 1), first_day=day)


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _titled(found: ListSummary) -> str:
    return f", {found.title!r}" if found.title else ""


def _is_within(host: str, domains: list[str]) -> bool:
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _host(url: str) -> str:
    canonical = _canonical(url)
    return host_of(canonical) if canonical else ""


def _canonical(url: str) -> str:
    try:
        return canonicalize_url(url)
    except BadInput:
        return ""


def first_free(slug: str, taken: Iterable[str]) -> str:
    """The slug, with a number after it if it is taken."""
    names, number, free = set(taken), 2, slug
    while free in names:
        free, number = f"{slug}-{number}", number + 1
    return free
