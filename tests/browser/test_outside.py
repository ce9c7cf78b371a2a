"""Remote pictures and leaving a list, in a browser that contacts nobody but Postroom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect
from sqlalchemy import select

from postroom.db.tables.triage import actions
from postroom.settings import WebSettings
from tests.dashboard.test_mail_page import mail
from tests.dashboard.test_unsubscribe_page import LINK_ONLY, MAIL_ONLY, ListMail
from tests.support.browser import guarded, look_at, open_window
from tests.support.dashboard_data import archive_mail, dashboard_actions
from tests.support.dashboards import Site, open_site
from tests.support.mail import ME
from tests.support.pictures import authenticated, list_headers, png
from tests.support.switchboards import in_a_task
from tests.support.web_servers import Page, tiny_site

pytestmark = pytest.mark.req("UX-1")


@pytest_asyncio.fixture(loop_scope="session")
async def open_to_here(tmp_path: Path) -> AsyncIterator[Site]:
    web = WebSettings(allow_private_hosts="127.0.0.1")
    async with in_a_task(open_site(tmp_path / "home", web=web)) as site:
        yield site


async def test_pictures_show_after_a_press_and_the_browser_asks_nobody_else(
    browser: Browser, open_to_here: Site
) -> None:
    async with tiny_site() as far, guarded(browser, open_to_here) as guard:
        far.pages["/offer.png"] = Page(png(200, 80), "image/png")
        proof = authenticated("lists.example")["Authentication-Results"]
        body = (
            f"Authentication-Results: {proof}\r\nContent-Type: text/html\r\n\r\n"
            f'<p>Sale</p><img src="{far.url}/offer.png" alt="The offer"><img src="{far.url}/pixel" width=1 height=1>'
        )
        [key] = await archive_mail(open_to_here, [mail(1, body, sender="Shop <shop@lists.example>")])
        path = f"/mail/{ME}/{key}"
        page = await guard.window.open(path)
        picture = page.frame_locator("iframe").get_by_alt_text("The offer")
        await expect(picture).to_have_count(0)
        assert far.asked == []
        load = page.get_by_role("button", name="Load pictures")
        await load.focus()
        await page.keyboard.press("Enter")
        await expect(picture).to_be_visible()
        assert await picture.evaluate("(image) => [image.naturalWidth, image.naturalHeight]") == [200, 80]
        await expect(page.get_by_role("status").first).to_contain_text("1 picture loaded, 1 tracking picture left out.")
        assert await guard.window.barriers() == []
        await page.get_by_role("button", name="Always for this sender").click()
        await expect(page.get_by_role("button", name="Stop for this sender")).to_be_visible()
        await guard.nothing_happened(path)
        assert far.asked == ["/offer.png"]
        await page.get_by_role("link", name="All such senders").click()
        await page.get_by_role("button", name="Remove").click()
        await expect(page.get_by_text("No sender yet.")).to_be_visible()
    await look_at(browser, open_to_here, path, "/mail/pictures")


async def test_a_list_is_left_from_its_message_and_from_the_page_of_senders(browser: Browser, site: Site) -> None:
    async with dashboard_actions(site) as scene:
        lists = ListMail(site, scene)
        path = await lists.arrives("news@lists.example", list_headers(), name="The News")
        await lists.arrives("deals@shop.example", MAIL_ONLY)
        await lists.arrives("daily@paper.example", LINK_ONLY)
        async with open_window(browser, site) as window:
            page = await window.open(path)
            await page.get_by_role("group", name="Actions on this message").get_by_text("Unsubscribe").first.click()
            await expect(page.get_by_text("Postroom asks lists.example")).to_be_visible()
            await page.get_by_role("button", name="Unsubscribe").click()
            await page.wait_for_url("**/actions/*")
            await expect(page.get_by_role("status").first).to_contain_text("A worker unsubscribes you now")
            page = await window.open("/unsubscribe")
            row = page.get_by_role("row").filter(has_text="daily@paper.example")
            await row.get_by_role("button", name="I unsubscribed there").click()
            await expect(page.get_by_role("heading", name="Unsubscribed")).to_be_visible()
            await page.get_by_role("link", name="Write the mail").click()
            await expect(page.get_by_label("To", exact=True)).to_have_value("leave@shop.example")
            await page.get_by_role("button", name="Send").click()
            await page.wait_for_url("**/actions/*")
            assert window.complaints == []
        made = await site.read(lambda tx: sorted(tx.execute(select(actions.c.type)).scalars()))
        assert made == ["auto_reply", "unsubscribe"]
        await look_at(browser, site, path, "/unsubscribe")
