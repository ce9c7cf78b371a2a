"""From an empty home to a triaged inbox, in a browser, as a new owner goes: every click and field is counted.

Everything runs in this process, as `postroom up --dev` does; the mailbox is a stand-in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from playwright.async_api import Browser, Locator, Page, expect

from postroom.app import App, open_app
from postroom.app.serving import RunningSwitchboard
from postroom.app.up import run_everything
from postroom.audit import Actor
from postroom.dashboard.security.passphrase import first_link
from postroom.dashboard.server import Dashboard
from postroom.domain.clock import SystemClock
from postroom.settings import DashboardSettings, Settings, SwitchboardSettings, SyncSettings
from postroom.sim.gmail.server import GmailSim

PHRASE = "correct horse battery staple"
_LONG_MS = 60_000


@dataclass
class NewOwner:
    """A person at a browser."""

    page: Page
    clicks: int = 0
    fields: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    _since: float = field(default_factory=lambda: SystemClock().monotonic())

    async def click(self, what: Locator) -> None:
        self.clicks += 1
        await what.click()

    async def choose(self, what: Locator, option: str) -> None:
        self.clicks += 1
        await what.select_option(option)

    async def fill(self, what: Locator, text: str) -> None:
        self.fields += 1
        await what.fill(text)

    def done(self, step: str) -> None:
        """The time since the step before is this step's."""
        now = SystemClock().monotonic()
        self.seconds[step], self._since = now - self._since, now

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


def first_settings(home: Path, sync: SyncSettings | None = None) -> Settings:
    home.mkdir(mode=0o700, parents=True)
    dashboard, switchboard = DashboardSettings(dev=True), SwitchboardSettings(port=0)
    return Settings(home=home, dashboard=dashboard, switchboard=switchboard, sync=sync or SyncSettings())


@asynccontextmanager
async def everything_up(settings: Settings) -> AsyncIterator[tuple[App, str]]:
    """The installation, and the link that its first start prints."""
    stop = asyncio.Event()
    async with open_app(settings) as app:
        link: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def ready(running: RunningSwitchboard) -> None:
            link.set_result(await first_link(app, running.url, Actor("cli", "owner")) or "")

        running = asyncio.create_task(run_everything(app, Dashboard, stop, ready))
        try:
            running.add_done_callback(lambda _: link.done() or link.cancel())
            yield app, await link
        finally:
            stop.set()
            await running


@asynccontextmanager
async def new_owner(browser: Browser) -> AsyncIterator[NewOwner]:
    context = await browser.new_context()
    context.set_default_timeout(_LONG_MS)
    try:
        yield NewOwner(await context.new_page())
    finally:
        await context.close()


async def triage_the_inbox(owner: NewOwner, link: str, sim: GmailSim) -> None:
    """Passphrase, mailbox, first mail, a rule, and that rule applied to what is in the inbox."""
    page = owner.page
    page.on("dialog", lambda dialog: dialog.accept())
    await _choose_passphrase(owner, link)
    await _add_mailbox(owner, sim)
    await _wait_for_mail(owner)
    await _make_rule(owner)
    await _apply_rule(owner)
    async with asyncio.timeout(_LONG_MS / 1_000):
        while newsletters_in(sim):
            await asyncio.sleep(0.05)
    owner.done("inbox triaged")


def newsletters_in(sim: GmailSim) -> int:
    """How many are in the inbox, as the mailbox truly has it."""
    ids = [str(mail["id"]) for mail in sim.control.truth(hashes=False)]
    inbox = [each for each in ids if "INBOX" in sim.control.labels_of(each)]
    return sum(b"\nlist-unsubscribe:" in sim.control.raw(each).lower() for each in inbox)


async def _choose_passphrase(owner: NewOwner, link: str) -> None:
    page = owner.page
    await page.goto(link)
    await owner.fill(page.get_by_label("Passphrase", exact=True), PHRASE)
    await owner.fill(page.get_by_label("Repeat the passphrase"), PHRASE)
    await owner.click(page.get_by_role("button", name="Set passphrase and log in"))
    await expect(page.get_by_role("heading", name="Getting started")).to_be_visible()
    owner.done("passphrase")


async def _add_mailbox(owner: NewOwner, sim: GmailSim) -> None:
    page = owner.page
    await owner.click(page.locator(".checklist .next").get_by_role("link", name="Add a mailbox"))
    form = page.get_by_role("region", name="Simulated mailbox")
    await owner.fill(form.get_by_label("Email address"), sim.email)
    await owner.fill(form.get_by_label("Address of the API"), sim.url)
    await owner.fill(form.get_by_label("Token"), sim.token)
    await owner.click(form.get_by_role("button", name="Add mailbox"))
    await expect(page.get_by_role("status")).to_contain_text(f"{sim.email} is added")
    owner.done("mailbox")


async def _wait_for_mail(owner: NewOwner) -> None:
    page = owner.page
    await owner.click(page.get_by_role("navigation", name="Main").get_by_role("link", name="Overview"))
    await expect(page.locator(".checklist li", has_text="First mail archived")).to_have_class("done", timeout=_LONG_MS)
    await expect(page.get_by_role("row").filter(has_text="Up to date")).to_be_visible(timeout=_LONG_MS)
    owner.done("mail archived")


async def _make_rule(owner: NewOwner) -> None:
    page = owner.page
    await owner.click(page.locator(".checklist").get_by_role("link", name="Make your first rule"))
    await owner.fill(page.get_by_label("Name"), "Newsletters")
    await owner.click(page.get_by_text("More conditions"))
    await owner.fill(page.get_by_label("Header"), "List-Unsubscribe")
    await owner.choose(page.get_by_label("Action 1"), "archive")
    await owner.click(page.get_by_role("button", name="Save"))
    await expect(page.get_by_role("status")).to_contain_text("The rule is saved.")
    owner.done("rule")


async def _apply_rule(owner: NewOwner) -> None:
    page = owner.page
    owner.clicks += 1  # the question whether to apply it
    await owner.click(page.get_by_role("button", name="Apply"))
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Completed", timeout=_LONG_MS)
    await owner.click(page.get_by_role("navigation", name="Main").get_by_role("link", name="Mail", exact=True))
    await expect(page.get_by_role("heading", level=1)).to_contain_text("Inbox")
