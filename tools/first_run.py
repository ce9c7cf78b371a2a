"""How long the first run takes: `python -m tools.first_run [MESSAGES]` goes from an empty home to a triaged inbox in a
browser, with the settings of an installation as it comes, and prints clicks, fields and seconds.

docs/guide.md has the figures; `tests/browser/test_first_run.py` fails when the clicks differ from them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.async_api import async_playwright
from tests.support.first_day import everything_up, first_settings, new_owner, triage_the_inbox

from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim


async def measure(messages: int) -> None:
    chromium = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as folder:
        async with (
            running_sim(GeneratedMailbox(messages, 3, "owner@example.com"), quota="2026") as sim,
            everything_up(first_settings(Path(folder) / "home")) as (_, link),
            async_playwright() as playwright,
        ):
            browser = await playwright.chromium.launch(executable_path=chromium, args=sandbox)
            async with new_owner(browser) as owner:
                await triage_the_inbox(owner, link, sim)
                for step, seconds in owner.seconds.items():
                    print(f"{step:<15} {seconds:6.1f} s")
                print(f"{owner.clicks} clicks and {owner.fields} fields, {owner.total_s:.0f} s, {messages} messages")
            await browser.close()


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
