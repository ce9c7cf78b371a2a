"""Hostile mail over HTTP: whatever a sender wrote, in any field that is shown, the answers hold nothing that acts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroom.dashboard.display.foreign_content import FRAME_POLICY, SANDBOX
from tests.support.dashboard_data import archive_mail
from tests.support.dashboards import Site, open_site
from tests.support.hostile_mail import corpus, read_frame, read_page
from tests.support.mail import ME
from tests.support.switchboards import in_a_task

pytestmark = pytest.mark.req("PL-7")

KEYS = [mail.gmail_id for mail in corpus()]


@pytest.fixture
async def attacked(tmp_path: Path) -> AsyncIterator[Site]:
    async with in_a_task(open_site(tmp_path / "home")) as site:
        await archive_mail(site, corpus())
        yield site


async def test_no_page_shows_anything_that_acts(attacked: Site) -> None:
    for key in KEYS:
        for view in ("", "?view=text", "/thread"):
            page = await attacked.get(f"/mail/{ME}/{key}{view}")
            assert page.status_code == 200, (key, view)
            assert page.headers["x-dns-prefetch-control"] == "off"
            read = read_page(page.text)
            assert read.harms == [], (key, view)
            for frame in read.frames:
                assert (frame["src"], frame["sandbox"]) == (f"/mail/{ME}/{key}/body", SANDBOX)


async def test_no_list_shows_anything_that_acts(attacked: Site) -> None:
    page = await attacked.get("/mail")
    assert read_page(page.text).harms == []
    assert page.text.count('<li class="mail') == 50
    for query in ("<script>alert(1)</script>", "from:", '"', "\u202e", "label:<script>", "subject:" + "x" * 900):
        assert read_page((await attacked.get("/mail", params={"query": query})).text).harms == [], query


async def test_the_frame_holds_words_tables_and_links_only_under_a_policy_of_its_own(attacked: Site) -> None:
    for key in KEYS:
        frame = await attacked.get(f"/mail/{ME}/{key}/body")
        assert frame.headers["content-security-policy"] == FRAME_POLICY
        assert frame.headers["content-type"] == "text/html; charset=utf-8"
        assert frame.headers["referrer-policy"] == "no-referrer"
        assert frame.headers["x-dns-prefetch-control"] == "off"
        assert read_frame(frame.text).harms == [], key


async def test_every_file_is_a_download(attacked: Site) -> None:
    found = 0
    for key in KEYS:
        letter = (await attacked.api("GET", f"/mail/{ME}/{key}")).json()["message"]
        paths = [f"/mail/{ME}/{key}/attachments/{file['number']}" for file in letter["attachments"]]
        found += len(paths)
        for path in [*paths, f"/mail/{ME}/{key}/raw"]:
            for where in (path, f"/api{path}"):
                answer = await attacked.get(where)
                assert answer.headers["content-disposition"].startswith("attachment; filename="), where
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["content-type"] in ("application/octet-stream", "message/rfc822")
                assert "x-evil" not in answer.headers
    assert found >= 11


async def test_the_api_gives_html_only_sanitised(attacked: Site) -> None:
    for key in KEYS:
        letter = (await attacked.api("GET", f"/mail/{ME}/{key}")).json()["message"]
        if letter["html"] is not None:
            assert read_frame(f"<body>{letter['html']['html']}</body>").harms == [], key


async def test_ten_thousand_recipients_are_a_short_page(attacked: Site) -> None:
    page = await attacked.get(f"/mail/{ME}/crowd")
    assert len(page.text) < 100_000
    assert "others" in page.text
    assert len((await attacked.get(f"/mail/{ME}/headers")).text) < 300_000
