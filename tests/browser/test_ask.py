"""The page Ask in a browser: by keyboard, with and without script, without barriers, from a phone to a wide screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, expect

from postroom.sim.model.server import running_model
from tests.dashboard.test_ask_page import QUESTION, QUOTE, answering, furnish
from tests.support.browser import open_window
from tests.support.dashboards import open_site
from tests.support.switchboards import in_a_task
from tests.support.triage import settings_for

pytestmark = pytest.mark.req("FD-4")


@pytest.mark.parametrize(("script", "width"), [(True, 1280), (False, 390)])
async def test_a_question_is_asked_and_its_quote_leads_to_the_message(
    browser: Browser, tmp_path: Path, script: bool, width: int
) -> None:
    view: dict[str, Any] = {"viewport": {"width": width, "height": 800}}
    answer = answering(
        ("You last visited Dr. Smith on 12 March.", QUOTE), ("It is free.", "answer that the visit is free of charge")
    )
    async with running_model() as sim, in_a_task(open_site(tmp_path / "home", model=settings_for(sim))) as site:
        await furnish(site)
        sim.responder.stage.queue.append(answer)
        async with open_window(browser, site, script=script, **view) as window:
            page = await window.open("/ask")
            assert sim.responder.tally.requests == 0
            field = page.get_by_role("textbox", name="Question")
            await field.fill(QUESTION)
            await field.press("Enter")
            await expect(page.get_by_role("heading", name="Answer")).to_be_visible()
            await expect(page.get_by_label("Sentences with their messages")).to_contain_text("12 March")
            await expect(field).to_have_value(QUESTION)
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            if script:
                assert await window.barriers() == []
            await page.get_by_role("link", name="Your <i>visit</i>").first.click()
            await expect(page.locator("main")).to_contain_text("Dr. Smith")
        assert window.complaints == []
