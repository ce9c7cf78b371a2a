"""Approvals in a browser: decided by keyboard alone and without script; too late is said; a new question appears."""

from __future__ import annotations

from datetime import timedelta

import pytest
from playwright.async_api import Page, expect
from sqlalchemy import update

from postroom.db.tables.triage import actions
from tests.dashboard.test_approvals_page import HOSTILE, ask, status
from tests.dashboard.test_review_page import keys_left, leave
from tests.support.browser import Window, tab_to
from tests.support.dashboards import Site

pytestmark = pytest.mark.req("JB-16")


async def expire(site: Site, action_id: str) -> None:
    past = site.app.clock.now() - timedelta(hours=1)
    values = {"created_at": past - timedelta(days=1), "expires_at": past}
    await site.write(lambda tx: tx.execute(update(actions).where(actions.c.id == action_id).values(**values)))


@pytest.mark.req("UX-1")
async def test_questions_are_decided_by_keys_alone(window: Window) -> None:
    site, said = window.site, window.page.get_by_role("status")
    ids = [await ask(site, subject) for subject in ("Lunch?", HOSTILE, "Sale", "Dinner")]
    page = await window.open("/approvals")
    assert await window.barriers() == []
    for key in "jxjx":
        await page.keyboard.press(key)
    await expect(page.locator("[data-selected]")).to_have_text("2 selected")
    await page.keyboard.press("a")
    await expect(said).to_have_text("2 actions approved.")
    assert [await status(site, each) for each in ids] == ["queued", "queued", "approved_pending", "approved_pending"]
    await page.keyboard.press("z")
    await expect(said).to_have_text("2 actions wait for approval again.")
    for key in "jjjjk":
        await page.keyboard.press(key)
    await page.keyboard.press("r")
    await expect(said).to_have_text("Rejected.")
    assert [await status(site, each) for each in ids][2] == "rejected", "with nothing selected, the row with the focus"
    await expect(page.locator(f"#q-{ids[3]}")).to_be_focused()
    await page.keyboard.press("a")
    await expect(said).to_have_text("Approved.")
    assert await status(site, ids[3]) == "queued"


@pytest.mark.req("UX-1")
async def test_boxes_select_groups_and_what_cannot_be_undone_is_confirmed_once(window: Window) -> None:
    site, page = window.site, window.page
    ids = [await ask(site, f"Lunch {number}") for number in range(3)]
    reply = await ask(site, "Dinner?", "auto_reply", body="With pleasure.")
    await window.open("/approvals")
    await page.get_by_role("checkbox", name="Select all 3").check()
    await page.get_by_role("checkbox", name="Select Lunch 1").uncheck()
    assert await page.locator("[data-all]").evaluate_all("boxes => boxes.map((box) => box.checked)") == [False] * 3
    await page.get_by_role("checkbox", name="Select Dinner?").check()
    await page.keyboard.press("a")
    await expect(page.locator("h1")).to_have_text("This cannot be undone")
    assert await window.barriers() == []
    await expect(page.locator("article")).to_contain_text("With pleasure.")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_have_text("3 actions approved.")
    states = [await status(site, each) for each in (*ids, reply)]
    assert states == ["queued", "approved_pending", "queued", "queued"]


async def test_an_answer_that_comes_too_late_does_nothing_and_says_so(window: Window) -> None:
    late, taken = await ask(window.site, "Late"), await ask(window.site, "Taken")
    page = await window.open("/approvals")
    await expire(window.site, late)
    await page.get_by_role("button", name="Approve Late").click()
    await expect(page.get_by_role("status")).to_contain_text("too late: it is expired: no answer in time")
    assert await status(window.site, late) == "expired"
    await tab_to(page, page.get_by_role("button", name="Approve Taken"))  # a region in use is not renewed
    await window.site.api("POST", f"/approvals/{taken}", json={"verdict": "reject"})
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("too late: it is rejected by dashboard owner")
    assert await status(window.site, taken) == "rejected"


async def test_a_new_question_appears_by_itself(window: Window) -> None:
    page = await window.open("/approvals")
    await window.watched()
    await ask(window.site, "Something new")
    await expect(page.locator("#approvals")).to_contain_text("Something new")


async def test_questions_are_answered_without_script(plain_page: Page, site: Site) -> None:
    ids = [await ask(site, f"Lunch {number}") for number in range(4)]
    await plain_page.goto("/approvals")
    await plain_page.get_by_role("button", name="Reject Lunch 0").click()
    await expect(plain_page.get_by_role("status")).to_have_text("Rejected.")
    await plain_page.get_by_role("checkbox", name="Select Lunch 1").check()
    await plain_page.get_by_role("button", name="Approve selected").click()
    await expect(plain_page.get_by_role("status")).to_have_text("Approved.")
    await plain_page.get_by_role("button", name="Undo").click()
    await expect(plain_page.get_by_role("status")).to_have_text("1 action waits for approval again.")
    await plain_page.locator("input[name=group]").check()
    await plain_page.get_by_role("button", name="Approve selected").click()
    await expect(plain_page.get_by_role("status")).to_have_text("3 actions approved.")
    assert [await status(site, each) for each in ids] == ["rejected", "queued", "queued", "queued"]


@pytest.mark.req("UX-1")
async def test_review_is_worked_off_by_the_same_keys(window: Window) -> None:
    items = [await leave(window.site, f"m{number}") for number in range(4)]
    page = await window.open("/review")
    said = page.get_by_role("status")
    assert await window.barriers() == []
    for key in "jxjxd":
        await page.keyboard.press(key)
    await expect(said).to_have_text("2 messages marked as reviewed.")
    await page.keyboard.press("z")
    await expect(said).to_have_text("2 messages are back on the list.")
    await page.keyboard.press("a")  # on the row that was in use before the undo
    await expect(said).to_have_text("Archive: 1 message.")
    await expect(page.locator(f"#q-{items[1]}")).to_be_focused()
    await page.keyboard.press("r")
    await expect(said).to_have_text("1 message will be judged again.")
    assert await keys_left(window.site) == ["m3", "m0"]
