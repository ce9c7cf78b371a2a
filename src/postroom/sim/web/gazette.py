"""The documents of a small gazette, made up from a seed, and the ways to find them: sitemaps, archives and lists.

The same seed gives the same documents, on the same days.
"""

from __future__ import annotations

import gzip
import hashlib
import random
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from email.utils import format_datetime

HTML = "text/html; charset=utf-8"
XML = "application/xml; charset=utf-8"

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SiteReply:
    status: int = 200
    body: bytes = b""
    content_type: str = HTML
    headers: Headers = ()
    stream: AsyncIterator[bytes] | None = None
    """Sent piece by piece in place of the body, without a length."""
    announced_length: int | None = None
    """What Content-Length says, where that is a lie: the connection breaks off before so much was sent."""


def html(title: str, body: str, *, head: str = "", headers: Headers = (), lang: str = "hr") -> SiteReply:
    page = (
        f'<!doctype html>\n<html lang="{lang}">\n<head><meta charset="utf-8"><title>{title}</title>{head}</head>\n'
        f"<body>\n<nav><a href='/'>Home</a> <a href='/news'>News</a></nav>\n<main>{body}</main>\n"
        "<footer>Stand-in gazette. Nothing here is real.</footer>\n</body>\n</html>\n"
    )
    return SiteReply(body=page.encode(), headers=headers)


def redirect(location: str, status: int = 302) -> SiteReply:
    return SiteReply(status, headers=(("Location", location),))


def missing() -> SiteReply:
    return SiteReply(404, b"<h1>Not found</h1>")


_LINES_A_PAGE = 40
_WIDTH = 90


def write_pdf(title: str, paragraphs: Sequence[str]) -> bytes:
    lines = [piece for paragraph in paragraphs for piece in _wrapped(paragraph)]
    pages = [lines[start : start + _LINES_A_PAGE] for start in range(0, len(lines), _LINES_A_PAGE)] or [[]]
    kids = " ".join(f"{5 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /Lang (hr-HR) >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Title (" + _escaped(title) + b") >>",
    ]
    for number, page in enumerate(pages):
        content = (
            b"BT /F1 11 Tf 50 780 Td 14 TL\n" + b"".join(b"(" + _escaped(line) + b") Tj T*\n" for line in page) + b"ET"
        )
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> "
            + f"/Contents {6 + 2 * number} 0 R >>".encode()
        )
        objects.append(f"<< /Length {len(content)} >>\nstream\n".encode() + content + b"\nendstream")
    return assemble(objects)


def _wrapped(paragraph: str) -> list[str]:
    lines, line = [], ""
    for word in paragraph.split():
        if len(line) + len(word) >= _WIDTH:
            lines.append(line)
            line = ""
        line = f"{line} {word}".strip()
    return [*lines, line]


def _escaped(text: str) -> bytes:
    plain = text.translate(str.maketrans("čćđšžČĆĐŠŽ", "ccdszCCDSZ")).encode("cp1252", "replace")
    return plain.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")


def assemble(objects: Sequence[bytes]) -> bytes:
    """A file of these objects; the first is its catalogue, the fourth its title."""
    data, offsets = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    table = b"".join(f"{offset:010} 00000 n \n".encode() for offset in offsets)
    trailer = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R /Info 4 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode() + table + trailer.encode()


_KINDS = ("Pravilnik", "Odluka", "Uredba", "Naredba", "Obavijest", "Zakon")
_TOPICS = (
    *(
        "porezu na dohodak",
        "paušalnom oporezivanju obrta",
        "fiskalizaciji u prometu gotovinom",
        "PDV-u za male obveznike",
    ),
    *("doprinosima za obvezna osiguranja", "evidenciji radnog vremena", "rokovima za predaju prijave", "naknadi štete"),
)
_SENTENCES = (
    "Ovim se aktom uređuju obveze obveznika i rokovi u kojima ih je potrebno ispuniti.",
    "Prijava se podnosi elektroničkim putem najkasnije do dvadesetog dana u mjesecu.",
    "Obveznik koji ne postupi prema odredbama ovoga članka plaća zateznu kamatu.",
    "Nadležno tijelo donosi rješenje u roku od trideset dana od dana primitka zahtjeva.",
    "Iznosi navedeni u prilogu usklađuju se jednom godišnje prema objavljenom indeksu.",
    "Na pitanja koja nisu uređena ovim aktom primjenjuju se odredbe općega zakona.",
    "Obrazac se objavljuje na mrežnim stranicama i sastavni je dio ovoga akta.",
    "Žalba ne odgađa izvršenje rješenja, osim ako zakonom nije drukčije propisano.",
)
_FIRST_DAY, _LAST_DAY = date(2023, 1, 1), date(2026, 10, 31)
_EVERY_PDF = 10


@dataclass(frozen=True, slots=True)
class GazetteDocument:
    number: int
    day: date
    title: str
    paragraphs: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"/documents/{self.number}" + (".pdf" if self.number % _EVERY_PDF == 0 else "")


class Gazette:
    """Documents 1 to `count`, the older first. A document can be given a new version."""

    def __init__(self, count: int, seed: int) -> None:
        self._seed = seed
        span = (_LAST_DAY - _FIRST_DAY).days
        dice = random.Random(seed)  # noqa: S311 (made-up content)
        days = sorted(dice.randrange(span) for _ in range(count))
        self.documents = [self._document(number, days[number - 1]) for number in range(1, count + 1)]
        self.versions: dict[int, int] = {}

    def of_year(self, year: int) -> list[GazetteDocument]:
        return [document for document in self.documents if document.day.year == year]

    @property
    def years(self) -> list[int]:
        return sorted({document.day.year for document in self.documents})

    def by_path(self, path: str) -> GazetteDocument | None:
        number = path.removeprefix("/documents/").removesuffix(".pdf")
        found = (
            self.documents[int(number) - 1]
            if number.isdecimal() and 0 < int(number[:9]) <= len(self.documents)
            else None
        )
        return found if found is not None and found.path == path else None

    def page(self, document: GazetteDocument, headers: dict[str, str]) -> SiteReply:
        """The document's page, or 304 where the reader has this very one."""
        version = self.versions.get(document.number, 1)
        modified = datetime(document.day.year, document.day.month, document.day.day, 8, tzinfo=UTC)
        modified += timedelta(days=version - 1)
        etag = self._etag(document.number, version)
        known = (("ETag", etag), ("Last-Modified", format_datetime(modified, usegmt=True)))
        if etag in [tag.strip() for tag in headers.get("if-none-match", "").split(",")]:
            return SiteReply(304, headers=known)
        if document.path.endswith(".pdf"):
            lines = [document.title, *document.paragraphs, f"Verzija {version}."]
            return SiteReply(body=write_pdf(document.title, lines), content_type="application/pdf", headers=known)
        text = "".join(f"<p>{paragraph}</p>\n" for paragraph in (*document.paragraphs, f"Verzija {version}."))
        head = f'<meta property="article:published_time" content="{document.day.isoformat()}T08:00:00+00:00">'
        return html(document.title, f"<article><h1>{document.title}</h1>{text}</article>", head=head, headers=known)

    def _etag(self, number: int, version: int) -> str:
        name = f"{self._seed}/{number}/{version}".encode()
        return f'"{hashlib.sha1(name, usedforsecurity=False).hexdigest()[:16]}"'

    def _document(self, number: int, day_number: int) -> GazetteDocument:
        dice = random.Random(f"{self._seed}/{number}")  # noqa: S311 (made-up content)
        title = f"{dice.choice(_KINDS)} o {dice.choice(_TOPICS)} (broj {number})"
        paragraphs = tuple(" ".join(dice.choices(_SENTENCES, k=4)) for _ in range(dice.randint(3, 8)))
        return GazetteDocument(number, _FIRST_DAY + timedelta(days=day_number), title, paragraphs)


_PAGE = 20
_SITEMAP_NS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'
_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'
_YEAR_MAP = re.compile(r"/sitemaps/(\d{4})\.xml(\.gz)?")
_ARCHIVE = re.compile(r"/archive/(\d{4})(?:/(\d{2}))?(?:/(\d{2}))?/?")


def sitemap(gazette: Gazette, origin: str, path: str) -> SiteReply:
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
    return SiteReply(body=gzip.compress(reply.body, mtime=0), content_type="application/gzip")


def archive(gazette: Gazette, path: str) -> SiteReply:
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


def news(gazette: Gazette, page: int, *, loops: bool) -> SiteReply:
    """Newest first, twenty a page. The looping list's last page leads back to its second."""
    newest = gazette.documents[::-1]
    last = max(-(-len(newest) // _PAGE), 1)
    if not 1 <= page <= last:
        return missing()
    path = "/news-loop" if loops else "/news"
    following = page + 1 if page < last else (2 if loops else None)
    link = f'<a rel="next" class="next" href="{path}?page={following}">Sljedeća</a>' if following else ""
    return _list(f"Novosti, stranica {page}", newest[(page - 1) * _PAGE : page * _PAGE], link)


def endless(page: int) -> SiteReply:
    """A list that never ends: a calendar into the future, as many sites have one."""
    links = "".join(f'<li><a href="/endless/{page}/{number}">Zapis {page}.{number}</a></li>' for number in range(10))
    link = f'<a rel="next" href="/endless?page={page + 1}">Sljedeća</a>'
    return html(f"Kalendar {page}", f"<ul>{links}</ul>{link}")


def _list(title: str, documents: Sequence[GazetteDocument], after: str = "") -> SiteReply:
    items = "".join(
        f'<li><a href="{document.path}">{document.title}</a> <time>{document.day.isoformat()}</time></li>\n'
        for document in documents
    )
    return html(title, f"<h1>{title}</h1><ul>{items}</ul>{after}")


def _index(urls: Sequence[str]) -> SiteReply:
    entries = "".join(f"<sitemap><loc>{url}</loc></sitemap>\n" for url in urls)
    body = f"{_DECLARATION}<sitemapindex {_SITEMAP_NS}>\n{entries}</sitemapindex>\n"
    return SiteReply(body=body.encode(), content_type=XML)


def _urls(urls: Sequence[tuple[str, date | None]]) -> SiteReply:
    entries = "".join(
        f"<url><loc>{url}</loc>{f'<lastmod>{day.isoformat()}</lastmod>' if day else ''}</url>\n" for url, day in urls
    )
    body = f"{_DECLARATION}<urlset {_SITEMAP_NS}>\n{entries}</urlset>\n"
    return SiteReply(body=body.encode(), content_type=XML)
