"""Replying and forwarding from the page of a message, and failed actions that a person has seen."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from postroom.actions import lifecycle
from postroom.archive.messages import IncomingMail, Provenance
from postroom.audit import AuditFilter, list_entries
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions
from postroom.domain.actions import ActionStatus, Origin
from postroom.domain.jobs import ACTION
from tests.support.actions import ActionScene
from tests.support.dashboard_data import archive_mail, dashboard_actions, message_at
from tests.support.dashboards import Site, text_of
from tests.support.mail import letter

PDF = b"%PDF-1.7\r\n\0\\u0000" + bytes(range(256)) * 8_000


async def written(site: Site, path: str, fields: dict[str, str], *files: tuple[str, str, bytes]) -> httpx2.Response:
    """The form, as a browser sends it."""
    sent = [("attachments", (name, content, kind)) for name, kind, content in files]
    return await site.http.post(
        path, data={"csrf": site.csrf, **fields}, files=sent, headers={"sec-fetch-site": "same-origin"}
    )


async def received(site: Site, scene: ActionScene) -> str:
    """A message in the mailbox, here and in the archive; the address of its page."""
    gmail_id, _ = await message_at(scene, "INBOX", subject="Dinner?")
    raw = letter("Dinner?", sender="Ann <ann@friends.example>")
    await archive_mail(site, [IncomingMail(raw, Provenance.API, gmail_id=gmail_id)], scene.account.email)
    return f"/mail/{scene.account.email}/{gmail_id}"


@pytest.mark.req("JB-14", "UX-1")
async def test_a_reply_is_written_on_the_page_of_its_message(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        page = await received(site, scene)
        assert f'href="{page}/write/reply"' in (await site.get(page)).text
        form = (await site.get(f"{page}/write/reply")).text
        assert 'value="ann@friends.example"' in form
        assert 'value="Re: Dinner?"' in form
        fields = {"to": "Ann <ann@friends.example>", "cc": "ben@friends.example, cy@friends.example"}
        fields |= {"subject": "Re: Dinner?", "body": "With\r\npleasure.", "body_html": "<p>With pleasure.</p>"}
        answer = await written(site, f"{page}/write/reply", fields, ("menu.pdf", "application/pdf", PDF))
        assert answer.status_code == 303, answer.text
        action_id = answer.headers["location"].rpartition("/")[2]
        action = await scene.action(action_id)
        assert (action.origin, action.type, action.status) == (Origin.PERSON, "auto_reply", ActionStatus.QUEUED)
        kept: dict[str, Any] = dict(action.parameters)
        assert [file["filename"] for file in kept.pop("attachments")] == ["menu.pdf"]
        assert kept == {
            "to": ["ann@friends.example"],
            "cc": ["ben@friends.example", "cy@friends.example"],
            "subject": "Re: Dinner?",
            "body": "With\npleasure.",
            "body_html": "<p>With pleasure.</p>",
        }
        assert await site.read(lambda tx: lifecycle.files_of(tx, action_id)) == [PDF]
        shown = text_of((await site.get(f"/actions/{action_id}")).text)
        for words in ("ann@friends.example", "ben@friends.example", "With pleasure.", "menu.pdf"):
            assert words in shown
        which = AuditFilter(subject_type="action", subject_id=action_id)
        [entry] = (await site.read(lambda tx: list_entries(tx, which))).entries
        assert "data" not in str(entry.after)


@pytest.mark.req("JB-14")
async def test_a_mistake_in_a_letter_is_shown_beside_its_field_and_nothing_is_lost(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        page = await received(site, scene)
        answer = await written(site, f"{page}/write/forward", {"to": "no address", "note": "For <you>"})
        assert answer.status_code == 422
        assert 'id="e-to"' in answer.text
        assert "For &lt;you&gt;" in answer.text
        empty = await written(site, f"{page}/write/reply", {"to": "ann@friends.example", "body": ""})
        assert empty.status_code == 422
        assert await site.read(lambda tx: tx.execute(select(actions.c.id)).all()) == []


@pytest.mark.req("JB-12")
async def test_a_failed_action_can_be_dismissed_and_needs_no_one_any_more(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        action_id = await scene.want((await scene.message("INBOX"))[0], "archive")
        await site.write(
            lambda tx: tx.execute(
                update(actions).where(actions.c.id == action_id).values(status="failed", error="Gmail said no.")
            )
        )
        ended = {"state": "failed", "ready": False, "finished_at": site.app.clock.now(), "last_error": "Gmail said no."}
        await site.write(lambda tx: tx.execute(update(jobs).where(jobs.c.type == ACTION.name).values(ended)))
        before = text_of((await site.get("/")).text)
        assert "1 action failed" in before
        assert "1 job failed" not in before, "what is one failure is counted once"
        assert f'action="/actions/{action_id}/dismiss"' in (await site.get(f"/actions/{action_id}")).text
        assert (await site.post(f"/actions/{action_id}/dismiss")).status_code == 303
        assert "action failed" not in text_of((await site.get("/")).text)
        page = await site.get(f"/actions/{action_id}")
        assert "Gmail said no." in text_of(page.text)
        assert f'action="/actions/{action_id}/retry"' in page.text
        assert (await site.api("POST", f"/actions/{action_id}/dismiss")).status_code == 422
        which = AuditFilter(subject_type="action", subject_id=action_id)
        entries = (await site.read(lambda tx: list_entries(tx, which))).entries
        assert [entry.action for entry in entries] == ["action.dismiss", "action.want"]
        assert (await site.post(f"/actions/{action_id}/retry")).status_code == 303
        assert (await scene.action(action_id)).status is ActionStatus.QUEUED
