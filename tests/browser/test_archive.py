"""The Archive pages in a browser: no barriers, and a watermark that moves by itself."""

from __future__ import annotations

from datetime import UTC, datetime

from playwright.async_api import expect
from sqlalchemy import update

from postroom.db.tables.accounts import sync_states
from postroom.sync.fetch import record_bad
from tests.support.archives import ME
from tests.support.backfills import add_history
from tests.support.browser import Window


async def test_the_archive_is_shown_without_barriers_and_renews_itself(window: Window) -> None:
    account = await add_history(window.site)
    now = window.site.app.clock.now()
    await window.site.write(lambda tx: record_bad(tx, account, "18c1", "cannot be read", 1, now))
    for path in (f"/archive/bad?account={ME}", f"/archive/certificates?account={ME}", "/archive"):
        await window.open(path)
        assert await window.barriers() == [], path
    await window.watched()
    moved = int(datetime(2031, 1, 1, tzinfo=UTC).timestamp())
    later = window.site.app.clock.now()
    await window.site.write(lambda tx: tx.execute(update(sync_states).values(watermark=moved, updated_at=later)))
    await expect(window.page.locator("#archive-now")).to_contain_text("2031-01-01")
