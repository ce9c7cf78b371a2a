"""The ways by which the gazette's documents can be found: sitemaps, archives by date, and lists of pages."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from datetime import date

from postroom.websources.sim.documents import Gazette, GazetteDocument
from postroom.websources.sim.reply import XML, Reply, html, missing

_PAGE = 20
_SITEMAP_NS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_YEAR_MAP = re.compile(r"/sitemaps/(\d{4})\.xml(\.gz)?")
_ARCHIVE = re.compile(r"/archive/(\d{4})(?:/(\d{2}))?(?:/(\d{2}))?/?")


def sitemap(gazette: Gazette, origin: str, path: str) -> Reply:
    """`/sitemap.xml` is an index of an index; odd years are gzipped files."""
    if path == "/sitemap.xml":
        return _index([f"{origin}/sitemaps/index.xml", f"{origin}/sitemaps/pages.xml"])
    if path == "/sitemaps/index.xml":
        return _index([f"{origin}/sitemaps/{year}.xml{'.gz' if year % 2 else ''}" for year in gazette.years])
    if path == "/sitemaps/pages.xml":
        return _urls([(f"{origin}/about", None), (f"{origin}/news", None), (f"{origin}/private/draft", None)])
    found = _YEAR_MAP.fullmatch(path)
    if not found or int(found[1]) not in gazette.years or bool(found[2]) != bool(int(found[1]) % 2):
        return missing()
    reply = _urls([(f"{origin}{document.path}", document.day) for document in gazette.of_year(int(found[1]))])
    if not found[2]:
        return reply
    return Reply(body=gzip.compress(reply.body, mtime=0), content_type="application/gzip")


def archive(gazette: Gazette, path: str) -> Reply:
    """`/archive/2025/03/` lists the month, `/archive/2025/03/14/` the day; a day without documents is 404."""
    found = _ARCHIVE.fullmatch(path)
    if not found:
        return missing()
    year, month, day = (int(part) if part else None for part in found.groups())
    documents = [
        document
        for document in gazette.of_year(year or 0)
        if month in (None, document.day.month) and day in (None, document.day.day)
    ]
    return _list(f"Arhiva {path}", documents) if documents else missing()


def news(gazette: Gazette, page: int, *, loops: bool) -> Reply:
    """Newest first, twenty a page. The looping list's last page leads back to its second."""
    newest = gazette.documents[::-1]
    last = max(-(-len(newest) // _PAGE), 1)
    if not 1 <= page <= last:
        return missing()
    path = "/news-loop" if loops else "/news"
    following = page + 1 if page < last else (2 if loops else None)
    link = f'<a rel="next" class="next" href="{path}?page={following}">Sljedeća</a>' if following else ""
    return _list(f"Novosti, stranica {page}", newest[(page - 1) * _PAGE : page * _PAGE], link)


def endless(page: int) -> Reply:
    """A list that never ends: a calendar into the future, as many sites have one."""
    links = "".join(f'<li><a href="/endless/{page}/{number}">Zapis {page}.{number}</a></li>' for number in range(10))
    link = f'<a rel="next" href="/endless?page={page + 1}">Sljedeća</a>'
    return html(f"Kalendar {page}", f"<ul>{links}</ul>{link}")


def _list(title: str, documents: Sequence[GazetteDocument], after: str = "") -> Reply:
    items = "".join(
        f'<li><a href="{document.path}">{document.title}</a> <time>{document.day.isoformat()}</time></li>\n'
        for document in documents
    )
    return html(title, f"<h1>{title}</h1><ul>{items}</ul>{after}")


def _index(urls: Sequence[str]) -> Reply:
    entries = "".join(f"<sitemap><loc>{url}</loc></sitemap>\n" for url in urls)
    body = f"{_DECLARATION}<sitemapindex {_SITEMAP_NS}>\n{entries}</sitemapindex>\n"
    return Reply(body=body.encode(), content_type=XML)


def _urls(urls: Sequence[tuple[str, date | None]]) -> Reply:
    entries = "".join(
        f"<url><loc>{url}</loc>{f'<lastmod>{day.isoformat()}</lastmod>' if day else ''}</url>\n" for url, day in urls
    )
    body = f"{_DECLARATION}<urlset {_SITEMAP_NS}>\n{entries}</urlset>\n"
    return Reply(body=body.encode(), content_type=XML)
