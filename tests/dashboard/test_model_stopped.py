"""One press stops the model, people are told while it is off, and all it did since a moment is undone."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from urllib.parse import quote

import pytest

from postroom import kill_switch
from postroom.audit import AuditFilter, list_entries
from postroom.domain.jobs import UNDO_MANY
from postroom.settings import ModelSettings
from tests.support.dashboard_data import HOSTILE_TEXT, add_decision, dashboard_actions, message_at
from tests.support.dashboards import Site, open_site, text_of
from tests.support.queues import count_jobs

pytestmark = pytest.mark.req("HW-6")

MODEL = ModelSettings(provider="compatible", name="small", base_url="http://127.0.0.1:1/v1")


async def test_one_press_stops_the_model_and_another_starts_it(tmp_path: Path) -> None:
    async with open_site(tmp_path / "home", model=MODEL) as site:
        assert "Stop the model" in (await site.get("/")).text
        pressed = await site.post("/settings/model-switch", enabled="off", back="/")
        assert (pressed.status_code, pressed.headers["location"].split("?")[0]) == (303, "/")
        assert not (await site.read(kill_switch.model_switch)).on
        home = text_of((await site.get("/")).text)
        assert "The model is off (switched off by owner): mail that no rule decides goes to review" in home
        assert "Start the model" in home
        settings = await site.get("/settings")
        assert "The model is not used: switched off by owner" in text_of(settings.text)
        answer = await site.api("POST", "/settings/model-switch", json={"enabled": True})
        assert answer.json()["model_switch"]["on"] is True
        page = await site.read(lambda tx: list_entries(tx, AuditFilter(subject_type="switch")))
        assert [(entry.actor.name, entry.after) for entry in page.entries][-1] == ("owner", {"value": False})
        assert (await site.post("/settings/model-switch", enabled="perhaps")).status_code == 422


async def test_what_the_model_did_is_shown_counted_and_undone_after_a_confirmation(site: Site) -> None:
    assert "The model took no actions in this period." in (await site.get("/actions/by-model")).text
    async with dashboard_actions(site) as scene:
        archived = await message_at(scene, "INBOX", subject=HOSTILE_TEXT)
        await add_decision(scene, archived, "archive")
        await scene.work()
        scene.clock.advance(1)
        since = quote((scene.clock.now() - timedelta(hours=1)).isoformat())
        until = quote(scene.clock.now().isoformat())
        preview = (await site.get(f"/actions/by-model?since=at&at={since}")).text
        assert "Undo 1 action" in preview
        assert "<script>window.hit" not in preview
        fields = {"since": (scene.clock.now() - timedelta(hours=1)).isoformat(), "until": scene.clock.now().isoformat()}
        pressed = await site.post("/actions/by-model", **fields)
        assert pressed.status_code == 303
        assert await count_jobs(site.app.database, type=UNDO_MANY.name) == 1
        await scene.work()
        assert scene.labels(archived[0]) == {"INBOX"}
        progress = text_of((await site.get(f"/actions/by-model?at={since}&until={until}")).text)
        assert "Undone 1" in progress
        told = await site.api("POST", "/actions/survey", json=fields)
        assert (told.json()["total"], told.json()["progress"]) == (1, {"undone": 1})
    for wrong in ("since=never", "since=at&at=soon", "since=at", f"at={until}&until={since}"):
        assert (await site.get(f"/actions/by-model?{wrong}")).status_code in (400, 422), wrong
