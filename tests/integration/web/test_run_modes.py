"""How a run goes through what a site lists: sitemaps, archives by day, lists of pages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from postroom.db import Database
from postroom.web.runs import RunStatus
from postroom.web.sources import EndpointMode
from postroom.web.web_service import WebService
from tests.support.web_servers import Page, TinySite
from tests.support.web_sources import backfilled, item_urls, make_web, sources_file, write_sources


@pytest.fixture
def web(database: Database, tmp_path: Path, site: TinySite) -> WebService:
    write_sources(tmp_path, sources_file(site.url))
    return make_web(database, tmp_path)


@pytest.mark.req("WB-9")
async def test_a_window_of_days_takes_what_the_site_dates_within_it(web: WebService, site: TinySite) -> None:
    ages = {"/old": "2020-05-05", "/in": "2024-02-10", "/new": "2025-01-01"}
    site.sitemap_index("/tiny.xml", ["/a.xml", "/b.xml"], {"/b.xml": "2019-01-01"})
    site.sitemap("/a.xml", [*ages, "/undated"], ages)
    site.sitemap("/b.xml", ["/never"])
    run = await backfilled(web, date_from=datetime(2024, 1, 1, tzinfo=UTC), date_to=datetime(2024, 12, 31, tzinfo=UTC))
    assert run.discovered_count == 2
    assert await item_urls(web.queue.database) == [f"{site.url}/in", f"{site.url}/undated"]
    assert "/b.xml" not in site.asked


@pytest.mark.req("WB-9")
async def test_an_archive_is_gone_through_day_by_day_and_a_day_without_an_issue_is_no_error(
    web: WebService, tmp_path: Path, site: TinySite
) -> None:
    archive = sources_file(site.url, mode="archive", url=f"{site.url}/{{yyyy}}/{{mm}}/{{dd}}", links='["/issue/"]')
    write_sources(tmp_path, archive + "first_day = 2024-02-27\n")
    site.list_page("/2024/02/28", ["/issue/1", "/issue/2", "/about"])
    site.list_page("/2024/03/01", ["/issue/2", "/issue/3", "https://elsewhere.example/issue/9"])
    run = await backfilled(web, mode=EndpointMode.ARCHIVE, date_to=datetime(2024, 3, 2, tzinfo=UTC))
    assert (run.status, run.discovered_count, run.error_count) == (RunStatus.COMPLETED, 3, 0)
    days = [path for path in site.asked if path.startswith("/2024")]
    assert days == ["/2024/03/01", "/2024/02/29", "/2024/02/28", "/2024/02/27"]


@pytest.mark.req("WB-9")
async def test_a_list_is_turned_by_its_next_links_and_a_loop_ends(
    web: WebService, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url, mode="pagination", url=f"{site.url}/list", links='["/item/"]'))
    site.list_page("/list", ["/item/1", "/item/2"], "/list/2")
    site.list_page("/list/2", ["/item/3"], "/list/3?utm_source=pager")
    site.list_page("/list/3?utm_source=pager", ["/item/4"], "/list")
    run = await backfilled(web, mode=EndpointMode.PAGINATION)
    assert (run.status, run.discovered_count, run.error_count) == (RunStatus.COMPLETED, 4, 0)
    assert [path for path in site.asked if path.startswith("/list")] == ["/list", "/list/2", "/list/3?utm_source=pager"]


@pytest.mark.req("WB-9")
async def test_a_list_is_turned_by_its_page_parameter_until_nothing_new_comes(
    web: WebService, tmp_path: Path, site: TinySite
) -> None:
    write_sources(
        tmp_path,
        sources_file(site.url, mode="pagination", url=f"{site.url}/list", links='["/item/"]', page_parameter="p"),
    )
    for page in range(1, 4):
        site.list_page(f"/list?p={page}", [f"/item/{page}"])
    site.pages["*"] = lambda path: Page(b'<a href="/item/3">the last page, again and again</a>')
    site.pages["/robots.txt"] = Page(b"", "text/plain")
    run = await backfilled(web, mode=EndpointMode.PAGINATION)
    assert (run.status, run.discovered_count) == (RunStatus.COMPLETED, 3)
    assert [path for path in site.asked if path.startswith("/list")][-1] == "/list?p=6"


@pytest.mark.req("WB-9")
async def test_a_list_without_end_is_left_after_so_many_pages_and_that_is_told(
    database: Database, tmp_path: Path, site: TinySite
) -> None:
    write_sources(tmp_path, sources_file(site.url, mode="pagination", url=f"{site.url}/list/1", links='["/item/"]'))

    def endless(path: str) -> Page:
        number = int(path.rpartition("/")[2]) if path.startswith("/list/") else 0
        return Page(f'<a href="/item/{number}">x</a><a rel="next" href="/list/{number + 1}">next</a>'.encode())

    site.pages["*"] = endless
    site.pages["/robots.txt"] = Page(b"", "text/plain")
    run = await backfilled(make_web(database, tmp_path, max_pages=12), mode=EndpointMode.PAGINATION)
    assert (run.status, run.discovered_count, run.error_count) == (RunStatus.COMPLETED, 12, 1)
    assert "stopped after 12 pages" in (run.status_reason or "")


@pytest.mark.req("WB-9")
async def test_children_of_a_sitemap_on_other_hosts_are_not_followed_and_that_is_told(
    web: WebService, site: TinySite
) -> None:
    children = f"<sitemap><loc>http://localhost:1/x.xml</loc></sitemap><sitemap><loc>{site.url}/a.xml</loc></sitemap>"
    body = f"<sitemapindex>{children}<sitemap><loc>file:///etc/passwd</loc></sitemap></sitemapindex>"
    site.pages["/tiny.xml"] = Page(body.encode(), "application/xml")
    site.sitemap("/a.xml", ["/x"], {"/x": "2999-01-01"})
    run = await backfilled(web)
    assert (run.status, run.discovered_count, run.error_count) == (RunStatus.COMPLETED, 1, 2)
