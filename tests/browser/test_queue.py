"""The Queue page in a browser: live, by keyboard, without script, without barriers."""

from __future__ import annotations

import asyncio

from playwright.async_api import Page, Route, expect

from postroom.queue import NewJob
from tests.support.browser import Window
from tests.support.dashboards import Site


async def test_the_page_renews_itself_when_a_job_arrives(window: Window) -> None:
    page = await window.open("/queue")
    await window.watched()
    await expect(page.locator("#queue-jobs")).to_contain_text("The queue is empty")
    await window.site.app.queue.enqueue(NewJob("classify"))
    await expect(page.locator("#queue-jobs")).to_contain_text("classify")
    await expect(page.locator("#queue-now")).to_contain_text("1 Waiting")


async def test_whoever_comes_to_a_list_while_it_is_renewed_keeps_their_place(window: Window) -> None:
    await window.site.app.queue.enqueue(NewJob("classify"))
    page = await window.open("/queue")
    await window.watched()
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await may_answer.wait()
        await route.continue_()

    await page.route("**/queue", hold)
    await window.site.app.queue.enqueue(NewJob("queue.prune"))
    await asked.wait()
    link = page.locator("#queue-jobs a", has_text="classify")
    await link.focus()
    may_answer.set()
    await expect(page.locator("#queue-now")).to_contain_text("2 Waiting")
    await expect(link).to_be_focused()


async def test_a_job_is_cancelled_and_retried_by_keyboard_alone(window: Window) -> None:
    await window.site.app.queue.enqueue(NewJob("classify", {"message_id": "m1"}))
    page = await window.open("/queue")
    page.on("dialog", lambda dialog: dialog.accept())
    await page.locator("#queue-jobs a", has_text="classify").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("classify")
    await page.get_by_role("button", name="Cancel").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("The job is cancelled.")
    await page.get_by_role("button", name="Retry").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Waiting")


async def test_skipping_the_navigation_leads_to_the_content(window: Window) -> None:
    page = await window.open("/queue")
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(page.locator("main")).to_be_focused()


async def test_everything_works_without_script(plain_page: Page, site: Site) -> None:
    await site.app.queue.enqueue(NewJob("classify"))
    await plain_page.goto("/queue")
    await plain_page.get_by_label("State").select_option("waiting")
    await plain_page.get_by_role("button", name="Filter").click()
    await plain_page.locator("#queue-jobs a", has_text="classify").click()
    await plain_page.get_by_role("button", name="Cancel").click()
    await expect(plain_page.get_by_role("status")).to_have_text("The job is cancelled.")


async def test_nothing_on_it_is_a_barrier(window: Window) -> None:
    (job,) = await window.site.app.queue.enqueue(NewJob("classify"))
    for path in ("/queue", f"/queue/{job.job_id}", "/queue?state=failed", "/no/such/page"):
        await window.open(path)
        assert await window.barriers() == [], path
    window.complaints.clear()  # of the page that is not there
