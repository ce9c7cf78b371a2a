"""Conversations, saved searches and the keyboard in a browser, from the first key to the last without a mouse."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.test_mail_page import mail
from tests.support.browser import Window, tab_to
from tests.support.dashboard_data import add_mailbox, archive_mail
from tests.support.dashboards import Site
from tests.support.mail import ME

pytestmark = pytest.mark.req("UX-1")
INBOX = frozenset({"INBOX", "UNREAD"})


async def furnish(site: Site) -> None:
    """Three conversations: one of three messages, and two of one."""
    await add_mailbox(site)
    talk = [mail(n, labels=INBOX, thread_id="talk", sender=who) for n, who in ((1, "Ann B <ann@x.org>"), (3, ME))]
    await archive_mail(site, [*talk, mail(2, labels=INBOX), mail(4, labels=INBOX)])
    await archive_mail(site, [mail(5, labels=INBOX, thread_id="talk", sender="Bob C <bob@x.org>")])


async def test_conversations_are_archived_and_brought_back_and_pages_reached_by_keys_alone(window: Window) -> None:
    await furnish(window.site)
    page = await window.open("/mail")
    rows, said = page.locator(".mail"), page.get_by_role("status").first
    await expect(rows).to_have_count(3)
    await expect(rows.first.locator(".who")).to_have_text("Ann, me, Bob 3 messages")
    for key in ("j", "x", "j", "j", "Shift+X"):
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected]")).to_have_text("3 selected")
    await page.keyboard.press("x")
    await page.keyboard.press("k")
    await page.keyboard.press("x")
    await page.keyboard.press("e")
    await expect(said).to_contain_text("3 messages in 1 conversation archived.")
    await expect(rows).to_have_count(2)
    await expect(page.get_by_role("link", name="Letter 4")).to_be_focused()
    await page.keyboard.press("z")
    await expect(said).to_contain_text("Undone: 3 changes.")
    await expect(rows).to_have_count(3)
    await expect(page.get_by_role("link", name="Letter 4")).to_be_focused()  # where it was before
    await page.keyboard.press("s")
    await expect(said).to_contain_text("1 message starred.")
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    assert await window.barriers() == []
    await page.keyboard.press("e")  # nothing happens behind the sheet
    await page.keyboard.press("Escape")
    await expect(page.get_by_role("dialog")).to_have_count(0)
    await expect(rows).to_have_count(3)
    for keys, heading in (("ga", "Approvals"), ("gq", "Queue"), ("gi", "Inbox")):
        for key in keys:
            await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
        await page.locator("html[data-keys]").wait_for()  # the heading comes before the script
    for key in "gq":
        await page.keyboard.press(key)
    await expect(page.get_by_role("heading", level=1)).to_have_text("Queue")
    await page.locator("html[data-keys]").wait_for()
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search", exact=True)).to_be_focused()
    await page.keyboard.type("from:ann gq?")  # no key acts while one types
    await expect(page.get_by_label("Search", exact=True)).to_have_value("from:ann gq?")
    await page.get_by_label("Search", exact=True).fill("subject:letter")
    await page.keyboard.press("Enter")
    await expect(page.locator(".hits")).to_contain_text("5 messages match.")
    await tab_to(page, page.locator("summary", has_text="Save search"))
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    await page.keyboard.type("Letters")
    await page.keyboard.press("Enter")
    await expect(said).to_have_text("Search saved as “Letters”.")
    await expect(page.get_by_role("navigation", name="Mail").get_by_role("link", name="Letters")).to_have_attribute(
        "aria-current", "page"
    )
    for width in (390, 768, 1024, 1280, 1600):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
    assert await window.barriers() == []


async def test_conversations_searches_density_and_the_help_work_without_script(plain_page: Page, site: Site) -> None:
    await furnish(site)
    page, said = plain_page, plain_page.get_by_role("status").first
    await page.goto("/mail?query=subject:letter")
    await page.get_by_role("button", name="Compact").click()
    await expect(page.locator(".mails.compact .mail")).to_have_count(3)
    await page.locator("summary", has_text="Save search").click()
    await page.get_by_label("Name").fill("Letters")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(said).to_have_text("Search saved as “Letters”.")
    await page.get_by_role("button", name="Remove saved search").click()
    await expect(said).to_have_text("Saved search “Letters” removed.")
    await page.get_by_label("Select Letter 5").check()
    await page.get_by_role("button", name="Archive").click()
    await expect(said).to_contain_text("3 messages in 1 conversation archived.")
    await page.get_by_role("button", name="Undo").click()
    await expect(said).to_contain_text("Undone: 3 changes.")
    await page.get_by_role("link", name="Keyboard shortcuts").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Keyboard shortcuts")
