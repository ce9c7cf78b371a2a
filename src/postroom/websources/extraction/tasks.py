"""What the limited child does for web sources: reads documents, lists of pages, and robots.txt files.

Everything here may meet hostile bytes. What a task finds wrong with a page it says in its answer; what it raises is a
failure of the child.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from functools import lru_cache
from io import BytesIO
from typing import Any

from protego import Protego
from pypdf import PdfWriter

from postroom.websources.extraction.model import Document
from postroom.websources.extraction.reading import read_document
from postroom.websources.fetching.errors import BadAnswer, TooLarge, Unavailable
from postroom.websources.fetching.ports import Fetched, Validators
from postroom.websources.pagination import read_links
from postroom.websources.routes import Place, Route, described_route
from postroom.websources.sitemap import read_sitemap

LONGEST_DELAY_S = 86_400
"""What a robots.txt may ask for between two requests: as long as a `Retry-After` may."""

_NO_TIME = datetime.min.replace(tzinfo=UTC)
Answer = tuple[dict[str, Any], bytes]

_SAMPLE = b"""<html lang="en"><head><title>A law</title><meta name="date" content="2020-01-02"></head><body><article>
<h1>A law</h1><p>%b</p><p>2 January 2020 <a href="/next" rel="next">next</a></p></article></body></html>""" % (
    b"It is about taxes, and about who pays them. " * 20
)
_SITEMAP = b"<?xml version='1.0'?><urlset><url><loc>https://gazette.example/law</loc></url></urlset>"


def document(header: dict[str, Any], body: bytes) -> Answer:
    extracted = read_document(Document(body, header["content_type"], header["charset"], header["url"]))
    return extracted.encoded()


def list_page(header: dict[str, Any], body: bytes) -> Answer:
    """The items of a page of a list; large, so they are the body of the answer."""
    page = Fetched(header["url"], header["final_url"], 200, body, "", header["charset"], Validators(), _NO_TIME)
    try:
        reading = _route(json.dumps(header["route"])).read(Place(page=header["page"]), page)
    except (BadAnswer, TooLarge, Unavailable) as error:
        return {"error": type(error).__name__, "message": error.message}, b""
    return {}, reading.encoded()


def robots(header: dict[str, Any], body: bytes) -> Answer:
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
    """The libraries load some of their parts when they first meet something: here, while that is possible."""
    blank = PdfWriter()
    blank.add_blank_page(100, 100)
    blank.write(pdf := BytesIO())
    for body, content_type in ((_SAMPLE, "text/html"), (pdf.getvalue(), "application/pdf"), (b"text", "text/plain")):
        document({"content_type": content_type, "charset": None, "url": "https://gazette.example/law"}, body)
    read_sitemap(_SITEMAP, len(_SITEMAP))
    read_links(_SAMPLE.decode(), "https://gazette.example/")
    robots({"agent": "postroom", "url": "https://gazette.example/law"}, b"User-agent: *\nDisallow: /private*.html$\n")


@lru_cache(maxsize=16)
def _rules(body: bytes) -> Protego:
    return Protego.parse(body.decode("utf-8", "replace"))


@lru_cache(maxsize=16)
def _route(described: str) -> Route:
    return described_route(json.loads(described))
