"""The editors of the tier policy and of categories: checked, shown as a difference, then saved."""

from __future__ import annotations

import stat

import pytest

from postroom.audit import AuditFilter, list_entries
from postroom.domain.roles import Permission, Role
from postroom.switchboard import definitions
from postroom.switchboard.definitions import CategoryBook
from tests.support.dashboards import Site, text_of

pytestmark = pytest.mark.req("UX-2")

POLICY, CATEGORIES = "/filters/policy", "/filters/categories"
RULE = '[[rule]]\nnote = "Offers <b>"\ntier = 2\n\n[rule.condition]\nsender_domain = ["shop.example"]\n'
CHOIR = "# mine\nversion = 1\n\n[categories.choir]\ntitle = 'The choir'\naccept = [{ domains = ['choir.example'] }]\n"


async def count(site: Site, action: str) -> int:
    return len((await site.read(lambda tx: list_entries(tx, AuditFilter(action=action)))).entries)


async def test_the_policy_is_reviewed_as_a_difference_and_then_saved(site: Site) -> None:
    now = (await site.api("GET", "/policy")).json()
    shown = await site.post(POLICY, intent="check", text=RULE.replace("\n", "\r\n"))
    assert shown.status_code == 200
    assert "After saving" in shown.text
    assert "Offers &lt;b&gt;" in shown.text
    assert (await site.api("GET", "/policy")).json() == now, "nothing is saved yet"
    saved = await site.post(POLICY, intent="save", version=now["version"], text=RULE.replace("\n", "\r\n"))
    assert saved.headers["location"] == "/filters#policy"
    [rule] = await site.read(definitions.all_policy_rules)
    assert (rule["note"], rule["tier"]) == ("Offers <b>", 2)
    stale = await site.post(POLICY, intent="save", version=now["version"], text="")
    assert stale.status_code == 422
    assert "changed meanwhile" in stale.text
    wrong = await site.post(POLICY, intent="save", version="x", text=RULE.replace("tier = 2", "tier = 7"))
    assert wrong.status_code == 422
    assert "line 3, rule 1, tier: is more than 3" in text_of(wrong.text)
    assert "tier = 7" in wrong.text
    assert "No changes." in (await site.post(POLICY, intent="check", text=RULE)).text
    assert len(await site.read(definitions.all_policy_rules)) == 1
    assert await count(site, "policy.change") == 1


async def test_categories_are_reviewed_and_saved_to_their_file_with_its_comments(site: Site) -> None:
    home = site.app.settings.home
    version = (await site.api("GET", "/category-definitions")).json()["version"]
    assert "The choir" in (await site.post(CATEGORIES, intent="check", text=CHOIR)).text
    assert not (home / "categories.toml").exists()
    assert (await site.post(CATEGORIES, intent="save", version=version, text=CHOIR)).status_code == 303
    assert (home / "categories.toml").read_text() == CHOIR
    assert stat.S_IMODE((home / "categories.toml").stat().st_mode) == 0o600
    assert "choir" in CategoryBook.in_folder(home).defined.names
    assert "Restart Postroom to use the definitions" in (await site.get(CATEGORIES)).text
    stale = await site.post(CATEGORIES, intent="save", version=version, text="")
    assert (stale.status_code, "changed meanwhile" in stale.text) == (422, True)
    wrong = await site.post(CATEGORIES, intent="check", text=CHOIR.replace("accept", "acept"))
    assert wrong.status_code == 422
    assert "line 6, categories.choir.acept: is not a field" in text_of(wrong.text)
    assert (home / "categories.toml").read_text() == CHOIR
    assert await count(site, "categories.define") == 1


async def test_a_token_needs_the_permission_for_either(site: Site) -> None:
    reader = await site.token(Role.DASHBOARD, permissions=[Permission.READ])
    async with site.stranger(headers={"authorization": f"Bearer {reader}"}) as program:
        assert (await program.get("/api/policy")).status_code == 200
        assert (await program.post("/api/policy", json={"version": "", "rules": []})).status_code == 403
        body = {"version": "", "definitions": ""}
        assert (await program.post("/api/category-definitions", json=body)).status_code == 403
