"""What the limited child does for web sources: reads documents, lists of pages, and robots.txt files.

Everything here may meet hostile bytes. What a task finds wrong with a page it reports in its answer; what it raises
is a failure of the child.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import lru_cache
from io import BytesIO
from typing import Any

import pypdf
import trafilatura
from protego import Protego
from pypdf import PdfWriter
from w3lib.encoding import html_body_declared_encoding

from postroom.mail.charsets import decode_text
from postroom.mail.html import MAX_HTML_CHARS, html_to_text
from postroom.web.extraction.web_reader import LONGEST_TEXT, Extracted, ListKind, ListSummary, WebDocument
from postroom.web.fetching.interface import BadAnswer, Fetched, TooLarge, Unavailable, Validators
from postroom.web.listings import ListedUrl, read_feed, read_links, read_sitemap
from postroom.web.strategies import WalkPlace, WalkStrategy, described_strategy

MOST_PAGES = 2_000
_LEAST_MAIN_TEXT = 100
_TRAFILATURA = f"trafilatura {trafilatura.__version__}"
_PYPDF = f"pypdf {pypdf.__version__}"
_PLAIN = "plain 1"
_STRIPPED = "stripped 1"
_LANGUAGE = re.compile(r"\s*([a-zA-Z]{2})(?:[-_][a-zA-Z0-9-]*)?\s*")
_MARKUP = re.compile(rb"\s*(?:<!--|<!doctype|<html|<head|<body|<\?xml)", re.IGNORECASE)
_TEXT_TYPES = ("text/", "application/json", "application/xml", "application/rss+xml", "application/atom+xml")
_HTML_TYPES = ("text/html", "application/xhtml+xml")


def read_document(document: WebDocument) -> Extracted:
    """By the bytes themselves; the declared type decides only if they are ambiguous."""
    body = document.body
    if b"%PDF-" in body[:1024]:
        return _read_pdf(body)
    if b"\0" in body[:4096] and not body.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Extracted(
            _PLAIN, problem=f"no text: {document.content_type or 'the file'} is made of bytes, not letters"
        )
    if document.content_type in _HTML_TYPES or _MARKUP.match(body):
        return _read_html(document)
    if not document.content_type or document.content_type.startswith(_TEXT_TYPES):
        text, problem = decode_text(body, document.charset)
        return Extracted(_PLAIN, text=text[:LONGEST_TEXT], problem=problem or _cut(text))
    return Extracted(_PLAIN, problem=f"no text: {document.content_type} is not read")


def _read_html(document: WebDocument) -> Extracted:
    declared = document.charset or html_body_declared_encoding(document.body[:4096])
    markup, problem = decode_text(document.body, declared)
    tree = trafilatura.load_html(markup)
    if tree is None:
        return Extracted(_TRAFILATURA, problem="the markup cannot be read")
    language = _language(tree.get("lang") or tree.get("{http://www.w3.org/XML/1998/namespace}lang"))
    plain = trafilatura.html2txt(tree)
    found = trafilatura.bare_extraction(
        tree,
        url=document.url,
        with_metadata=True,
        include_comments=False,
        date_extraction_params={"original_date": True, "extensive_search": False},
    )
    fields: dict[str, Any] = {} if found is None else found if isinstance(found, dict) else found.as_dict()
    text = _main_text(fields.get("text") or "", plain)
    if not text:
        return _stripped(markup, problem)
    return Extracted(
        _TRAFILATURA,
        title=fields.get("title") or None,
        text=text[:LONGEST_TEXT],
        published_on=_day(fields.get("date")),
        language=_language(fields.get("language")) or language,
        problem=problem or _cut(text),
    )


def _stripped(markup: str, problem: str | None) -> Extracted:
    """For markup that the parser gives up on (huge lines, thousands of levels): a simpler parser finds the words."""
    text = html_to_text(markup)[:LONGEST_TEXT]
    if not text:
        return Extracted(_STRIPPED, problem="the page holds no text that can be read")
    cut = f"only the first {MAX_HTML_CHARS:,} characters were read" if len(markup) > MAX_HTML_CHARS else None
    return Extracted(_STRIPPED, text=text, problem=problem or cut)


def _main_text(found: str, plain: str) -> str:
    """All text of the page where the extracted main text is a tiny part of it."""
    return plain if len(found) < _LEAST_MAIN_TEXT and len(plain) > 5 * len(found) else found


def _read_pdf(body: bytes) -> Extracted:
    try:
        reader = pypdf.PdfReader(BytesIO(body), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            return Extracted(_PYPDF, problem="no text: the PDF is locked with a password")
        text, problem = _pages(reader)
        title, day = _pdf_facts(reader)
        language = _language(reader.root_object.get("/Lang"))
        return Extracted(_PYPDF, title, text[:LONGEST_TEXT], day, language, problem or _cut(text))
    except MemoryError:
        raise
    except Exception as error:  # a broken PDF makes the library raise nearly anything
        return Extracted(_PYPDF, problem=f"the PDF cannot be read: {type(error).__name__}: {str(error)[:200]}")


def _pages(reader: pypdf.PdfReader) -> tuple[str, str | None]:
    """The text of all pages that can be read, and what could not be read."""
    pieces: list[str] = []
    size, broken = 0, 0
    for number, page in enumerate(reader.pages):
        if number >= MOST_PAGES or size > LONGEST_TEXT:
            return "\n\n".join(pieces), f"only the first {number} pages were read"
        try:
            piece = page.extract_text().replace("\0", "").strip()
        except MemoryError:
            raise
        except Exception:  # as above; the other pages may be sound
            broken += 1
            continue
        pieces.append(piece)
        size += len(piece)
    text = "\n\n".join(piece for piece in pieces if piece)
    if broken:
        return text, f"{broken} of {len(reader.pages)} pages could not be read"
    return text, None if text else "the PDF holds no text, only pictures perhaps"


def _pdf_facts(reader: pypdf.PdfReader) -> tuple[str | None, date | None]:
    facts = reader.metadata
    if facts is None:
        return None, None
    try:
        made = facts.creation_date
    except ValueError:
        made = None
    title = (facts.title or "").strip()
    return title[:1_000] or None, None if made is None else made.date()


def _language(tag: object) -> str | None:
    found = _LANGUAGE.fullmatch(str(tag)[:40]) if tag else None
    return found[1].lower() if found else None


def _day(text: object) -> date | None:
    try:
        return date.fromisoformat(str(text)[:10]) if text else None
    except ValueError:
        return None


def _cut(text: str) -> str | None:
    return f"only the first {LONGEST_TEXT:,} of {len(text):,} characters are kept" if len(text) > LONGEST_TEXT else None


LONGEST_DELAY_S = 86_400
"""The longest delay between two requests that a robots.txt may ask for, as for `Retry-After`."""

_MOST_SUMMARIZED = 100
_LONGEST_ADDRESS = 2_048
_LARGEST_SUMMARIZED = 50_000_000

_NO_TIME = datetime.min.replace(tzinfo=UTC)
TaskAnswer = tuple[dict[str, Any], bytes]

_SAMPLE = b"""<html lang="en"><head><title>A law</title><meta name="date" content="2020-01-02"></head><body><article>
<h1>A law</h1><p>%b</p><p>2 January 2020 <a href="/next" rel="next">next</a></p></article></body></html>""" % (
    b"It is about taxes, and about who pays them. " * 20
)
_FEED = (
    b"<rss><channel><item><link>https://gazette.example/law</link>"
    b"<pubDate>Thu, 2 Jan 2020 10:00:00 GMT</pubDate></item></channel></rss>"
)
_SITEMAP = b"<?xml version='1.0'?><urlset><url><loc>https://gazette.example/law</loc></url></urlset>"


def document(header: dict[str, Any], body: bytes) -> TaskAnswer:
    extracted = read_document(WebDocument(body, header["content_type"], header["charset"], header["url"]))
    return extracted.encoded()


def list_page(header: dict[str, Any], body: bytes) -> TaskAnswer:
    """The items of a page of a list; large, so they are the body of the answer."""
    page = Fetched(header["url"], header["final_url"], 200, body, "", header["charset"], Validators(), _NO_TIME)
    try:
        reading = _strategy(json.dumps(header["strategy"])).read(WalkPlace(page=header["page"]), page)
    except (BadAnswer, TooLarge, Unavailable) as error:
        return {"error": type(error).__name__, "message": error.message}, b""
    return {}, reading.encoded()


def summary(header: dict[str, Any], body: bytes) -> TaskAnswer:
    """What kind of list this is."""
    return asdict(summarize(header, body)), b""


def summarize(header: dict[str, Any], body: bytes) -> ListSummary:
    problems = []
    try:
        feed = read_feed(body, header["url"], _LARGEST_SUMMARIZED)
        return ListSummary(ListKind.FEED, feed.title, len(feed.entries), _first(feed.entries))
    except (BadAnswer, TooLarge) as error:
        problems.append(error.message)
    try:
        sitemap = read_sitemap(body, _LARGEST_SUMMARIZED)
        listed = sitemap.children or sitemap.pages
        if listed:
            is_index = bool(sitemap.children)
            return ListSummary(ListKind.SITEMAP, "", len(listed), _first(listed), is_index=is_index)
    except (BadAnswer, TooLarge) as error:
        problems.append(error.message)
    problem = problems[-1] if problems else None
    if header["content_type"] not in _HTML_TYPES and not _MARKUP.match(body):
        return ListSummary(ListKind.OTHER, problem=problem)
    declared = header["charset"] or html_body_declared_encoding(body[:4096])
    page = read_links(decode_text(body, declared)[0], header["url"])
    links = tuple(url[:_LONGEST_ADDRESS] for url in page.links[:_MOST_SUMMARIZED])
    feeds = tuple(url for url in page.feeds if len(url) <= _LONGEST_ADDRESS)
    return ListSummary(ListKind.PAGE, page.title, len(page.links), links, False, feeds, page.next_url, problem)


def _first(entries: tuple[ListedUrl, ...]) -> tuple[str, ...]:
    return tuple(entry.url[:_LONGEST_ADDRESS] for entry in entries[:_MOST_SUMMARIZED])


def robots(header: dict[str, Any], body: bytes) -> TaskAnswer:
    """Whether the address may be fetched, and the delay in seconds that the file asks for."""
    rules, agent = _rules(body), header["agent"]
    rate = rules.request_rate(agent)
    by_rate = 0.0
    if rate is not None and rate.requests > 0:
        by_rate = min(rate.seconds, LONGEST_DELAY_S) / rate.requests  # whole numbers of any length, so cut before
    delays = [delay for delay in (rules.crawl_delay(agent) or 0.0, by_rate) if math.isfinite(delay)]
    delay = min(max(delays, default=0.0), LONGEST_DELAY_S)
    return {"allowed": bool(rules.can_fetch(header["url"], agent)), "delay": max(delay, 0.0)}, b""


def warm_up() -> None:
    """Use the libraries once before the child is confined: they load some of their parts at first use."""
    blank = PdfWriter()
    blank.add_blank_page(100, 100)
    blank.write(pdf := BytesIO())
    for body, content_type in ((_SAMPLE, "text/html"), (pdf.getvalue(), "application/pdf"), (b"text", "text/plain")):
        document({"content_type": content_type, "charset": None, "url": "https://gazette.example/law"}, body)
    read_sitemap(_SITEMAP, len(_SITEMAP))
    read_feed(_FEED, "https://gazette.example/", len(_FEED))
    read_links(_SAMPLE.decode(), "https://gazette.example/")
    robots({"agent": "postroom", "url": "https://gazette.example/law"}, b"User-agent: *\nDisallow: /private*.html$\n")


@lru_cache(maxsize=16)
def _rules(body: bytes) -> Protego:
    return Protego.parse(body.decode("utf-8", "replace"))


@lru_cache(maxsize=16)
def _strategy(described: str) -> WalkStrategy:
    return described_strategy(json.loads(described))
