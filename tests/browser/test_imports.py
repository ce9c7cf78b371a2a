"""A file dropped on the archive page is imported before the reader's eyes; without script the form does the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from postroom.app import archive_runner
from tests.support.archives import ME, plain_letter
from tests.support.browser import Window
from tests.support.dashboards import Site

pytestmark = pytest.mark.req("SY-16")

_DROP = """([name, text]) => {
  const moved = new DataTransfer();
  moved.items.add(new File([text], name));
  return moved;
}"""


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_runner, "_LOOK_EVERY_S", 0.05)


async def test_a_dropped_file_is_imported_and_one_that_is_no_mail_is_refused(window: Window) -> None:
    page = await window.open("/archive")
    await window.watched()
    await page.get_by_label("Whose mail it is").fill(ME)
    for name, text in (("holiday.png", "\x89PNG"), ("letter.eml", plain_letter().decode())):
        moved = await page.evaluate_handle(_DROP, [name, text])
        for event in ("dragover", "drop"):
            await page.dispatch_event("[data-drop]", event, {"dataTransfer": moved})
        if name == "holiday.png":
            await expect(page.locator(".problem")).to_contain_text("holiday.png is not mail")
            assert await page.get_by_label("Whose mail it is").input_value() == ME
    row = page.locator("#archive-imports tbody tr")
    await expect(row).to_contain_text("Completed", ignore_case=True)
    await expect(row).to_contain_text("1 stored")
    assert await window.barriers() == []
    # Chromium reports each refused form as a failed resource.
    window.complaints[:] = [each for each in window.complaints if "422" not in each]


async def test_without_script_the_form_sends_its_file(plain_page: Page, site: Site, tmp_path: Path) -> None:
    (tmp_path / "one.eml").write_bytes(plain_letter())
    await plain_page.goto("/archive")
    await plain_page.get_by_label("Whose mail it is").fill(ME)
    await plain_page.get_by_label("Files").set_input_files(tmp_path / "one.eml")
    await plain_page.get_by_role("button", name="Import").click()
    await expect(plain_page.locator("#archive-imports tbody tr")).to_contain_text("one.eml")
