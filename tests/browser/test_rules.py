"""The Rules pages in a browser: the editor by keyboard alone, a trial before saving, without script or barriers."""

from __future__ import annotations

from playwright.async_api import Browser, Page, expect

from tests.dashboard.test_rules_page import letter
from tests.support.browser import Window, look_at
from tests.support.dashboard_data import HOSTILE_TEXT, add_one_rule, archive_mail
from tests.support.dashboards import Site


async def test_a_rule_is_written_tried_mended_and_saved_by_keyboard_alone(window: Window) -> None:
    await archive_mail(window.site, [letter(1), letter(2), letter(3, "ann@friends.example", "Lunch")])
    page = await window.open("/rules")
    await page.get_by_role("link", name="New rule").focus()
    await page.keyboard.press("Enter")
    await _type_into(page, "Name", "Receipts")
    await _type_into(page, "From a domain", "shop.example")
    await page.get_by_label("Action 1").focus()
    await page.keyboard.type("Archive")
    await page.get_by_role("button", name="Try it").focus()
    await page.keyboard.press("Enter")
    await expect(page.locator("#tried")).to_contain_text("2 messages of the newest 3 would have matched.")
    await expect(page.locator("#tried").get_by_role("link", name="Your receipt")).to_have_count(2)
    await _type_into(page, "From", "nobody")
    await page.get_by_role("button", name="Save").focus()
    await page.keyboard.press("Enter")
    wrong = page.get_by_label("From", exact=True)
    await expect(wrong).to_be_focused()
    await expect(wrong).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Name")).to_have_value("Receipts")
    await page.keyboard.press("Control+A")
    await page.keyboard.press("Delete")
    await page.get_by_label("Name").focus()
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("The rule is saved.")
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Receipts")
    window.complaints.clear()  # of the status 422


async def test_rules_are_ordered_switched_and_removed_without_script(plain_page: Page, site: Site) -> None:
    for name in ("First", "Second"):
        await add_one_rule(site, name)
    await plain_page.goto("/rules")
    await plain_page.get_by_role("button", name="Move Second up").click()
    await expect(plain_page.locator("tbody th a").first).to_have_text("Second")
    await plain_page.get_by_role("button", name="Switch off Second").click()
    await expect(plain_page.get_by_role("status")).to_have_text("The rule Second is off.")
    await plain_page.get_by_role("link", name="First").click()
    await plain_page.get_by_role("link", name="Remove").click()
    await plain_page.get_by_role("button", name="Remove the rule").click()
    await expect(plain_page.get_by_role("status")).to_contain_text("The rule First is removed.")
    await expect(plain_page.locator("tbody tr")).to_have_count(1)


async def test_the_model_is_told_something_changed_and_removed(window: Window) -> None:
    page = await window.open("/rules/instructions")
    page.on("dialog", lambda dialog: dialog.accept())
    await page.get_by_label("New direction").fill("Be brief.")
    await page.get_by_role("button", name="Add direction").click()
    await page.get_by_label("Name").fill("Shops")
    await page.get_by_label("Applies to").select_option("domain")
    await page.get_by_label("Which").fill("shop.example")
    await page.get_by_label("Guidance text").fill("Offers may go.")
    await page.get_by_role("button", name="Add guidance").click()
    await expect(page.locator("#guidance-list")).to_contain_text("mail from shop.example and its subdomains")
    await page.get_by_role("link", name="Edit direction 1").click()
    await page.get_by_label("Direction for all mail").fill("Be kind.")
    await page.get_by_role("button", name="Save").click()
    await expect(page.locator("#directions-list")).to_contain_text("Be kind.")
    await page.get_by_role("link", name="Edit Shops").click()
    await page.get_by_role("button", name="Remove guidance").click()
    await expect(page.get_by_role("status")).to_have_text("The guidance Shops is removed.")


async def test_no_page_has_barriers_overflows_or_runs_what_it_shows(browser: Browser, site: Site) -> None:
    words = HOSTILE_TEXT.replace("\u202e", "")
    await archive_mail(site, [letter(1, f'"{words}" <x@shop.example>', words)])
    made = await add_one_rule(site, words, [f"apply_label={HOSTILE_TEXT}", "trash"], enabled=False)
    tree = await add_one_rule(site, "Tree", condition={"any": [{"subject_contains": HOSTILE_TEXT + "unbroken" * 20}]})
    await site.post("/rules/directions", direction=HOSTILE_TEXT)
    await site.post("/rules/guidance", name=words, whose_mail="global", text=HOSTILE_TEXT)
    paths = ["/rules", "/rules/new", "/rules/instructions", f"/rules/{made.id}/try", f"/rules/{made.id}/edit"]
    paths += [f"/rules/{tree.id}", f"/rules/{tree.id}/edit", f"/rules/{tree.id}/remove"]
    await look_at(browser, site, *paths)


async def _type_into(page: Page, label: str, text: str) -> None:
    await page.get_by_label(label, exact=True).focus()
    await page.keyboard.type(text)
