"""The Actions pages in a browser: an undo that is seen to happen, sleeping mail, without script, without barriers."""

from __future__ import annotations

from playwright.async_api import Browser, Page, expect

from tests.support.browser import Window, look_at
from tests.support.dashboard_data import HOSTILE_TEXT, add_decision, add_one_rule, dashboard_actions, message_at
from tests.support.dashboards import Site


async def test_an_action_is_found_undone_and_seen_to_be_undone(window: Window) -> None:
    async with dashboard_actions(window.site) as scene:
        ids = await message_at(scene, "INBOX", subject="Your receipt")
        await add_decision(scene, ids, "archive", by=await add_one_rule(window.site))
        await add_decision(scene, await message_at(scene, "INBOX", subject="News"), "star")
        page = await window.open("/actions")
        await window.watched()
        await expect(page.locator("#actions-list")).to_contain_text("Queued")
        await scene.work()
        await expect(page.locator("#actions-list")).not_to_contain_text("Queued")
        await page.get_by_label("Subject or sender").fill("receipt")
        await page.keyboard.press("Enter")
        await page.get_by_role("link", name="Archive the message").click()
        await expect(page.locator("#action")).to_contain_text("The rule Receipts matched.")
        await page.get_by_role("button", name="Undo").click()
        await expect(page.get_by_role("status")).to_contain_text("Undoing has started")
        await window.watched()
        await scene.work()
        await expect(page.locator("#action")).to_contain_text("Undone")
        await expect(page.get_by_role("button", name="Undo")).to_have_count(0)
        assert scene.labels(ids[0]) == {"INBOX"}


async def test_sleeping_mail_is_woken_and_all_is_read_without_script(plain_page: Page, site: Site) -> None:
    async with dashboard_actions(site) as scene:
        gmail_id, _ = await message_at(scene, "INBOX", subject="Pay the rent")
        await scene.want(gmail_id, "snooze", amount=2, units="days")
        await scene.work()
        await plain_page.goto("/actions")
        await plain_page.get_by_label("Type").select_option("snooze")
        await plain_page.get_by_role("button", name="Filter").click()
        await plain_page.get_by_role("link", name="Snooze the message for 2 days").click()
        await expect(plain_page.get_by_role("heading", name="Steps")).to_be_visible()
        await plain_page.goto("/actions/snoozed")
        await plain_page.get_by_label("Snooze for").select_option("168")
        await plain_page.get_by_role("button", name="Snooze").click()
        await expect(plain_page.get_by_role("status")).to_contain_text("in 1 week")
        await plain_page.get_by_role("button", name="Return now").click()
        await expect(plain_page.get_by_role("status")).to_contain_text("returns")
        scene.clock.advance(60)
        await scene.work()
        await plain_page.reload()
        await expect(plain_page.locator("#snoozed")).to_contain_text("No mail is snoozed.")


async def test_no_page_has_barriers_overflows_or_runs_what_it_shows(browser: Browser, site: Site) -> None:
    words = HOSTILE_TEXT + "unbroken" * 30
    async with dashboard_actions(site) as scene:
        ids = await message_at(scene, "INBOX", subject=words, sender_identity=words)
        [action_id] = await add_decision(scene, ids, f"apply_label={HOSTILE_TEXT}", reason=words)
        [asked] = await add_decision(scene, await message_at(scene, subject=words), "trash", reason=words, why=words)
        await scene.want((await message_at(scene, "INBOX", subject=words))[0], "snooze", amount=1, units="hours")
        await scene.work()
        await look_at(browser, site, "/actions", f"/actions/{action_id}", f"/actions/{asked}", "/actions/snoozed")
