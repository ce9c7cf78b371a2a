"""Finds the pages of the dashboard as a person does: from the navigation, along links and the choices of lists.

So a page that is built tomorrow is measured tomorrow. Every kind of page, and every way of narrowing a list, is
visited; of the many pages of one kind only some.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from starlette.routing import compile_path

_NOT_PAGES = ("/api/", "/static/", "/live", "/login", "/welcome")
_OF_A_KIND = 3
_PAGES_DEEP = 12
MOST = 20
PLACE = ("after", "before")
"""What an address says of how far down a list one is."""


class _Links(HTMLParser):
    """Where a page leads: its links, and its forms that only ask, with each choice by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._asks: str | None = None
        self._said: dict[str, str] = {}
        self._choices: list[tuple[str, str]] = []
        self._select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if tag in ("a", "iframe") and (said.get("href") or said.get("src")):
            self.found.append(said.get("href") or said["src"])
        elif tag == "form":
            self._asks = said.get("action", "") if said.get("method", "get").lower() == "get" else None
            self._said, self._choices = {}, []
        elif tag == "input" and said.get("type") == "hidden":
            self._said[said.get("name", "")] = said.get("value", "")
        elif tag == "select":
            self._select = said.get("name", "")
        elif tag == "option" and self._asks is not None and self._select and said.get("value"):
            self._choices.append((self._select, said["value"]))

    def handle_endtag(self, tag: str) -> None:
        if tag == "form" and self._asks is not None:
            self.found += [f"{self._asks}?{urlencode(self._said | {name: value})}" for name, value in self._choices]
            self._asks = None
        elif tag == "select":
            self._select = ""


def links_of(html: str, base: str) -> list[str]:
    """Addresses on the same site, without their fragments."""
    parser = _Links()
    parser.feed(html)
    here = urlsplit(base)
    found = []
    for part in (urlsplit(urljoin(base, link)) for link in parser.found):
        if (part.scheme, part.netloc) == (here.scheme, here.netloc):
            found.append(f"{part.path}?{part.query}" if part.query else part.path)
    return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Kind:
    """Pages that one function makes, narrowed by the same means."""

    route: str
    narrowed_by: tuple[str, ...]
    is_deep: bool

    def __str__(self) -> str:
        means = f" by {', '.join(self.narrowed_by)}" if self.narrowed_by else ""
        return f"{self.route}{means}{', a later page' if self.is_deep else ''}"


@dataclass
class Plan:
    """Which addresses are worth a visit. `depths` counts how many pages of a list lie before an address."""

    routes: Sequence[str]
    most: int = MOST
    """Addresses of a kind."""
    kinds: dict[str, Kind] = field(default_factory=dict)
    _taken: Counter[object] = field(default_factory=Counter)
    _depths: dict[str, int] = field(default_factory=dict)

    def offer(self, address: str, seen_on: str | None = None) -> Kind | None:
        """Its kind, if it is to be visited; None if there were enough of them."""
        route = self._route_of(address)
        if route is None or address in self.kinds:
            return None
        query = dict(parse_qsl(urlsplit(address).query))
        means = tuple(sorted(name for name in query if name not in PLACE))
        is_deep = any(query.get(name) for name in PLACE)
        depth = self._depths.get(seen_on or "", 0) + 1 if is_deep else 0
        kind = Kind(route, means, is_deep)
        choice = (kind, tuple(sorted(query.items())) if means and not is_deep else depth if is_deep else "")
        if depth > _PAGES_DEEP or self._taken[kind] >= self.most or self._taken[choice] >= _OF_A_KIND:
            return None
        self._taken.update((kind, choice))
        self._depths[address] = depth
        self.kinds[address] = kind
        return kind

    def unreached(self) -> list[str]:
        reached = {kind.route for kind in self.kinds.values()}
        return sorted(set(self.routes) - reached)

    def _route_of(self, address: str) -> str | None:
        path = urlsplit(address).path
        return next((route for route in self.routes if compile_path(route)[0].match(path)), None)


def pages_of(app: FastAPI) -> list[str]:
    """The paths of all pages that can be looked at, in the order in which they are tried."""
    contexts = iter_route_contexts(app.routes)
    paths = [context.path for context in contexts if context.path is not None and "GET" in (context.methods or ())]
    return [path for path in paths if not path.startswith(_NOT_PAGES)]


def by_kind(kinds: dict[str, Kind]) -> Iterator[tuple[Kind, Sequence[str]]]:
    for kind in sorted(set(kinds.values()), key=str):
        yield kind, [address for address, each in kinds.items() if each == kind]
