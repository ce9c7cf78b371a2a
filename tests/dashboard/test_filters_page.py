"""Filters: the panel of tier rules, the guard, contacts, and the ingestion policy."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from postroom.audit import SYSTEM, AuditFilter, list_entries
from postroom.dashboard.filters.routes import TIER_RULES
from postroom.domain.clock import ManualClock
from postroom.domain.terms import AssignmentRule
from postroom.settings import QueueSettings
from postroom.switchboard import definitions
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, open_site, text_of


@pytest.mark.req("PQ-8")
async def test_the_panel_lists_the_rules_in_the_order_in_which_they_decide(site: Site) -> None:
    page = (await site.get("/filters")).text
    assert re.search(r"<h2[^>]*>Email priority tier rules</h2>", page)
    named = re.findall(r"<code>(\w+)</code></th>", page)
    assert named == list(AssignmentRule)
    assert "<form" not in page.replace('<form method="post" action="/logout">', "")  # it is read-only
    assert [rule.rule for rule in TIER_RULES] == list(AssignmentRule)


@pytest.mark.req("PQ-8")
async def test_the_guard_is_shown_as_it_is_in_force(tmp_path: Path, site: Site) -> None:
    assert "10 jobs of one tier in a row" in text_of((await site.get("/filters")).text)
    async with open_site(tmp_path / "other", queue=QueueSettings(max_consecutive_same_tier=25)) as other:
        said = text_of((await other.get("/filters")).text)
        assert "25 jobs of one tier in a row" in said
        assert "the default is 10" in said


@pytest.mark.req("PQ-8")
async def test_contacts_are_shown_with_their_source_and_freshness(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        assert "Missing" in text_of((await site.get("/filters")).text)
        await scene.add_contacts(site, clock.now())
        clock.advance(3_600)
        said = text_of((await site.get("/filters")).text)
        assert "Fresh" in said
        assert "1 hour ago ( 2026-01-01 00:00:00 UTC )" in said
        assert "2 you wrote to, 1 from address books (vCard)" in said
        clock.advance(1)
        assert "Stale" in text_of((await site.get("/filters")).text)
        assert (await site.api("GET", "/filters")).json()["contacts"]["freshness"] == "stale"


@pytest.mark.req("PQ-8")
async def test_the_copies_of_the_connectors_are_shown_too(site: Site) -> None:
    await scene.add_heartbeat(site, checkpoint={"contacts": "stale", "contacts_generated_at": "nonsense"})
    await scene.add_heartbeat(site, "b@example.org", ago=timedelta(), checkpoint={})
    copies = (await site.api("GET", "/filters")).json()["contacts"]["copies"]
    assert copies == [
        {"endpoint_identity": "me@example.org", "instance": "worker", "state": "stale", "generated_at": None}
    ]


async def test_the_ingestion_policy_is_shown_in_its_order_as_text(site: Site) -> None:
    rules = [
        {"tier": 3, "condition": {"subject": "<b>sale</b>"}, "note": "No <i>adverts</i>"},
        {"tier": 2, "condition": {"headers": {"List-Id": "."}, "bulk": True}, "note": "Lists", "enabled": False},
    ]
    await site.write(lambda tx: definitions.replace_policy(tx, rules, SYSTEM, site.app.clock.now()))
    page = (await site.get("/filters")).text
    said = text_of(page)
    assert "1 No &lt;i&gt;adverts&lt;/i&gt; Skip Subject: &lt;b&gt;sale&lt;/b&gt;" in said
    assert "2 Lists Off Metadata" in said
    assert "Headers: List-Id" in said
    assert "<code><bdi>.</bdi></code>" not in page, "all that is asked of this header is that it is there"
    assert "<i>adverts" not in page


@pytest.mark.req("PQ-4", "PQ-5")
async def test_contacts_are_added_excluded_and_removed_on_their_page(site: Site) -> None:
    added = await site.post("/filters/contacts", address="Anna@Example.org", name="Anna")
    assert added.headers["location"] == "/filters/contacts"
    page = text_of((await site.get("/filters/contacts")).text)
    assert "anna@example.org is a contact." in page
    assert "Anna added by hand" in page
    await site.post("/filters/contacts/priority", address="anna@example.org", has_priority="")
    [anna] = (await site.api("GET", "/contacts?text=ANNA")).json()["items"]
    assert (anna["address"], anna["has_priority"]) == ("anna@example.org", False)
    assert "1 excluded from priority" in text_of((await site.get("/filters")).text).replace("( ", "").replace("(", "")
    await site.post("/filters/contacts/remove", address="anna@example.org")
    assert (await site.api("GET", "/contacts")).json() == {"items": [], "next": None}
    entries = (await site.read(lambda tx: list_entries(tx, AuditFilter(subject_type="contact")))).entries
    assert [(entry.action, entry.actor.name) for entry in reversed(entries)] == [
        (f"contact.{what}", "owner") for what in ("add", "exclude", "remove")
    ]


@pytest.mark.req("PQ-4")
async def test_contacts_are_changed_over_the_api_and_a_wrong_address_is_shown_beside_its_field(site: Site) -> None:
    made = await site.api("POST", "/contacts", json={"address": "ben@example.org", "has_priority": False})
    assert (made.status_code, made.json()["has_priority"]) == (201, False)
    changed = await site.api("PATCH", "/contacts/ben@example.org", json={"has_priority": True})
    assert changed.json()["has_priority"] is True
    assert (await site.api("DELETE", "/contacts/ben@example.org")).status_code == 200
    assert (await site.api("DELETE", "/contacts/ben@example.org")).status_code == 404
    refused = await site.post("/filters/contacts", address="ben", name="")
    assert (refused.status_code, "is not an e-mail address" in refused.text) == (422, True)
