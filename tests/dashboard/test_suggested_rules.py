"""Suggested rules: shown with the mail that they would have met, accepted by one press or dismissed for good."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from postroom.db.tables.triage import actions
from tests.dashboard.test_approvals_page import after, ask
from tests.support.dashboards import Site, text_of

pytestmark = pytest.mark.req("UX-1")

NAME = "Archive: news@shop.example"


async def approve(site: Site, count: int, sender: str = "news@shop.example") -> list[str]:
    ids = [await ask(site, f"Offer {number}", "archive", sender) for number in range(count)]
    await site.post("/approvals", verdict="approve", action=ids)
    return ids


async def suggested(site: Site) -> dict[str, str]:
    return {each["name"]: each["key"] for each in (await site.api("GET", "/suggested-rules")).json()}


async def test_a_rule_is_suggested_from_approvals_and_accepted_by_one_press(site: Site) -> None:
    await approve(site, 2)
    assert "Suggested rules" not in (await site.get("/rules")).text
    await approve(site, 1)
    page = text_of((await site.get("/rules")).text)
    assert f"{NAME} You did so with 3 messages from news@shop.example" in page
    key = (await suggested(site))[NAME]
    assert "Result of the trial" in (await site.get(f"/rules/suggested/{key}")).text
    accepted = await site.post(f"/rules/suggested/{key}/accept")
    assert "The rule is saved." in await after(site, accepted)
    [rule] = (await site.api("GET", "/rules")).json()["items"]
    assert (rule["name"], rule["condition"], rule["enabled"]) == (NAME, {"sender": "news@shop.example"}, True)
    assert await suggested(site) == {}
    assert (await site.post(f"/rules/suggested/{key}/accept")).status_code == 404


async def test_a_dismissed_suggestion_is_never_made_again(site: Site) -> None:
    await approve(site, 3)
    key = (await suggested(site))[NAME]
    assert "is not suggested again" in await after(site, await site.post(f"/rules/suggested/{key}/dismiss"))
    await approve(site, 3)
    assert await suggested(site) == {}
    assert (await site.api("POST", f"/suggested-rules/{key}/dismiss")).status_code == 404


async def test_a_rejection_an_undo_and_mail_of_others_suggest_nothing(site: Site) -> None:
    await approve(site, 3)
    other = await ask(site, "Offer", "archive", "news@shop.example")
    await site.post("/approvals", verdict="reject", action=other)
    assert await suggested(site) == {}
    await site.write(lambda tx: tx.execute(update(actions).where(actions.c.id == other).values(status="expired")))
    assert list(await suggested(site)) == [NAME], "an answer that nobody gave says nothing"
    await approve(site, 2, "ann@friends.example")
    assert list(await suggested(site)) == [NAME]
