"""Approvals in a browser: answered by keyboard alone and without script; too late is said; a new question appears."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import Dialog, Page, expect
from sqlalchemy import update

from postroom.db.tables.triage import actions
from tests.dashboard.test_approvals_page import HOSTILE, ask, status
from tests.support.browser import Window, tab_to
from tests.support.dashboards import Site

pytestmark = pytest.mark.req("JB-16")


async def expire(site: Site, action_id: str) -> None:
    past = site.app.clock.now() - timedelta(hours=1)
    values = {"created_at": past - timedelta(days=1), "expires_at": past}
    await site.write(lambda tx: tx.execute(update(actions).where(actions.c.id == action_id).values(**values)))


async def test_questions_are_approved_and_rejected_by_keyboard_alone(window: Window) -> None:
    first, second = await ask(window.site, "Lunch?"), await ask(window.site, HOSTILE)
    page = await window.open("/approvals")
    asked: list[str] = []

    async def agree(dialog: Dialog) -> None:
        asked.append(dialog.message)
        await dialog.accept()

    page.on("dialog", agree)
    assert await window.barriers() == []
    await tab_to(page, page.get_by_role("button", name="Approve").first)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Approved; a worker does it now.")
    assert asked == ["Do this?"]
    await tab_to(page, page.get_by_role("button", name="Reject"))
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("Rejected; nothing is done.")
    await expect(page.locator("#approvals")).to_contain_text("Nothing waits for you.")
    assert (await status(window.site, first), await status(window.site, second)) == ("queued", "rejected")


async def test_whoever_thinks_better_of_it_has_approved_nothing(window: Window) -> None:
    action_id = await ask(window.site)
    page = await window.open("/approvals")
    page.on("dialog", lambda dialog: dialog.dismiss())
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    assert await status(window.site, action_id) == "approved_pending"


async def test_an_answer_that_comes_too_late_does_nothing_and_says_so(window: Window) -> None:
    late, taken = await ask(window.site, "Late"), await ask(window.site, "Taken")
    page = await window.open("/approvals")
    page.on("dialog", lambda dialog: dialog.accept())
    await expire(window.site, late)
    await page.get_by_role("button", name="Approve").first.click()
    await expect(page.get_by_role("status")).to_contain_text("too late: it is expired: no answer in time")
    assert await status(window.site, late) == "expired"
    await page.get_by_role("button", name="Approve").focus()  # a region in use is not renewed under one's hands
    await window.site.api("POST", f"/approvals/{taken}", json={"verdict": "reject"})
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("too late: it is rejected by dashboard owner")
    assert await status(window.site, taken) == "rejected"


async def test_a_new_question_appears_by_itself(window: Window) -> None:
    page = await window.open("/approvals")
    await window.watched()
    await ask(window.site, "Something new")
    await expect(page.locator("#approvals")).to_contain_text("Something new")


@pytest.mark.parametrize(("button", "becomes"), [("Approve", "queued"), ("Reject", "rejected")])
async def test_questions_are_answered_without_script(plain_page: Page, site: Site, button: str, becomes: str) -> None:
    action_id = await ask(site)
    await plain_page.goto("/approvals")
    await plain_page.get_by_role("button", name=button).click()
    await expect(plain_page.get_by_role("status")).to_be_visible()
    assert await status(site, action_id) == becomes
