"""Reads pages that list other pages: the links of one, and which of them is the next page. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit, urlunsplit

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


@dataclass(frozen=True, slots=True)
class LinkPage:
    """All links in the order of the page, without the one that leads to the next page."""

    links: tuple[str, ...]
    next_url: str | None


def read_links(text: str, base_url: str) -> LinkPage:
    """Never raises: what is no HTML has no links."""
    root = _parsed(text)
    if root is None:
        return LinkPage((), None)
    base = _base(root, base_url)
    following: list[tuple[int, str]] = []
    links: dict[str, None] = {}
    for element in root.iter("a", "area", "link"):
        address = _address(element, base)
        if address is None:
            continue
        if (rank := _rank(element)) is not None:
            following.append((rank, address))
        elif element.tag != "link" and len(links) < MOST_LINKS:
            links[address] = None
    next_url = min(following, default=(0, None), key=lambda pair: pair[0])[1]
    return LinkPage(tuple(links), next_url)


def with_page(url: str, parameter: str, number: int) -> str:
    """The address of this page of a list that is turned by a parameter."""
    parts = urlsplit(url)
    pairs = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] != parameter]
    return urlunsplit(parts._replace(query=urlencode([*pairs, (parameter, str(number))]), fragment=""))


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
    """How surely a link leads to the next page, the least number the most; None for other links."""
    if "next" in str(element.get("rel") or "").lower().split():
        return 0
    if element.tag == "link":
        return None
    if _NEXT_CLASSES & set(str(element.get("class") or "").lower().split()):
        return 1
    label = str(element.get("aria-label") or "") or " ".join(str(element.xpath("string()")).split())
    return 2 if label.strip().lower() in _NEXT_WORDS else None
