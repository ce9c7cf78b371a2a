"""The Actions page and its API: what was done, to which mail, why; taken back where that can be; what sleeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from urllib.parse import quote

import pytest
from sqlalchemy import update

from postroom.actions import browsing
from postroom.audit import AuditFilter, list_entries
from postroom.db.tables.triage import actions
from postroom.domain.ids import new_id
from tests.support.archives import generated_mail
from tests.support.dashboard_data import (
    HOSTILE_TEXT,
    add_decision,
    add_one_rule,
    archive_mail,
    dashboard_actions,
    message_at,
)
from tests.support.dashboards import Site, text_of


async def listed(site: Site, query: str) -> list[str]:
    answer = await site.api("GET", f"/actions?{query}")
    assert answer.status_code == 200, answer.text
    return [row["summary"] for row in answer.json()["items"]]


async def test_actions_are_found_by_what_they_are_and_by_their_mail(site: Site) -> None:
    assert "No actions yet." in (await site.get("/actions")).text
    shops = await add_one_rule(site)
    async with dashboard_actions(site) as scene:
        receipt = await message_at(scene, "INBOX", subject="Your RECEIPT", sender_identity="orders@shop.example")
        await add_decision(scene, receipt, "archive", by=shops)
        await add_decision(scene, await message_at(scene, "INBOX", subject="100% Ä_news"), "star")
        await scene.want((await scene.message("INBOX"))[0], "mark_read")
        await scene.work()
        await scene.want((await scene.message("INBOX"))[0], "trash")
    everything = [
        "Move the message to the trash",
        "Mark the message as read",
        "Star the message",
        "Archive the message",
    ]
    assert await listed(site, "") == everything
    for query, wanted in {
        "by=rule": everything[3:],
        "by=model": everything[2:3],
        "by=person": everything[:2],
        "status=queued": everything[:1],
        "status=completed&type=star": everything[2:3],
        f"rule={shops.id}": everything[3:],
        f"rule={new_id()}": [],
        "text=receipt": everything[3:],
        "text=Shop.example": everything[3:],
        "text=100%25 Ä_n": everything[2:3],
        "text=1_0": [],
        f"account={scene.account.email}": everything,
    }.items():
        assert await listed(site, query) == wanted, query
    page = text_of((await site.get(f"/actions?rule={shops.id}")).text)
    assert "Only actions of the rule Receipts" in page
    assert "No actions match this filter" in (await site.get("/actions?text=nothing")).text


async def test_pages_of_a_list_meet_without_gap_or_double_however_few_match(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsing, "_LOOKED_THROUGH", 4)
    async with dashboard_actions(site) as scene:
        gmail_id, _ = await scene.message("INBOX")
        wanted = ["star", "unstar", "unstar", "unstar", "unstar", "unstar", "star", "star", "unstar"]
        ids = [await scene.want(gmail_id, name) for name in wanted]
    for query, expected in (("", ids), ("type=star", [ids[0], ids[6], ids[7]]), ("type=trash", [])):
        seen: list[str] = []
        answer = (await site.api("GET", f"/actions?limit=2&{query}")).json()
        for _ in range(5):
            seen += [row["id"] for row in answer["items"]]
            if answer["next"] is None:
                break
            answer = (await site.api("GET", f"/actions?limit=2&{query}&after={answer['next']}")).json()
        assert (seen, answer["next"]) == (expected[::-1], None), query
    first = text_of((await site.get("/actions?type=trash")).text)
    assert "None of the newest actions match." in first


async def test_an_action_tells_its_whole_story_and_is_taken_back(site: Site) -> None:
    shops = await add_one_rule(site, actions=("archive",))
    async with dashboard_actions(site) as scene:
        ids = await message_at(scene, "INBOX", "UNREAD", subject="Your receipt")
        [action_id] = await add_decision(scene, ids, "archive", by=shops)
        assert "Cancel" in (await site.get(f"/actions/{action_id}")).text
        await scene.work()
        page = await site.get(f"/actions/{action_id}")
        said = text_of(page.text)
        assert "The rule Receipts matched." in said
        assert f'href="/rules/{shops.id}"' in page.text
        assert f'href="/mail/{quote(scene.account.email)}/{ids[0]}"' in page.text
        assert "removed: INBOX" in said
        assert "execute" in said
        assert "Undo" in said
        detail = (await site.api("GET", f"/actions/{action_id}")).json()
        assert detail["labels"]["before"] == ["INBOX", "UNREAD"]
        assert (detail["labels"]["after"], detail["labels"]["removed"]) == (["UNREAD"], ["INBOX"])
        assert (detail["can_undo"], detail["undo"]) == (True, None)

        answer = await site.post(f"/actions/{action_id}/undo")
        assert answer.headers["location"] == f"/actions/{action_id}"
        assert "It is being undone." in text_of((await site.get(f"/actions/{action_id}")).text)
        assert (await site.post(f"/actions/{action_id}/undo")).status_code == 422
        await scene.work()
        assert scene.labels(ids[0]) == {"INBOX", "UNREAD"}
        done = (await site.api("GET", f"/actions/{action_id}")).json()
        assert (done["action"]["is_undone"], done["can_undo"]) == (True, False)
        after = text_of((await site.get(f"/actions/{action_id}")).text)
        assert "Undone" in after
        undo = text_of((await site.get(f"/actions/{done['undo']['id']}")).text)
        assert "This undoes Archive the message" in undo
        assert "it is an undo itself" in undo
    which = AuditFilter(subject_type="action", subject_id=action_id)
    [entry] = (await site.read(lambda tx: list_entries(tx, which))).entries
    assert (entry.action, entry.actor.name) == ("action.undo", "owner")


async def test_what_cannot_be_undone_says_why(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        _, gone = await scene.do("delete", "INBOX")
        _, idle = await scene.do("star", "INBOX", "STARRED")
    assert "It cannot be undone: the message was deleted for ever" in text_of(
        (await site.get(f"/actions/{gone.id}")).text
    )
    assert "It cannot be undone: it changed nothing" in text_of((await site.get(f"/actions/{idle.id}")).text)
    refused = await site.api("POST", f"/actions/{gone.id}/undo")
    assert (refused.status_code, "deleted for ever" in refused.text) == (422, True)


async def test_failed_actions_are_tried_again_and_waiting_ones_called_off(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        waits = await scene.want((await scene.message("INBOX"))[0], "archive")
        failed = await scene.want((await scene.message("INBOX"))[0], "star")
        values = {"status": "failed", "error": HOSTILE_TEXT, "finished_at": scene.clock.now()}
        await site.write(lambda tx: tx.execute(update(actions).where(actions.c.id == failed).values(**values)))
        page = await site.get(f"/actions/{failed}")
        assert "Error" in page.text
        assert "<script>window" not in page.text
        assert 'href="/actions?status=failed"' in (await site.get("/")).text
        assert (await site.post(f"/actions/{failed}/retry")).status_code == 303
        assert (await site.api("POST", f"/actions/{waits}/cancel")).json()["status"] == "canceled"
        assert (await site.post(f"/actions/{waits}/cancel")).status_code == 422
        assert (await site.api("POST", f"/actions/{waits}/retry")).status_code == 422
        await scene.work()
    assert (await site.api("GET", f"/actions/{failed}")).json()["action"]["status"] == "completed"


async def test_an_approval_stands_with_the_action_it_was_for(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        [action_id] = await add_decision(scene, await message_at(scene, "INBOX"), "trash", why="trash is dangerous")
        asked = text_of((await site.get(f"/actions/{action_id}")).text)
        assert "trash is dangerous" in asked
        assert "Not answered yet." in asked
        await site.post(f"/approvals/{action_id}/approve")
    answered = text_of((await site.get(f"/actions/{action_id}")).text)
    assert "Approved by" in answered
    assert "Decided by the model, 93% sure" in answered


async def test_sleeping_mail_is_listed_sleeps_on_and_is_woken(site: Site) -> None:
    nothing = (await site.get("/actions/snoozed")).text
    assert "No mail is snoozed." in nothing
    assert "<code>postroom actions do snooze</code>" in nothing
    async with dashboard_actions(site) as scene:
        gmail_id, action = await scene.do("snooze", "INBOX", amount=2, units="days")
        assert "INBOX" not in (scene.labels(gmail_id) or ())
        page = text_of((await site.get("/actions/snoozed")).text)
        assert "Hello" in page
        assert "in 1 day" in page
        slept = await site.post(f"/actions/{action.id}/sleep", hours="168", back="/actions/snoozed")
        assert slept.headers["location"] == "/actions/snoozed"
        [snooze] = (await site.api("GET", "/actions/snoozed")).json()
        assert snooze["until"] > (site.app.clock.now() + timedelta(days=6)).isoformat()
        assert (await site.post(f"/actions/{action.id}/sleep", hours="5")).status_code == 422
        later = {"until": "2300-01-01T00:00:00Z"}
        assert (await site.api("POST", f"/actions/{action.id}/sleep", json=later)).status_code == 422
        assert (await site.post(f"/actions/{action.id}/wake", back="https://evil.example/")).status_code == 422
        assert (await site.api("POST", f"/actions/{action.id}/wake")).status_code == 200
        scene.clock.advance(60)
        await scene.work()
        assert "INBOX" in (scene.labels(gmail_id) or ())
    assert (await site.api("GET", "/actions/snoozed")).json() == []
    assert (await site.api("POST", f"/actions/{action.id}/wake")).status_code == 422


async def test_the_message_shows_what_was_done_with_it_and_undoes_it(site: Site) -> None:
    [letter] = generated_mail(1)
    async with dashboard_actions(site) as scene:
        ids = await message_at(scene, "INBOX", subject="A letter")
        [action_id] = await add_decision(scene, ids, "archive", by=await add_one_rule(site))
        await scene.work()
        await archive_mail(site, [replace(letter, gmail_id=ids[0])], scene.account.email)
        page = await site.get(f"/mail/{scene.account.email}/{ids[0]}")
        assert f'href="/actions/{action_id}"' in page.text
        assert f'action="/actions/{action_id}/undo"' in page.text
        back = f"/mail/{scene.account.email}/{ids[0]}"
        assert (await site.post(f"/actions/{action_id}/undo", back=back)).headers["location"] == back
        await scene.work()
        after = await site.get(back)
    assert "Undone" in text_of(after.text)
    assert f'action="/actions/{action_id}/undo"' not in after.text


async def test_what_strangers_wrote_stays_text(site: Site) -> None:
    async with dashboard_actions(site) as scene:
        ids = await message_at(scene, "INBOX", subject=HOSTILE_TEXT, sender_identity=HOSTILE_TEXT)
        named = await add_one_rule(site, HOSTILE_TEXT.replace("\u202e", ""))
        [action_id] = await add_decision(
            scene, ids, f"apply_label={HOSTILE_TEXT}", by=named, reason=HOSTILE_TEXT, why=HOSTILE_TEXT
        )
        await scene.want((await message_at(scene, subject=HOSTILE_TEXT))[0], "snooze", amount=1, units="hours")
        await scene.work()
        for path in ("/actions", f"/actions/{action_id}", "/actions/snoozed", f"/actions?rule={named.id}"):
            page = (await site.get(path)).text
            assert "gnp.exe" in page, path
            assert "<script>window" not in page, path
            assert "<img src=x" not in page, path
            assert "\u202e" not in page, path


NONSENSE = {
    "?limit=0": 422,
    "?limit=99999999999999999999": 422,
    "?status=nonsense": 422,
    "?account=nobody@example.org": 422,
    "?after=nonsense": 422,
    "?text=%00": 422,
    "?rule=1": 422,
    "/nonsense": 422,
    "/%00": 422,
    f"/{new_id()}": 404,
}


async def test_nonsense_is_refused(site: Site) -> None:
    for path, status in NONSENSE.items():
        assert (await site.api("GET", f"/actions{path}")).status_code == status, path
        if not path.startswith("?limit"):
            assert (await site.get(f"/actions{path}")).status_code == status, path


async def test_changing_what_is_not_there_is_not_found(site: Site) -> None:
    for verb in ("undo", "retry", "cancel", "wake"):
        assert (await site.api("POST", f"/actions/{new_id()}/{verb}")).status_code == 404
        assert (await site.post(f"/actions/{new_id()}/{verb}")).status_code == 404
