"""Mail in a browser: hostile mail does nothing there, and all the rest works by keyboard, live, and without script."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.dashboard.test_mail_page import TWO_PARTS, mail
from tests.support.browser import Guard, Window
from tests.support.dashboard_data import add_decided_mail, add_mailbox, archive_mail
from tests.support.dashboards import Site
from tests.support.hostile_mail import HTML_BODIES, corpus
from tests.support.mail import ME


@pytest.mark.req("PL-7")
async def test_no_message_of_the_corpus_runs_loads_or_opens_anything(guard: Guard) -> None:
    keys = await archive_mail(guard.window.site, corpus())
    for key in keys:
        path = f"/mail/{ME}/{key}"
        page = await guard.window.open(path)
        await guard.nothing_happened(path)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (
            f"{key} is wider than the page"
        )
    for path in ("/mail", "/mail?query=in:anywhere", *(f"/mail/{ME}/{key}?view=text" for key in keys if "text" in key)):
        await guard.window.open(path)
        await guard.nothing_happened(path)


@pytest.mark.req("PL-7")
async def test_the_policy_of_the_frame_holds_even_without_the_sanitiser(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second wall alone: what the corpus holds is put into the frame as it came."""
    raw = HTML_BODIES["svg"] + HTML_BODIES["styles"] + HTML_BODIES["image-handlers"] + HTML_BODIES["frames"]
    monkeypatch.setattr(
        "postroom.dashboard.display.foreign_content.frame_document", lambda safe: f"<!doctype html>{raw}"
    )
    (key,) = await archive_mail(guard.window.site, [mail(1, TWO_PARTS)])
    path = f"/mail/{ME}/{key}"
    await guard.window.open(path)
    assert guard.strays == []
    assert {request.failure for request in guard.outside} == {"csp", "origin"}  # stopped before they left
    assert await guard.window.page.evaluate("window.heard") is None
    guard.window.complaints.clear()


async def test_a_link_in_a_message_opens_beside_it_and_knows_nothing_of_it(guard: Guard) -> None:
    body = f'Content-Type: text/html\r\n\r\n<a href="{guard.window.site.url}/login?x">go</a>'
    (key,) = await archive_mail(guard.window.site, [mail(1, body)])
    page = await guard.window.open(f"/mail/{ME}/{key}")
    async with page.context.expect_page() as opened:
        await page.frame_locator("iframe").get_by_role("link", name="go").click()
    beside = await opened.value
    await beside.wait_for_load_state()
    assert await beside.evaluate("[window.opener, document.referrer]") == [None, ""]
    guard.strays.clear()


async def test_mail_is_found_and_read_by_keyboard_alone(window: Window) -> None:
    await archive_mail(window.site, [mail(1), mail(2, TWO_PARTS)])
    page = await window.open("/mail")
    await page.get_by_label("Search").focus()
    await page.keyboard.type("has:attachment")
    await page.keyboard.press("Enter")
    await expect(page.locator(".mail")).to_have_count(1)
    await page.get_by_role("link", name="Letter 2").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Letter 2")
    await expect(page.frame_locator("iframe").locator("b")).to_have_text("you")
    await page.get_by_role("link", name="Plain text").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator(".body.text")).to_contain_text("Dear you")


@pytest.mark.req("UX-1")
async def test_messages_are_chosen_archived_starred_and_brought_back_by_keyboard_alone(window: Window) -> None:
    await add_mailbox(window.site)
    labels = frozenset({"INBOX", "UNREAD"})
    await archive_mail(window.site, [mail(number, labels=labels) for number in range(1, 7)])
    page = await window.open("/mail")
    rows = page.locator(".mail")
    for key in ("j", "j", "x", "j", "x"):
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected]")).to_have_text("2 selected")
    await page.keyboard.press("e")
    await expect(page.get_by_role("status").first).to_contain_text("2 messages archived.")
    await expect(rows).to_have_count(4)
    await expect(page.get_by_role("link", name="Letter 3")).to_be_focused()  # it goes on where it was
    assert await window.barriers() == []
    await page.keyboard.press("u")
    await expect(page.get_by_role("status").first).to_contain_text("Undone: 2 changes.")
    await expect(rows).to_have_count(6)
    boxes = page.get_by_role("checkbox", name="Select Letter")
    await boxes.nth(0).click()
    await boxes.nth(3).click(modifiers=["Shift"])
    await expect(page.locator(".mail :checked")).to_have_count(4)
    await page.get_by_label("Select all messages on this page").check()
    await page.keyboard.press("#")
    await expect(page.get_by_role("status").first).to_contain_text("6 messages moved to the trash.")
    await expect(page.get_by_text("Your inbox is empty.")).to_be_visible()
    await page.keyboard.press("z")
    await expect(rows).to_have_count(6)
    await page.keyboard.press("/")
    await expect(page.get_by_label("Search")).to_be_focused()
    await page.keyboard.type("invoice -ha")
    options = page.locator("#completions option")
    await expect(options).to_have_attribute("value", "invoice -has:")
    await page.keyboard.type("s:at")
    await expect(options).to_have_attribute("value", "invoice -has:attachment")
    await page.get_by_role("link", name="Letter 5").focus()
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/mail/*/*")
    for key, subject in (("j", "Letter 4"), ("k", "Letter 5")):
        await page.keyboard.press(key)
        await expect(page.get_by_role("heading", level=1)).to_have_text(subject)
    await page.keyboard.press("s")
    await expect(page.get_by_role("status").first).to_contain_text("1 message starred.")
    await expect(page.get_by_role("button", name="Unstar")).to_be_visible()
    assert await window.barriers() == []
    await page.keyboard.press("b")
    await expect(page.get_by_label("For")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.get_by_role("heading", level=1).click()
    await page.keyboard.press("u")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Inbox")
    for width in (390, 768, 1024, 1280, 1600):
        await page.set_viewport_size({"width": width, "height": 800})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


@pytest.mark.req("UX-1")
async def test_after_a_button_above_the_list_the_focus_is_on_the_mail_it_was_about(window: Window) -> None:
    await archive_mail(window.site, [mail(1), mail(2), mail(3)])
    await add_mailbox(window.site)
    page = await window.open("/mail")
    await page.get_by_role("checkbox", name="Select Letter 2").focus()
    await page.keyboard.press("Space")
    await page.get_by_role("button", name="Star", exact=True).focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status").first).to_contain_text("1 message starred.")
    await expect(page.get_by_role("link", name="Letter 2")).to_be_focused()


async def test_mail_is_acted_on_and_that_is_undone_without_script(plain_page: Page, site: Site) -> None:
    await add_mailbox(site)
    await archive_mail(site, [mail(1), mail(2)])
    await plain_page.goto("/mail")
    await plain_page.get_by_label("Select Letter 1").check()
    await plain_page.locator("summary", has_text="Label").click()
    await plain_page.get_by_label("Label", exact=True).fill("Bills")
    await plain_page.get_by_label("Label", exact=True).press("Enter")
    await expect(plain_page.get_by_role("status").first).to_contain_text("1 message labelled “Bills”.")
    await plain_page.get_by_role("button", name="Undo").click()
    await expect(plain_page.get_by_role("status").first).to_contain_text("Undone: 1 change.")


async def test_the_list_renews_itself_when_mail_comes_in(window: Window) -> None:
    page = await window.open("/mail")
    await window.watched()
    (key,) = await archive_mail(window.site, [mail(1)])
    await add_decided_mail(window.site, key)
    await expect(page.locator("#mail-list")).to_contain_text("Letter 1")


async def test_everything_can_be_read_without_script(plain_page: Page, site: Site) -> None:
    await archive_mail(site, [mail(1), mail(2, TWO_PARTS, thread_id="t1")])
    await plain_page.goto("/mail")
    await plain_page.get_by_role("link", name="Letter 2").click()
    await expect(plain_page.frame_locator("iframe").locator("b")).to_have_text("you")
    async with plain_page.expect_download() as saved:
        await plain_page.get_by_role("link", name="page.html").click()
    assert (await saved.value).suggested_filename == "page.html"
    await plain_page.get_by_role("link", name="Read all 2").click()
    await expect(plain_page.locator(".thread > li")).to_have_count(2)


async def test_nothing_on_it_is_a_barrier(window: Window) -> None:
    keys = await archive_mail(window.site, [mail(1), mail(2, TWO_PARTS, thread_id="t1")])
    await add_decided_mail(window.site, keys[1], action="archive", needs_review=True)
    for path in ("/mail", "/mail?query=a%20(", "/mail?query=nothing", f"/mail/{ME}/{keys[0]}", f"/mail/{ME}/{keys[1]}"):
        await window.open(path)
        assert await window.barriers() == [], path
    await window.open(f"/mail/{ME}/{keys[1]}/thread")
    assert await window.barriers() == []
    window.complaints.clear()  # of the query that was refused
