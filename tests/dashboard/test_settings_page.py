"""Settings: tokens made and revoked, logins ended, the kill switch turned; secrets never shown."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest
from pydantic import SecretStr

from postroom import audit, kill_switch
from postroom.app.assistants import AssistantClient, client_config
from postroom.domain.roles import Role
from postroom.settings import BackfillSettings, ModelSettings, TelemetrySettings
from postroom.switchboard.tokens import list_tokens
from tests.support import dashboard_data as scene
from tests.support.dashboards import Site, log_in, open_site, text_of

SECRET = "sk-this-must-not-be-seen-anywhere"  # noqa: S105 (not one of anybody's)


async def test_a_token_is_shown_once_works_and_is_revoked(site: Site) -> None:
    made = await site.post("/settings/tokens", role="dashboard", name="my script", expires_days="30")
    assert made.status_code == 303
    shown = made.headers["location"]
    assert shown.startswith("/settings?made=")
    (text,) = re.findall(r"prt_[\w-]{43}", (await site.get(shown)).text)
    assert text not in (await site.get(shown)).text, "a reload shows it no more, and makes no other"
    async with site.stranger(headers={"authorization": f"Bearer {text}"}) as program:
        assert (await program.get("/api/queue")).status_code == 200
        (token,) = await site.read(list_tokens)
        assert (token.name, token.role, token.expires_at is None) == ("my script", Role.DASHBOARD, False)
        assert (await site.post(f"/settings/tokens/{token.id}/revoke")).status_code == 303
        assert (await program.get("/api/queue")).status_code == 401
    logged = await site.read(lambda tx: audit.list_entries(tx, audit.AuditFilter(subject_type="token")))
    assert [(entry.action, entry.actor.name) for entry in logged.entries] == [
        ("token.revoke", "owner"),
        ("token.create", "owner"),
    ]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({"role": "king", "name": "x"}, "role"),
        ({"role": "agent", "name": ""}, "name"),
        ({"role": "agent", "name": "x", "expires_days": "soon"}, "expires_days"),
        ({"role": "agent", "name": "x", "expires_days": "0"}, "expires_days"),
        ({"role": "agent", "name": "x", "permissions": "tokens"}, "permissions"),
    ],
    ids=["role", "name", "no number", "zero", "permissions"],
)
async def test_a_token_that_cannot_be_is_refused_beside_its_field_and_what_was_written_stays(
    site: Site, fields: dict[str, str], wrong: str
) -> None:
    answer = await site.post("/settings/tokens", **fields)
    assert answer.status_code == 422
    assert f'id="e-{wrong}"' in answer.text
    assert "<details open>" in answer.text
    if fields["name"]:
        assert f'value="{fields["name"]}"' in answer.text
    assert await site.read(list_tokens) == []


async def test_the_configuration_of_an_assistant_is_there_to_copy(site: Site) -> None:
    page = await site.get("/settings")
    shown = [json.loads(unescape(each)) for each in re.findall(r"<pre[^>]*>(\{.*?)</pre>", page.text, re.DOTALL)]
    assert [list(each) for each in shown] == [
        [client_config(each, site.app.settings.home).key] for each in AssistantClient
    ]
    assert all("mcp" in each.popitem()[1]["postroom"]["args"] for each in shown)


async def test_logins_are_listed_and_ended(site: Site) -> None:
    other = await log_in(site.app, "<b>Another</b> browser")
    page = (await site.get("/settings")).text
    assert "&lt;b&gt;Another&lt;/b&gt; browser" in page
    (session,) = re.findall(r"/settings/sessions/([\w-]{36})/end", page)
    assert (await site.post(f"/settings/sessions/{session}/end")).status_code == 303
    port = site.url.rpartition(":")[2]
    async with site.stranger(headers={"cookie": f"postroom_{port}={other}"}) as ended:
        assert (await ended.get("/queue")).status_code == 401
    assert (await site.get("/queue")).status_code == 200
    await log_in(site.app)
    await log_in(site.app)
    await site.post("/settings/sessions/end-others")
    assert "2 other logins ended" in text_of((await site.get("/settings")).text)
    assert len((await site.api("GET", "/settings")).json()["sessions"]) == 1


@pytest.mark.req("BF-13")
async def test_the_kill_switch_is_turned_by_the_owner_through_the_switchboards_tool(tmp_path: Path) -> None:
    async with open_site(tmp_path / "home", backfill=BackfillSettings(enabled=True)) as site:
        job = await scene.add_backfill_job(site)
        assert "Backfill jobs may run" in text_of((await site.get("/settings")).text)
        assert "Stop all backfill" in (await site.get("/settings")).text
        assert (await site.post("/settings/backfill-switch", enabled="off")).status_code == 303
        assert "switched off by owner" in text_of((await site.get("/settings")).text)
        assert (await site.app.backfill.show(job)).job.status == "pending"
        await site.post("/settings/backfill-switch", enabled="on")
        settings = site.app.settings.backfill
        assert (await site.read(lambda tx: kill_switch.state(tx, settings))).in_force
        assert (await site.post("/settings/backfill-switch", enabled="perhaps")).status_code == 422


async def test_where_the_environment_forbids_backfill_the_page_says_that_the_switch_has_no_effect(site: Site) -> None:
    page = (await site.get("/settings")).text
    assert "The settings do not allow backfill" in text_of(page)
    assert "this switch has no effect" in text_of(page)
    assert "/settings/backfill-switch" not in page
    await site.post("/settings/backfill-switch", enabled="off")
    page = (await site.get("/settings")).text
    assert "owner has also turned it off" in text_of(page)
    assert "/settings/backfill-switch" not in page


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ModelSettings(provider="anthropic", name="claude-haiku-4-5"), "Provider Anthropic Model claude-haiku-4-5"),
        (
            ModelSettings(provider="compatible", name="llama", base_url="http://127.0.0.1:1/v1"),
            "Provider A server that speaks OpenAI's API Model llama Address http://127.0.0.1:1/v1",
        ),
    ],
)
async def test_the_provider_of_the_model_is_named_as_people_name_it(
    tmp_path: Path, model: ModelSettings, said: str
) -> None:
    async with open_site(tmp_path / "home", model=model) as site:
        assert said in unescape(text_of((await site.get("/settings")).text))


@pytest.mark.req("PL-6")
async def test_no_secret_of_the_settings_is_shown(tmp_path: Path) -> None:
    model = ModelSettings(provider="openai", name="gpt-4o-mini", api_key=SecretStr(SECRET))
    telemetry = TelemetrySettings(metrics_token=SecretStr(SECRET))
    async with open_site(tmp_path / "home", model=model, telemetry=telemetry) as site:
        page = (await site.get("/settings")).text
        assert SECRET not in page
        assert SECRET not in (await site.api("GET", "/settings")).text
        said = text_of(page)
        assert "model.api_key (set)" in said
        assert "Key set" in said


async def test_the_api_makes_and_revokes_tokens(site: Site) -> None:
    made = await site.api("POST", "/settings/tokens", json={"role": "agent", "name": "an agent"})
    assert made.status_code == 201
    assert made.json()["token"].startswith("prt_")
    revoked = await site.api("POST", f"/settings/tokens/{made.json()['stored']['id']}/revoke")
    assert revoked.json()["state"] == "revoked"
    refused = await site.api("POST", "/settings/tokens", json={"role": "agent", "name": "x", "surprise": 1})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "surprise")
