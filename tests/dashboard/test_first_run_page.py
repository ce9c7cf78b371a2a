"""The first run: the checklist on the overview, what is dismissed of it, and the page of backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from postroom import audit
from postroom.app.backup import note_backup
from postroom.app.backup.creating import BackupFile, Manifest
from postroom.archive.messages import IncomingMail, Provenance
from postroom.dashboard.security.passphrase import set_hash
from postroom.domain.clock import ManualClock
from tests.support import dashboard_data as scene
from tests.support.actions import A_TEST
from tests.support.dashboards import Site, open_site, text_of

MADE = Manifest("2026-11-16T00:00:00+00:00", "0.1.0", "postroom.db", True, (BackupFile("postroom.db", 3_000, "f"),))
RAW = b"From: ann@example.org\r\nSubject: Lunch\r\nDate: Mon, 2 Mar 2020 10:00:00 +0000\r\n\r\nAt noon?\r\n"


async def states(site: Site) -> dict[str, str]:
    steps = (await site.api("GET", "/checklist")).json()["steps"]
    return {step["key"]: step["state"] for step in steps}


@pytest.mark.req("UX-2")
async def test_every_step_is_done_by_what_is_really_there_and_then_the_list_is_gone(site: Site) -> None:
    assert "Getting started 0 of 6 steps done." in text_of((await site.get("/")).text)
    assert list((await states(site)).values()) == ["next"] + ["open"] * 5
    session = (await site.api("GET", "/settings")).json()["sessions"][0]["id"]
    await site.write(lambda tx: set_hash(tx, "a hash", A_TEST, site.app.clock.now(), but=session))
    assert (await states(site))["mailbox"] == "next"
    await scene.add_mailbox(site)
    assert (await states(site))["mail"] == "next"
    await scene.archive_mail(site, [IncomingMail(RAW, Provenance.IMPORT)])
    assert (await states(site))["model"] == "next"
    await site.post("/checklist", step="model", shown="no")
    await scene.add_one_rule(site)
    assert list((await states(site)).values()) == ["done"] * 5 + ["next"]
    assert 'href="/settings/backups"' in (await site.get("/")).text
    note_backup(site.app.settings.home, Path("backup"), MADE)
    assert set((await states(site)).values()) == {"done"}
    assert "Getting started" not in (await site.get("/")).text


@pytest.mark.req("UX-2")
async def test_what_is_dismissed_is_remembered_audited_and_can_be_shown_again(site: Site) -> None:
    page = await site.post("/checklist", step="model", shown="no")
    assert page.headers["location"] == "/"
    assert (await states(site))["model"] == "done"
    await site.post("/checklist", step="checklist", shown="no")
    shown = (await site.get("/")).text
    said = text_of(shown)
    assert "Getting started" not in said
    assert "The checklist is dismissed." in said
    assert 'aria-label="Undo"' in shown
    assert "5 steps of the setup left." in said
    assert "No mailbox is connected yet" in said, "there is still a way to add one"
    await site.post("/checklist", step="checklist", shown="yes")
    assert "Getting started" in text_of((await site.get("/")).text)
    found = await site.read(lambda tx: audit.list_entries(tx, audit.AuditFilter(action="switch.change")))
    assert [entry.subject_id for entry in found.entries] == ["setup_checklist", "setup_checklist", "setup_model"]
    assert (await site.post("/checklist", step="rule", shown="no")).status_code == 422
    assert (await site.api("POST", "/checklist", json={"step": "model", "shown": "no"})).status_code == 422


@pytest.mark.req("UX-2")
async def test_backups_of_this_home_are_listed_and_how_to_make_one_is_said(site: Site) -> None:
    assert "No backup was made of this home yet." in text_of((await site.get("/settings/backups")).text)
    note_backup(site.app.settings.home, Path("/mnt/<disk>"), MADE)
    page = (await site.get("/settings/backups")).text
    assert "/mnt/&lt;disk&gt;" in page
    assert "3.0 kB" in text_of(page)
    assert "postroom backup create FOLDER" in text_of(page)


async def test_a_message_that_no_page_showed_in_time_is_not_shown_later(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_site(tmp_path / "home", clock=clock) as site:
        for wait, is_shown in ((59, True), (61, False)):
            await site.post("/checklist", step="model", shown="no")
            clock.advance(wait)
            assert ("No model for now." in (await site.get("/")).text) is is_shown
