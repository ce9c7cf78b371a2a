"""A web source that one command follows, a sentinel that was off for a month, and what its owner reads then."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.support.owner import living_at
from tests.support.web_servers import Page, tiny_site
from tests.support.web_sources import numbered

CAP = 15


@pytest.mark.req("WB-1", "WB-5", "WB-11")
async def test_a_sentinel_that_was_off_for_a_month_brings_everything_in_several_looks(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        living_at(home, monkeypatch, 0, web={"max_urls_per_source": CAP, "max_delay_ms": 0}) as owner,
        tiny_site() as site,
    ):
        before, since = numbered("before", 3), numbered("since", 35)
        site.pages |= {path: Page(f"The page {path}".encode(), "text/plain") for path in [*before, *since, "/today"]}
        site.sitemap("/map.xml", [*before, "/today"], dict.fromkeys(before, "2020-01-01"))
        said = await owner.types("web", "add", f"{site.url}/map.xml", "--allow-private", "--slug", "tiny")
        assert "It is a sitemap of 4 pages." in said
        assert "Now following tiny: sitemap" in said
        first = await owner.types("web", "sentinel", "--source", "tiny")
        assert first.splitlines()[1].split() == ["tiny", "sitemap", "4", "1", "0", "3", "0", "0", "0"]
        assert "`postroom web backfill --mode sitemap --source tiny` brings them" in first
        await owner.lets_it_work()

        site.sitemap("/map.xml", [*before, "/today", *since], dict.fromkeys([*before, *since[:9]], "2020-01-01"))
        site.pages["/today"] = Page(b"It says something else now.", "text/plain")
        owner.later += timedelta(days=31)
        looks, left = [], []
        for _ in range(3):
            shown = await owner.types("web", "sentinel", "--source", "tiny")
            looks.append(int(shown.splitlines()[1].split()[3]))
            left += [line for line in shown.splitlines() if "not reached" in line and line.startswith("tiny: ")]
            await owner.lets_it_work(hours=1)
        assert looks == [CAP, CAP, 5]
        goes_on = "The next look goes on with that."
        assert left == [
            f"tiny: 20 new pages were not reached. {goes_on}",
            f"tiny: 5 new pages were not reached. {goes_on}",
        ]
        assert {path: site.times(path) for path in since} == dict.fromkeys(since, 1)
        [view] = [each for each in await owner.reads("web", "sources") if each["source"] == "tiny"]
        assert (view["fetched"], view["failed"], view["waiting"], view["behind_since"]) == (36, 0, 0, None)
        changed = await owner.reads("web", "evidence", "something else")
        assert [each["url"] for each in changed] == [f"{site.url}/today"]
