"""The digest: what came, what was done and by whom, what waits and what was spent, of a chosen day or week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from postroom.domain.clock import ManualClock
from postroom.domain.roles import Role
from postroom.domain.terms import Tier
from postroom.settings import DigestSettings
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import ME

pytestmark = pytest.mark.req("UX-3")


async def furnish(site: Site) -> None:
    await scene.add_live_mail(site, {Tier.HIGH_PRIORITY: 2, Tier.DEFAULT: 3}, category="finance")
    await scene.add_live_mail(site, {Tier.DEFAULT: 4}, timedelta(days=1), sender_identity="shop@example.com")
    await scene.add_decided_mail(site, "18f1", action="archive")
    await scene.add_decided_mail(site, "18f2", needs_review=True, review_cause="budget")
    await scene.add_model_call(site, 120_000)


async def test_page_and_api_count_the_same_and_lead_to_the_mail(site: Site) -> None:
    await furnish(site)
    now = site.app.clock.now()
    found = (await site.api("GET", "/digest")).json()
    assert (found["received"], found["needs_review"], found["needs_approval"]) == (7, 1, 0)
    assert found["by_tier"][0] == {"name": "High priority", "count": 4}
    assert {each["name"]: each["count"] for each in found["by_category"]} == {"Finance": 5, "Other mail": 2}
    assert found["done"] == [{"by": "Model", "what": "archived", "count": 1}]
    assert (found["model_calls"], found["spent_microdollars"]) == (1, 120_000)
    page = await site.get("/digest")
    said = text_of(page.text)
    assert f"{now:%A}, {now.day} {now:%B %Y}" in said
    for words in ("7 received", "1 needs review", "$0.12 spent", "Model Archived 1", "By e-mail: off"):
        assert words in said, words
    assert 'rel="next"' not in page.text
    yesterday = f"{now - timedelta(days=1):%Y-%m-%d}"
    before = text_of((await site.get(f"/digest?day={yesterday}")).text)
    assert "4 received" in before
    assert "shop@example.com" in before
    week = (await site.api("GET", f"/digest?period=week&day={yesterday}")).json()
    assert week["received"] in (4, 11)  # by whether a week began since
    assert (await site.api("GET", f"/digest?account={ME}")).json()["received"] == 7
    assert (await site.api("GET", "/digest?account=other@example.org")).json()["received"] == 0


async def test_an_undo_is_shown_as_what_was_taken_back(site: Site) -> None:
    async with scene.dashboard_actions(site) as mailbox:
        for action, labels, given in (("archive", ["INBOX"], {}), ("apply_label", ["INBOX"], {"label": "Receipts"})):
            _, done = await mailbox.do(action, *labels, **given)
            await mailbox.undo(done.id)
        said = text_of((await site.get("/digest")).text)
        assert "Undo Label taken back 1" in said
        assert "Undo Moved back to the inbox 1" in said
        found = (await site.api("GET", "/digest")).json()
        undone = {each["what"]: each["count"] for each in found["done"] if each["by"] == "Undo"}
        assert undone == {"label taken back": 1, "moved back to the inbox": 1}


async def test_any_day_can_be_chosen_and_what_is_none_is_refused(site: Site) -> None:
    empty = text_of((await site.get("/digest?period=week&day=1999-12-31&account=")).text)
    assert "27 December 1999 to 2 January 2000" in empty
    assert "No mail was received." in empty
    assert "No action taken." in empty
    assert (await site.get("/digest?day=")).status_code == 200
    for wrong in ("day=yesterday", "period=year", "day=99999-01-01"):
        assert (await site.get(f"/digest?{wrong}")).status_code == 422
    token = await site.token(Role.DASHBOARD, endpoint_identity=ME)
    async with site.stranger(headers={"Authorization": f"Bearer {token}"}) as http:
        assert (await http.get("/api/digest")).status_code == 403
        assert (await http.get(f"/api/digest?account={ME}")).status_code == 200


async def test_days_are_those_of_the_owner(tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 11, 16, 23, 30, tzinfo=UTC))
    settings = DigestSettings(every="weekly", zone="Europe/Zagreb")
    async with open_site(tmp_path / "home", clock=clock, digest=settings) as site:
        await scene.add_mailbox(site)
        await scene.add_live_mail(site, {Tier.DEFAULT: 1})
        found = (await site.api("GET", "/digest")).json()
        assert (found["title"], found["received"]) == ("Tuesday, 17 November 2026", 1)
        said = text_of((await site.get("/digest")).text)
        assert f"By e-mail: weekly at 07:00 to {ME}" in said
