"""Settings that are set on a page: checked, audited, with where each value comes from; keys go to the vault unseen."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

from postroom.audit import AuditFilter, list_entries
from postroom.domain.clock import ManualClock
from postroom.domain.roles import Role
from postroom.settings import DISCORD_TOKEN_ENTRY, MODEL_KEY_ENTRY, read_layers
from postroom.sim.model.server import running_model
from tests.dashboard.test_sensitive_changes import PHRASE, confirmation, set_phrase
from tests.support.dashboards import Site, open_site, text_of

pytestmark = pytest.mark.req("UX-2")

PAGE = "/settings/edit"
SECRET = "sk-this-must-not-be-seen-anywhere"  # noqa: S105 (not one of anybody's)


def version(site: Site) -> str:
    return read_layers(site.app.settings.home).version


def ours(site: Site) -> bytes:
    path = site.app.settings.home / "dashboard.toml"
    return path.read_bytes() if path.exists() else b""


async def entries(site: Site, action: str) -> list[Any]:
    return [*(await site.read(lambda tx: list_entries(tx, AuditFilter(action=action)))).entries]


async def test_the_model_is_set_tested_and_shown_with_where_it_comes_from(site: Site) -> None:
    async with running_model() as sim:
        model = {"model_provider": "compatible", "model_name": 'sim "漢字"', "model_base_url": sim.url}
        prices = {"model_input_price": "0.30", "model_output_price": "2.50"}
        saved = await site.post(PAGE, intent="model", version=version(site), **model, **prices)
        assert saved.headers["location"] == f"{PAGE}#model"
        stored = await site.post(PAGE, intent="secrets", model_key=sim.token)
        assert stored.status_code == 303
        page = (await site.get(PAGE)).text
        assert "Restart Postroom" not in text_of(page)
        assert "in every process within 5 seconds" in text_of(page)
        assert "Only backfill.day_zone needs a restart" in text_of(page)
        assert site.app.settings.model.base_url == sim.url
        assert 'value="sim &#34;漢字&#34;"' in page
        assert "漢字" in text_of((await site.get("/settings")).text)
        assert "One is in the vault" in page
        await site.post(PAGE, intent="test")
        tested = await site.get(PAGE)
        assert "$0.30 in, $2.50 out for a million tokens" in text_of(tested.text)
        assert re.search(r"answered in [\d.]+ s for (less than )?\$", text_of(tested.text))
        assert sim.token not in page + tested.text + ours(site).decode()
        checked = (await site.api("POST", "/settings/model-check")).json()
        assert (checked["works"], "for a million tokens" in checked["price"]) == (True, True)
    [entry] = await entries(site, "settings.change")
    assert (entry.actor.name, entry.after["model.name"], entry.before["model.provider"]) == (
        "owner",
        model["model_name"],
        "",
    )
    [secret] = await entries(site, "settings.secret")
    assert (secret.subject_id, secret.after) == ("model.api_key", {"stored": True})
    await site.post(PAGE, intent="secrets", remove_model_key="yes")
    assert site.app.vault.get(MODEL_KEY_ENTRY) is None


async def test_what_the_environment_sets_is_fixed_and_the_backfill_switch_never_overrides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_ENABLED", "false")
    monkeypatch.setenv("POSTROOM_MODEL__API_KEY", SECRET)
    home = tmp_path / "home"
    home.mkdir()
    (home / "postroom.toml").write_text("[backfill]\nrate_limit_per_hour = 7\n")
    async with open_site(home) as site:
        page = (await site.get(PAGE)).text
        said = text_of(page)
        assert 'name="backfill_enabled"' not in page
        assert "Fixed by BACKFILL_ENABLED in the environment; change it there." in said
        assert "Fixed by POSTROOM_MODEL__API_KEY in the environment" in said
        assert SECRET not in page
        assert "From postroom.toml ." in said
        limits = {"backfill_daily_cost_cap_cents": "7.50", "backfill_rate_limit_per_hour": "8"}
        assert (await site.post(PAGE, intent="limits", version=version(site), **limits)).status_code == 303
        forced = await site.post(PAGE, intent="limits", version=version(site), backfill_enabled="true")
        assert forced.status_code == 422
        assert "BACKFILL_ENABLED" in forced.text
        assert (await site.post(PAGE, intent="secrets", model_key="other")).status_code == 422
        loaded = read_layers(home).settings().backfill
        assert (loaded.enabled, loaded.daily_cost_cap_cents, loaded.rate_limit_per_hour) == (False, 750, 8)
        assert "the dashboard" in text_of((await site.get("/settings")).text)


async def test_what_needs_a_restart_says_so_and_what_does_not_holds_at_once(site: Site) -> None:
    limits = {"backfill_day_zone": "Europe/Zagreb", "backfill_daily_cost_cap_cents": "3.21"}
    assert (await site.post(PAGE, intent="limits", version=version(site), **limits)).status_code == 303
    said = text_of((await site.get(PAGE)).text)
    assert "Restart Postroom to use backfill.day_zone" in said
    assert "Restart Postroom to use what is new: backfill.day_zone ." in said
    backfill = site.app.settings.backfill
    assert (backfill.day_zone, backfill.daily_cost_cap_cents) == ("UTC", 321)
    answer = await site.api(
        "POST", "/settings/values", json={"version": version(site), "values": {"model.timeout_s": "9"}}
    )
    assert (answer.json()["changed"], answer.json()["need_restart"]) == (["model.timeout_s"], ["backfill.day_zone"])


async def test_the_digest_is_switched_on_from_its_page_and_used_at_once(site: Site) -> None:
    assert 'href="/settings/edit#digest"' in (await site.get("/digest")).text
    page = (await site.get(PAGE)).text
    assert "Every Monday" in text_of(page)
    wrong = await site.post(PAGE, intent="digest", version=version(site), digest_every="weekly", digest_at="25:00")
    assert (wrong.status_code, "is not a time of day" in text_of(wrong.text)) == (422, True)
    digest = {"digest_every": "weekly", "digest_at": "06:30", "digest_zone": "Europe/Zagreb"}
    saved = await site.post(PAGE, intent="digest", version=version(site), **digest)
    assert saved.headers["location"] == f"{PAGE}#digest"
    assert "Restart Postroom" not in text_of((await site.get(PAGE)).text)
    assert "weekly" in text_of((await site.get("/digest")).text)
    said = text_of((await site.get("/digest")).text)
    assert "Days begin at midnight in Europe/Zagreb" in said
    [entry] = await entries(site, "settings.change")
    assert (entry.before["digest.every"], entry.after["digest.every"]) == ("off", "weekly")


async def test_a_broken_file_is_shown_on_the_overview_and_changes_nothing(site: Site) -> None:
    path = site.app.settings.home / "dashboard.toml"
    path.write_text("[backfill]\nrate_limit_per_hour = -5\n")
    site.app.current.refresh()
    said = text_of((await site.get("/")).text)
    assert "Changed settings are not used: backfill.rate_limit_per_hour" in said
    assert "Postroom goes on with those it had" in said
    assert "The settings cannot be read" in text_of((await site.get(PAGE)).text)
    path.unlink()
    site.app.current.refresh()
    assert "Changed settings" not in text_of((await site.get("/")).text)


REFUSED = [
    ({"intent": "model", "model_provider": "openai"}, "model_name"),
    ({"intent": "model", "model_name": "a\nb"}, "model_name"),
    ({"intent": "model", "model_provider": "compatible", "model_name": "x"}, "model_base_url"),
    ({"intent": "model", "model_input_price": "cheap"}, "model_input_price"),
    ({"intent": "limits", "backfill_daily_cost_cap_cents": "much"}, "backfill_daily_cost_cap_cents"),
    ({"intent": "limits", "backfill_day_zone": "Here"}, "backfill_day_zone"),
    ({"intent": "notifications", "discord_public_key": "<b>"}, "discord_public_key"),
    ({"intent": "secrets"}, "model_key"),
    ({"intent": "secrets", "model_key": "fine", "bot_token": "two words"}, "bot_token"),
]


async def test_a_mistake_is_shown_beside_its_field_and_changes_nothing(site: Site) -> None:
    for fields, wrong in REFUSED:
        answer = await site.post(PAGE, version=version(site), **fields)
        assert answer.status_code == 422, fields
        assert f'id="e-{wrong}"' in answer.text, fields
        for name, value in fields.items():
            if name.startswith(("backfill", "discord")):
                assert f'value="{escape(value)}"' in answer.text
    assert (await site.post(PAGE, intent="everything")).status_code == 422
    assert (ours(site), site.app.vault.get(MODEL_KEY_ENTRY)) == (b"", None)
    assert await entries(site, "settings.change") == []


async def test_a_form_that_is_older_than_the_settings_is_refused_and_shows_what_holds_now(site: Site) -> None:
    old = version(site)
    assert (await site.post(PAGE, intent="model", version=old, model_timeout_s="11")).status_code == 303
    before = ours(site)
    stale = await site.post(PAGE, intent="model", version=old, model_timeout_s="22")
    assert stale.status_code == 422
    assert "changed meanwhile, so nothing was saved" in text_of(stale.text)
    assert 'value="11.0"' in stale.text
    assert ours(site) == before
    api = await site.api("POST", "/settings/values", json={"version": old, "values": {"model.timeout_s": "22"}})
    assert (api.status_code, api.json()["error"]["field"]) == (422, "version")


async def test_a_change_asks_for_the_passphrase_and_a_key_never_travels_back(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        clock.advance(300)
        wanted = {"intent": "model", "version": version(site), "model_timeout_s": "11"}
        asked = await site.post(PAGE, **wanted)
        assert (asked.status_code, ours(site)) == (403, b"")
        assert (await site.post(PAGE, **confirmation(asked), proof=PHRASE)).status_code == 303
        assert b"timeout_s = 11.0" in ours(site)
        clock.advance(300)
        for given in ({}, {"proof": "not the passphrase"}):
            refused = await site.post(PAGE, intent="secrets", model_key=SECRET, **given)
            assert (refused.status_code, SECRET in refused.text) == (422, False)
            assert 'id="e-proof"' in refused.text
        assert site.app.vault.get(MODEL_KEY_ENTRY) is None
        await site.post(PAGE, intent="secrets", model_key=SECRET, proof=PHRASE)
        assert site.app.vault.get(MODEL_KEY_ENTRY) == SECRET.encode()
        token = await site.token(Role.DASHBOARD)
        async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
            now = {"version": version(site), "values": {"model.base_url": "http://thief.example"}}
            for path, body in (("values", now), ("secrets", {"name": MODEL_KEY_ENTRY, "secret": "mine"})):
                refused = await program.post(f"/api/settings/{path}", json=body)
                assert refused.status_code == 403
                assert "A token cannot change the model" in refused.json()["error"]["message"]
            values = (await program.get("/api/settings/values")).json()
        assert values["secrets"][0]["place"] == "vault"
        assert SECRET not in str(values)


async def test_the_page_says_so_when_a_file_cannot_be_read_any_more(site: Site) -> None:
    (site.app.settings.home / "postroom.toml").write_text("[model]\ntimeout_s = 'soon'\n")
    page = await site.get(PAGE)
    assert page.status_code == 200
    assert "The settings cannot be read: model.timeout_s: is not a number" in text_of(page.text)
    assert (await site.get("/settings")).status_code == 200


async def test_discord_is_set_up_from_the_page_and_used_with_the_token_of_the_vault(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with open_site(home) as site:
        discord = {"discord_channel_id": "42", "discord_public_key": "a" * 64, "discord_allowed_users": "7, 8"}
        saved = await site.post(PAGE, intent="notifications", version=version(site), **discord, sync_self_email="true")
        assert saved.status_code == 303
        assert (await site.post(PAGE, intent="secrets", bot_token="bot.token")).status_code == 303  # noqa: S106
        assert site.app.vault.get(DISCORD_TOKEN_ENTRY) == b"bot.token"
    started = read_layers(home).settings()
    assert started.sync.self_email
    async with open_site(home, discord=started.discord) as site:
        token = site.app.discord.bot_token
        assert token is not None
        assert token.get_secret_value() == "bot.token"
        async with site.stranger() as discord_itself:
            assert (await discord_itself.post("/discord/interactions")).status_code == 401
