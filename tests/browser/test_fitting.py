"""Nothing is cut off: tables show their last column, amounts stand on one line, the room that is open is in sight."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.display.rendering import sections
from postroom.domain.terms import Tier
from postroom.triage.rules.rule import parse_draft
from postroom.triage.rules.store import add_rule
from tests.support import dashboard_data as scene
from tests.support import dashboard_data as web
from tests.support.backfills import BACKFILL_ON
from tests.support.browser import open_window
from tests.support.dashboards import Site, open_site
from tests.support.furnished_dashboards import DAY_OWNER, DAY_RULES, good_day, morning_clock
from tests.support.mail import ME
from tests.support.switchboards import in_a_task

PHONE, TABLET, LAPTOP, DESK = 390, 1024, 1100, 1280
ESTIMATE = {"messages": 200, "messages_left_out": 20, "cost_microdollars": 400_000, "seconds": 7_200}
CAPPED = {"status": "cost_capped", "capped_day": date(2026, 3, 2), "status_reason": "the cap of $5.00 a day is reached"}

_CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth)
  .map((box) => box.querySelector("caption").textContent.trim())"""
_BROKEN = """() => [
  ...[...document.querySelectorAll(".amount")].filter((amount) => amount.getClientRects().length > 1),
  ...[...document.querySelectorAll(".figure .value")].filter(
    (value) => value.clientHeight > 1.5 * parseFloat(getComputedStyle(value).lineHeight)),
].map((element) => element.textContent)"""
_TORN = """() => {
  const torn = [];
  for (const cell of document.querySelectorAll("table :is(th, td)")) {
    if (cell.closest("details:not([open])")) continue;
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode())
      for (const word of node.data.matchAll(/[^\\s-]+/g)) {
        if (!/^[\\p{L}\\d@.,:()“”]{1,17}$/u.test(word[0]) || node.parentElement.closest("pre, .sr")) continue;
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) torn.push(word[0]);
      }
  }
  return torn;
}"""
"""Words of a usual length that stand on two lines."""
_TEARING = """() => [...document.querySelectorAll("td time")]
  .filter((time) => getComputedStyle(time).overflowWrap !== "normal").map((time) => time.textContent)"""
"""Times that may break within a word."""
_TOUCHING = """() => [...document.querySelectorAll("main form .field + :not(.check)")]
  .filter((below) => !below.closest("details:not([open])"))
  .map((below) => [below.previousElementSibling.getBoundingClientRect(), below.getBoundingClientRect(), below])
  .filter(([upper, lower]) => lower.height > 0 && lower.top >= upper.top + 1 && lower.top - upper.bottom < 8)
  .map(([, , below]) => below.textContent.trim())"""
_UNEVEN = """() => [...document.querySelectorAll("main .buttons")].map((row) => [...row.children]
  .map((each) => each.getBoundingClientRect())
  .filter((box) => box.height > 2)
  .filter((box, place, all) => box.top < all[0].bottom)
  .map((box) => Math.round(box.top + box.height / 2)))
  .filter((middles) => Math.max(...middles) - Math.min(...middles) > 1)"""
_HEIGHTS = (
    """() => [...document.querySelectorAll(".filter :is(input, select, button)")].map((each) => each.offsetHeight)"""
)
_IN_SIGHT = """() => {
  const box = document.querySelector(".sections [aria-current]").getBoundingClientRect();
  return box.width > 0 && box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;
}"""


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """A little of everything, in words of a usual length."""
    async with in_a_task(open_site(tmp_path / "home", clock=morning_clock(), **BACKFILL_ON)) as opened:
        await scene.add_mailbox(opened)
        await scene.add_live_mail(opened, {Tier.HIGH_PRIORITY: 2, Tier.INTERACTIVE: 3, Tier.DEFAULT: 5})
        await scene.add_heartbeat(opened)
        await scene.add_failed_jobs(opened, 1)
        await scene.add_backfill_job(opened, spent=29_334, reserved=1_200, estimate=ESTIMATE, **CAPPED)
        await _rules(opened)
        web.follow_sources(opened)
        await web.add_items(opened, {"FETCHED": 214})
        yield opened


async def _rules(site: Site) -> None:
    drafts, now = [parse_draft(rule) for rule in DAY_RULES], site.app.clock.now()
    await site.write(lambda tx: [add_rule(tx, draft, DAY_OWNER, now) for draft in drafts])


async def test_no_table_is_cut_off_and_no_word_or_amount_is_broken(browser: Browser, site: Site) -> None:
    pages = ("/", "/queue", "/backfill", "/rules", "/filters", "/web", "/settings", f"/connectors/gmail/{ME}")
    faults: list[tuple[str, int, str]] = []
    async with open_window(browser, site) as window:
        for path in pages:
            page = await window.open(path)
            for width in (PHONE, TABLET, LAPTOP, DESK):
                await page.set_viewport_size({"width": width, "height": 760})
                found = await page.evaluate(_CUT) + await page.evaluate(_BROKEN) + await page.evaluate(_TORN)
                faults += [(path, width, what) for what in found]
    assert faults == []
    assert window.complaints == []


async def test_on_a_good_day_too_every_table_shows_its_last_column_and_whole_words(
    browser: Browser, tmp_path: Path
) -> None:
    pages = ("/audit", "/actions", "/approvals", "/unsubscribe", "/analytics", "/analytics/responses")
    faults: list[tuple[str, int, str]] = []
    async with open_site(tmp_path / "good-day", clock=morning_clock(), **BACKFILL_ON) as site:
        await good_day(site)
        await site.write(
            lambda tx: audit.record(
                tx, Actor("dashboard", "the demonstration"), "account.add", ("account", ME), site.app.clock.now()
            )
        )
        async with open_window(browser, site) as window:
            for path in pages:
                page = await window.open(path)
                for width in (PHONE, TABLET, DESK):
                    await page.set_viewport_size({"width": width, "height": 760})
                    found = await page.evaluate(_CUT) + await page.evaluate(_TORN) + await page.evaluate(_TEARING)
                    faults += [(path, width, what) for what in found]
        assert faults == []
        assert window.complaints == []


async def test_the_fields_of_a_filter_stand_in_one_line(browser: Browser, site: Site) -> None:
    async with open_window(browser, site) as window:
        page = await window.open("/actions")
        assert len(set(await page.evaluate(_HEIGHTS))) == 1


@pytest.mark.parametrize("script", [True, False], ids=["with script", "without script"])
async def test_on_a_phone_the_room_that_is_open_is_in_sight(browser: Browser, site: Site, script: bool) -> None:
    view: dict[str, Any] = {"viewport": {"width": PHONE, "height": 760}}
    async with open_window(browser, site, script=script, **view) as window:
        for room in sections():
            page = await window.open(room.path)
            await page.get_by_role("button", name="More").click()
            assert await page.evaluate(_IN_SIGHT), room.title
    assert window.complaints == []


async def test_the_fields_of_a_form_keep_apart_and_its_buttons_stand_in_one_line(browser: Browser, site: Site) -> None:
    async with open_window(browser, site) as window:
        for path in ("/archive/restores", "/rules/new", "/backfill/new", "/web", "/ask", "/settings/edit"):
            page = await window.open(path)
            assert await page.evaluate(_TOUCHING) == [], path
            assert await page.evaluate(_UNEVEN) == [], path
    assert window.complaints == []
