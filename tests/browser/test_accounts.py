"""Adding a mailbox in a browser: the login opens in another window, and this one knows when it is over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from postroom.settings import DashboardSettings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from tests.support.browser import Window, open_window
from tests.support.dashboards import Site, open_site
from tests.support.dovecot import PASSWORD, dovecot
from tests.support.logins import secrets_file
from tests.support.switchboards import in_a_task

OWNER = "owner@example.com"


@pytest_asyncio.fixture(loop_scope="session")
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """As `postroom up --dev` serves it."""
    async with in_a_task(open_site(tmp_path / "home", dashboard=DashboardSettings(dev=True))) as opened:
        yield opened


async def test_a_login_in_another_window_adds_the_mailbox_here(window: Window, tmp_path: Path) -> None:
    async with running_sim(GeneratedMailbox(3, 1, OWNER)) as sim:
        page = await window.open("/settings")
        await page.get_by_role("link", name="Add a mailbox").click()
        google = page.get_by_role("region", name="Gmail", exact=True)
        await google.get_by_label("Email address").fill(OWNER)
        await google.get_by_role("link", name="Next: the consent screen").click()
        await expect(google.get_by_text("Get started", exact=True)).to_be_visible()
        await google.get_by_role("link", name="Next: publish the app").click()
        await expect(google.get_by_text("Get started", exact=True)).to_be_hidden()
        await google.get_by_label("Or paste its content").fill('{"type": "service_account"}')
        await expect(google.get_by_role("status")).to_contain_text("service account")
        await google.get_by_label("Or paste its content").fill("")
        await google.get_by_label("JSON file from Google's console").set_input_files(secrets_file(tmp_path, sim.url))
        await expect(google.get_by_role("status")).to_contain_text("The client file is good")
        await google.get_by_text("Another server").click()
        await google.get_by_label("Address of the Gmail API").fill(sim.url)
        await google.get_by_role("button", name="Log in with Google").click()
        assert await window.barriers() == []
        async with page.context.expect_page() as opened:
            await page.get_by_role("link", name="Continue to Google").click()
        other = await opened.value
        await expect(other.locator("body")).to_contain_text("You can close this window")
        await expect(page.get_by_role("status")).to_contain_text("The mailbox is added")
        await page.get_by_role("link", name="All mailboxes").click()
        await expect(page.get_by_role("table", name="Mail accounts")).to_contain_text(OWNER)


async def test_without_script_a_token_adds_the_mailbox(plain_page: Page) -> None:
    async with running_sim(GeneratedMailbox(3, 1, OWNER)) as sim:
        await plain_page.goto("/settings/accounts/new")
        stand_in = plain_page.get_by_role("region", name="Simulated mailbox")
        await stand_in.get_by_label("Email address").fill(OWNER)
        await stand_in.get_by_label("Address of the API").fill(sim.url)
        await stand_in.get_by_label("Token").fill("not this one")
        await stand_in.get_by_role("button", name="Add mailbox").click()
        await expect(stand_in.locator(".problem")).to_be_visible()
        await expect(stand_in.get_by_label("Email address")).to_have_value(OWNER)
        await stand_in.get_by_label("Token").fill(sim.token)
        await stand_in.get_by_role("button", name="Add mailbox").click()
        await expect(plain_page.locator("main")).to_contain_text(f"{OWNER} is added")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
async def test_the_page_has_no_barriers_on_any_screen(browser: Browser, site: Site, scheme: str, width: int) -> None:
    view: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    async with open_window(browser, site, **view) as window:
        page = await window.open("/settings/accounts/new")
        assert await window.barriers() == []
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert window.complaints == []


@pytest.mark.req("IM-1")
async def test_without_script_an_imap_mailbox_is_added_and_what_is_wrong_stands_beside_it(plain_page: Page) -> None:
    with dovecot(email=OWNER) as server:
        await plain_page.goto("/settings/accounts/new")
        await plain_page.get_by_role("link", name="Other providers (IMAP)").click()
        await plain_page.get_by_role("link", name="Another server").click()
        await plain_page.get_by_label("Email address").fill(OWNER)
        await plain_page.get_by_label("Password").fill("wrong")
        await plain_page.get_by_label("Host", exact=True).fill("127.0.0.1")
        await plain_page.get_by_label("Port").fill(str(server.port))
        await plain_page.get_by_role("button", name="Check and add").click()
        await expect(plain_page.locator("#e-password")).to_contain_text("refuses the login")
        await expect(plain_page.get_by_label("Host", exact=True)).to_have_value("127.0.0.1")
        await plain_page.get_by_label("Password").fill(PASSWORD)
        await plain_page.get_by_role("button", name="Check and add").click()
        await expect(plain_page.locator("main")).to_contain_text(f"{OWNER} is added")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
async def test_the_imap_page_has_no_barriers_on_any_screen(
    browser: Browser, site: Site, scheme: str, width: int
) -> None:
    view: dict[str, Any] = {"color_scheme": scheme, "viewport": {"width": width, "height": 800}}
    async with open_window(browser, site, **view) as window:
        for query in ("", "?provider=fastmail", "?provider=outlook", "?provider=other"):
            page = await window.open(f"/settings/accounts/imap{query}")
            assert await window.barriers() == []
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
