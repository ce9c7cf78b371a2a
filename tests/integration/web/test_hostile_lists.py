"""A hostile list costs its own reading: not the process, not other sources, not the end of the program."""

from __future__ import annotations

import gzip
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.domain.errors import Retryable
from postroom.reading.limited import LimitedReader, ReadingLimits
from postroom.web.extraction import web_reader
from postroom.web.extraction.child_tasks import LONGEST_DELAY_S, robots
from postroom.web.extraction.web_reader import WebReader
from postroom.web.fetching.interface import BadAnswer, Disallowed, Fetched, TooLarge, Validators
from postroom.web.listings import DateWindow, Modified
from postroom.web.runs import RunStatus
from postroom.web.sources import Endpoint, EndpointMode, WebSource
from postroom.web.strategies import FoundPage, ListReading, WalkPlace, WalkStrategy, strategy_of
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import backfilled, item_urls, make_web, sources_file, with_sitemap, write_sources

pytestmark = pytest.mark.req("HW-2", "WB-13")

MANY_ATTRIBUTES = b"<html><body><a " + b" ".join(b"a%d" % number for number in range(230_000)) + b">x</a></body></html>"
NESTED = gzip.compress(b"<urlset>" + b"<a>" * 6_000_000, 9)
TIGHT = ReadingLimits(cpu_seconds=0.5, memory_bytes=150 * 1024 * 1024)
DAY = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.fixture
def limited() -> Iterator[LimitedReader]:
    opened = LimitedReader()
    yield opened
    opened.close()


def _route(mode: EndpointMode = EndpointMode.SITEMAP, **endpoint: object) -> WalkStrategy:
    url = "https://gazette.example/{yyyy}" if mode is EndpointMode.ARCHIVE else "https://gazette.example/list"
    made = Endpoint(name="main", mode=mode, url=url, first_day=DAY.date(), **endpoint)
    source = WebSource(slug="gazette", domains=["gazette.example"], endpoint=[made], exclude=["/private/"])
    return strategy_of(source, made, DateWindow(DAY), DAY.date(), 20_000_000)


def _page(body: bytes) -> Fetched:
    url = "https://gazette.example/list"
    return Fetched(url, url, 200, body, "text/html", None, Validators(), DAY)


def _used() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("mode", "body", "reason"),
    [
        (EndpointMode.PAGINATION, MANY_ATTRIBUTES, r"more than 0.5 s of processor time"),
        (EndpointMode.ARCHIVE, MANY_ATTRIBUTES, r"more than 0.5 s of processor time"),
        (EndpointMode.SITEMAP, NESTED, r"processor time|more memory than|broke"),
    ],
)
async def test_a_list_that_exhausts_its_reader_fails_with_the_reason_and_costs_this_process_nothing(
    limited: LimitedReader, mode: EndpointMode, body: bytes, reason: str
) -> None:
    before, largest = _used(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadAnswer, match=f"The list cannot be read: .*({reason})"):
        await WebReader(TIGHT, limited).read_list(_route(mode), WalkPlace(), _page(body))
    assert _used() - before < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - largest < 100_000  # KB
    good = b"<urlset><url><loc>https://gazette.example/1</loc></url></urlset>"
    reading = await WebReader(TIGHT, limited).read_list(_route(), WalkPlace(), _page(good))
    assert [item.url for item in reading.found] == ["https://gazette.example/1"]


async def test_a_list_read_by_the_child_says_what_it_says_here() -> None:
    sitemap = b"""<urlset><url><loc>https://gazette.example/a?b=1&amp;a=2</loc><lastmod>2024-02-10</lastmod></url>
        <url><loc>https://gazette.example/old</loc><lastmod>2020</lastmod></url><url><loc>nonsense</loc></url>
        <url><loc>https://gazette.example/private/x</loc></url><url><loc>https://elsewhere.example/</loc></url></urlset>"""
    links = b'<a href="/1">1</a><a href="/private/2">2</a><a href="/list?p=2" rel="next">more</a>'
    for route, body in (
        (_route(), sitemap),
        (_route(EndpointMode.PAGINATION), links),
        (_route(EndpointMode.ARCHIVE), links),
    ):
        here = route.read(WalkPlace(page=1), _page(body))
        assert await WebReader().read_list(route, WalkPlace(page=1), _page(body)) == here
        assert here.found


async def test_what_is_wrong_with_a_list_comes_back_as_the_same_error() -> None:
    with pytest.raises(BadAnswer, match="no sitemap"):
        await WebReader().read_list(_route(), WalkPlace(), _page(b"<html/>"))
    with pytest.raises(TooLarge):
        await WebReader().read_list(_route(), WalkPlace(), _page(gzip.compress(b"<urlset>" + b" " * 30_000_000)))


@pytest.mark.parametrize(
    "reading",
    [
        ListReading((FoundPage("https://elsewhere.example/", "https://gazette.example/"),)),
        ListReading((FoundPage("https://gazette.example/", "https://elsewhere.example/"),)),
        ListReading((FoundPage("https://gazette.example/", "https://gazette.example@elsewhere.example/"),)),
        ListReading((FoundPage("https://gazette.example/", "https:\\\\elsewhere.example\\gazette.example/"),)),
        ListReading((FoundPage("file:///etc/passwd", "https://gazette.example/"),)),
        ListReading(following=("https://elsewhere.example/list",)),
        ListReading((FoundPage("https://gazette.example/" + "a" * 10_000, "https://gazette.example/"),)),
    ],
)
def test_a_reader_in_foreign_hands_cannot_lead_a_walk_astray(reading: ListReading) -> None:
    with pytest.raises(BadAnswer):
        _route().trusted(ListReading.decode(reading.encoded()))


def test_what_a_list_has_survives_the_pipe() -> None:
    found = (
        FoundPage("https://gazette.example/a", "https://GAZETTE.example:443/a#b", Modified(DAY, DAY)),
        FoundPage("https://gazette.example/b", "https:\\\\gazette.example\\b"),
    )
    reading = ListReading(found, ("https://gazette.example/2",), ("url: 'x' is not an address",))
    assert _route().trusted(ListReading.decode(reading.encoded())) == reading


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"found": [[1]]}', b"[" * 100_000, b'{"found": [["a","b","2024-01-01","x"]]}']
)
def test_an_answer_that_makes_no_sense_is_refused(data: bytes) -> None:
    with pytest.raises(BadAnswer, match="makes no sense"):
        ListReading.decode(data)


async def test_other_sources_go_on_when_one_has_a_hostile_list(
    database: Database, tmp_path: Path, site: TinySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_reader, "PAGE_LIMITS", TIGHT)
    write_sources(tmp_path, sources_file(site.url, "hostile", "tiny"))
    site.pages["/hostile.xml"] = Page(NESTED)
    good = with_sitemap(site, 3)
    web = make_web(database, tmp_path)
    run = await backfilled(web, "hostile", "tiny")
    assert run.status is RunStatus.FAILED
    assert "/hostile.xml cannot be read: The list cannot be read: it" in (run.status_reason or "")
    assert await item_urls(database) == good
    hostile, tiny = await web.look()
    assert "The list cannot be read" in hostile.problems[0]
    assert (tiny.known, tiny.problems) == (3, [])


async def test_a_robots_file_that_cannot_be_read_in_time_forbids(
    limited: LimitedReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web_reader, "ROBOTS_LIMITS", ReadingLimits(cpu_seconds=0.01))
    text = "User-agent: *\nDisallow: /a*b$\n" * 15_000
    with pytest.raises(Disallowed, match="cannot be read"):
        await WebReader(reader=limited).robots("https://x.example", text, "https://x.example/", "postroom")


@pytest.mark.parametrize(
    "asked",
    [
        *(f"Crawl-delay: {delay}" for delay in ("inf", "nan", "1e300", "-5", "9" * 400)),
        *(f"Request-rate: {rate}" for rate in ("1/" + "9" * 400, "9" * 400 + "/1", "0/" + "9" * 400)),
    ],
    ids=lambda asked: asked[:20],
)
def test_a_robots_file_cannot_ask_for_a_delay_without_end(asked: str) -> None:
    body = f"User-agent: *\n{asked}\nDisallow: /private".encode()
    answer, _ = robots({"url": "https://x.example/", "agent": "postroom"}, body)
    assert answer["allowed"]
    assert 0 <= answer["delay"] <= LONGEST_DELAY_S


async def test_a_reader_that_does_not_start_is_tried_again_later() -> None:
    broken = LimitedReader(program=(sys.executable, "-c", "raise SystemExit('no room')"))
    with pytest.raises(Retryable, match="no room"):
        await WebReader(reader=broken).read_list(_route(), WalkPlace(), _page(b""))
    broken.close()


_LOADING = """
import importlib, pkgutil, sys, postroom
child = "postroom.web.extraction.child_tasks", "postroom.web.extraction.child_tasks"
for each in pkgutil.walk_packages(postroom.__path__, "postroom."):
    if not each.name.startswith(child) and not {"sim", "migrations", "__main__"} & set(each.name.split(".")):
        importlib.import_module(each.name)
print([name for name in ("lxml", "pypdf", "trafilatura", "protego", "defusedxml") if name in sys.modules])
"""


def test_what_parses_web_sites_is_loaded_by_the_child_alone() -> None:
    found = subprocess.run([sys.executable, "-c", _LOADING], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


_READING = """
import asyncio, os, signal, sys
from postroom.reading.limited import ReadingLimits
from postroom.telemetry import logs
from postroom.web.extraction.web_reader import WebReader
from postroom.web.extraction.web_reader import WebDocument

def time_of(pid):
    fields = open(f"/proc/{pid}/stat").read().split()
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")

async def main():
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    reader = WebReader(ReadingLimits(cpu_seconds=3600, wall_seconds=3600))
    await reader.extract(WebDocument(b"text", "text/plain", None, "https://x.example/"))
    pid = [child.pid for child in reader._reader._children][0]
    idle = time_of(pid)
    document = WebDocument(b"<a " + b" ".join(b"a%d" % n for n in range(2_000_000)) + b">", "text/html", None, "https://x/")
    reading = asyncio.create_task(reader.extract(document))
    while reader._reader._busy == 0 or time_of(pid) < idle + 0.2:
        await asyncio.sleep(0.01)
    print(pid, flush=True)
    await reading

logs.configure()
asyncio.run(main())
"""


def test_sigterm_ends_a_process_that_has_a_hostile_page_read() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _READING], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert parent.stdout is not None
    watch = os.pidfd_open(int(parent.stdout.readline()))
    parent.send_signal(signal.SIGTERM)
    parent.wait(60)
    assert select.select([watch], [], [], 60)[0]
    os.close(watch)
    parent.stdout.close()
