"""The Approvals page and its API: a person sees why, answers once, and whoever comes second is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select, update

from postroom.accounts.account import NewAccount, add_account
from postroom.actions.scheduling import ActionIntake
from postroom.actions.undo import take_back
from postroom.audit import Actor, AuditFilter, list_entries
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, decisions
from postroom.domain import jobs as names
from postroom.domain.actions import DOING, ActionOrder, ActionType, Origin, Proposal, parse_action
from postroom.domain.clock import ManualClock
from postroom.domain.errors import BadInput
from postroom.domain.ids import new_id
from tests.support.dashboard_data import add_one_rule
from tests.support.dashboards import Site, open_site, text_of

HOSTILE = "<script>alert(1)</script> \u202egnp.exe"


async def ask(
    site: Site, subject: str = "Lunch?", kind: str = "trash", sender: str = "ann@friends.example", **parameters: Any
) -> str:
    """A question about a message; its action's id."""
    now = site.app.clock.now()
    owned = select(messages.c.account_id).where(messages.c.account_id.is_not(None)).limit(1)
    known = await site.app.database.read(lambda tx: tx.execute(owned).scalar())

    def run(tx: Tx) -> str:
        account = (
            known or add_account(tx, NewAccount("me@example.org", "http://127.0.0.1:1", None, frozenset()), now).id
        )
        message_id, decision_id = new_id(), new_id()
        mail: dict[str, Any] = {
            "channel": "email",
            "provider": "gmail",
            "endpoint_identity": "me@example.org",
            "subject": subject,
        }
        mail |= {"sender_identity": sender, "ingestion_tier": "full", "policy_tier": "default"}
        mail |= {"normalized_text": "Shall we meet at noon?", "attachments": [{"filename": "map.pdf"}]}
        mail |= {"external_event_id": message_id, "idempotency_key": message_id, "account_id": account}
        times = {"observed_at": now, "received_at": now, "accepted_at": now}
        tx.execute(messages.insert().values(id=message_id, **mail, **times))
        judged = {
            "source": "llm",
            "action": kind,
            "reason": "They ask for an answer.",
            "confidence": 0.8,
            "created_at": now,
        }
        tx.execute(decisions.insert().values(id=decision_id, message_id=message_id, **judged))
        proposal = Proposal(
            parse_action(kind, parameters),
            (f"{DOING[ActionType(kind)]} is a dangerous action", "the model is not sure"),
        )
        order = ActionOrder(account, message_id, message_id, None, decision_id, Origin.MODEL, "model m", (proposal,))
        return ActionIntake(site.app.queue, site.app.settings.safety).accept(tx, order)[0]

    return await site.write(run)


async def after(site: Site, posted: httpx2.Response) -> str:
    """What the page says that a form leads to."""
    return text_of((await site.get(posted.headers["location"])).text)


async def status(site: Site, action_id: str) -> str:
    query = select(actions.c.status).where(actions.c.id == action_id)
    return str(await site.app.database.read(lambda tx: tx.execute(query).scalar_one()))


@pytest.mark.req("JB-16")
async def test_a_question_says_what_would_be_done_and_all_reasons(site: Site) -> None:
    assert "Nothing needs approval." in (await site.get("/approvals")).text
    await ask(site, HOSTILE)
    page = await site.get("/approvals")
    said = text_of(page.text)
    assert "Move the message to the trash" in said
    assert "ann@friends.example" in said
    assert "moving to the trash is a dangerous action" in said
    assert "the model is not sure" in said
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text


@pytest.mark.req("JB-16")
async def test_what_is_approved_is_shown_in_full(site: Site) -> None:
    body = "With pleasure.\n" * 100 + "<b>See you</b>"
    action_id = await ask(site, HOSTILE, "auto_reply", body=body, cc=["boss@example.org"])
    page = await site.get("/approvals")
    said = text_of(page.text)
    for words in (
        "ann@friends.example",
        "boss@example.org",
        "&lt;b&gt;See you&lt;/b&gt;",
        "They ask for an answer.",
        "80",
    ):
        assert words in said
    assert "Shall we meet at noon?" in said
    assert "<b>See you</b>" not in page.text
    forward = await ask(site, "Plan", "forward", to=["books@example.org"], note="Please file.")
    letters = {each["id"]: each["letter"] for each in (await site.api("GET", "/approvals")).json()}
    assert letters[action_id]["text"] == body
    assert (letters[action_id]["to"], letters[action_id]["cc"]) == (["ann@friends.example"], ["boss@example.org"])
    assert letters[forward] == {
        "to": ["books@example.org"],
        "cc": [],
        "subject": "Fwd: Plan",
        "text": "Please file.",
        "html": None,
        "attachments": ["map.pdf"],
        "carries_original": True,
    }


@pytest.mark.req("JB-16")
@pytest.mark.parametrize(("verdict", "becomes", "follow_ups"), [("approve", "queued", 1), ("reject", "rejected", 0)])
async def test_an_answer_counts_once_and_is_audited(site: Site, verdict: str, becomes: str, follow_ups: int) -> None:
    action_id = await ask(site)
    answered = await site.post(f"/approvals/{action_id}/{verdict}")
    assert answered.status_code == 303
    assert await status(site, action_id) == becomes
    other = "reject" if verdict == "approve" else "approve"
    second = await site.api("POST", f"/approvals/{action_id}", json={"verdict": other})
    assert second.json()["counted"] is False
    assert await status(site, action_id) == becomes
    query = select(jobs.c.id).where(jobs.c.type == names.ACTION.name)
    assert len(await site.app.database.read(lambda tx: tx.execute(query).all())) == follow_ups
    which = AuditFilter(subject_type="action", subject_id=action_id)
    [entry] = (await site.app.database.read(lambda tx: list_entries(tx, which))).entries
    assert entry.action == f"action.{verdict}"


@pytest.mark.req("JB-16")
async def test_the_api_lists_answers_and_refuses_nonsense(site: Site) -> None:
    action_id = await ask(site)
    [listed] = (await site.api("GET", "/approvals")).json()
    assert (listed["id"], listed["is_open"]) == (action_id, True)
    assert (await site.api("POST", f"/approvals/{action_id}", json={"verdict": "perhaps"})).status_code == 422
    given = (await site.api("POST", f"/approvals/{action_id}", json={"verdict": "approve", "note": "fine"})).json()
    assert given["counted"] is True
    assert "approved" in given["question"]["state"]
    assert (await site.api("GET", "/approvals")).json() == []
    assert (await site.api("GET", f"/approvals/{new_id()}")).status_code == 404


@pytest.mark.req("UX-1")
async def test_questions_stand_in_groups_of_the_same_action_and_sender(site: Site) -> None:
    lunch = [await ask(site, f"Lunch {number}") for number in (1, 2)]
    other = await ask(site, "Sale", sender="news@shop.example")
    await ask(site, "Dinner", "archive")
    page = (await site.get("/approvals")).text
    assert f'name="group" value="{" ".join(lunch)}"' in page
    assert f'name="group" value="{other}"' in page
    assert page.count("data-group") == 3
    assert "Shall we meet at noon?" in text_of(page.partition("<details")[0]), "a row shows how the message begins"


@pytest.mark.req("UX-1")
async def test_many_are_answered_at_once_and_one_that_was_answered_meanwhile_stops_no_other(site: Site) -> None:
    first, second, taken, left = [await ask(site, f"Lunch {number}") for number in range(4)]
    await site.api("POST", f"/approvals/{taken}", json={"verdict": "reject"})
    posted = await site.post("/approvals", verdict="approve", action=[first, taken], group=f"{first} {second}")
    said = await after(site, posted)
    assert "2 actions approved. 1 came too late: rejected by dashboard owner" in said
    states = [await status(site, each) for each in (first, second, taken, left)]
    assert states == ["queued", "queued", "rejected", "approved_pending"]
    audited = (await site.read(lambda tx: list_entries(tx, AuditFilter(action="action.approve")))).entries
    assert {entry.subject_id for entry in audited} == {first, second}, "each by itself"
    nothing = await after(site, await site.post("/approvals", verdict="reject"))
    assert "Select one or more actions first." in nothing
    await site.post("/approvals", verdict="reject", all=left)
    assert await status(site, left) == "rejected"


@pytest.mark.req("UX-1")
async def test_an_approval_is_undone_by_one_press(site: Site) -> None:
    ids = [await ask(site, f"Lunch {number}") for number in range(2)]
    page = (await site.get((await site.post("/approvals", verdict="approve", action=ids)).headers["location"])).text
    assert 'action="/approvals/undo"' in page
    said = await after(site, await site.post("/approvals/undo", action=ids))
    assert "2 actions wait for approval again." in said
    assert {await status(site, each) for each in ids} == {"approved_pending"}
    assert "2 could not be taken back" in await after(site, await site.post("/approvals/undo", action=ids))


@pytest.mark.req("UX-1")
async def test_a_rejection_is_undone_by_one_press_for_a_moment_and_only_by_who_rejected(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        ids = [await ask(site, f"Lunch {number}") for number in range(2)]
        page = (await site.get((await site.post("/approvals", verdict="reject", action=ids)).headers["location"])).text
        assert 'action="/approvals/undo"' in page
        other = Actor("discord", "ana")
        with pytest.raises(BadInput, match="is rejected"):
            await site.app.database.write(lambda tx: take_back(tx, site.app.queue, ids[0], other))
        said = await after(site, await site.post("/approvals/undo", action=ids))
        assert "2 actions wait for approval again." in said
        assert {await status(site, each) for each in ids} == {"approved_pending"}
        which = AuditFilter(subject_type="action", subject_id=ids[0])
        entries = (await site.app.database.read(lambda tx: list_entries(tx, which))).entries
        assert [each.action for each in entries] == ["action.reopen", "action.reject"]
        await site.post("/approvals", verdict="reject", action=ids)
        clock.advance(61)
        assert "2 could not be taken back" in await after(site, await site.post("/approvals/undo", action=ids))
        assert {await status(site, each) for each in ids} == {"rejected"}


@pytest.mark.req("UX-1")
async def test_what_cannot_be_undone_is_shown_in_full_before_it_is_approved(site: Site) -> None:
    body = "With pleasure. " * 50 + "The end."
    reply, trash = await ask(site, "Lunch?", "auto_reply", body=body), await ask(site, "Sale")
    shown = await site.post("/approvals", verdict="approve", action=[reply, trash])
    assert shown.status_code == 200
    assert "The end." in shown.text
    assert "1 other selected action is approved with it" in text_of(shown.text)
    assert (await status(site, reply), await status(site, trash)) == ("approved_pending", "approved_pending")
    alone = await site.post(f"/approvals/{reply}/approve")
    assert "This cannot be undone" in alone.text
    done = await site.post("/approvals", verdict="approve", action=[reply, trash], confirmed=reply)
    page = (await site.get(done.headers["location"])).text
    assert (await status(site, reply), await status(site, trash)) == ("queued", "queued")
    assert f'name="action" value="{trash}"' in page, "the one that can be undone"
    assert f'name="action" value="{reply}"' not in page


@pytest.mark.req("UX-1")
async def test_the_api_answers_many_and_takes_back(site: Site) -> None:
    ids = [await ask(site, f"Lunch {number}") for number in range(2)]
    given = (await site.api("POST", "/approvals", json={"verdict": "approve", "actions": [*ids, new_id()]})).json()
    assert [each["counted"] for each in given["answers"]] == [True, True, False]
    assert "there is no action" in given["answers"][2]["standing"]
    taken = (await site.api("POST", "/actions/take-back", json={"actions": ids[:1]})).json()["answers"]
    assert taken == [{"action": ids[0], "counted": True, "standing": "waits for approval again"}]
    assert (await site.api("POST", "/approvals", json={"verdict": "approve", "actions": []})).status_code == 422


@pytest.mark.req("UX-1")
async def test_always_allow_shows_the_rule_and_then_makes_it(site: Site) -> None:
    kept = await ask(site, "Offer 0", "archive", sender="news@shop.example")
    also = await ask(site, "Offer 1", "archive", sender="news@shop.example")
    page = text_of((await site.get(f"/approvals/{kept}/always")).text)
    assert "Archive: news@shop.example" in page
    assert "from news@shop.example" in page
    assert "Result of the trial" in page
    assert (await site.api("GET", "/rules")).json()["items"] == [], "it is only shown"
    assert "Archive: shop.example" in text_of((await site.get(f"/approvals/{kept}/always?of=sender_domain")).text)
    said = await after(site, await site.post(f"/approvals/{kept}/always", of="sender_domain", action=[also]))
    assert "The rule Archive: shop.example needs no approval from now on. 1 action approved." in said
    [rule] = (await site.api("GET", "/rules")).json()["items"]
    assert (rule["condition"], rule["unattended"]) == ({"sender_domain": "shop.example"}, False)
    assert (await status(site, kept), await status(site, also)) == ("approved_pending", "queued")


@pytest.mark.req("UX-1")
async def test_always_allow_asks_for_the_passphrase_where_the_rule_would_destroy_mail(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        action_id = await ask(site, sender="ann@gmail.com")
        page = text_of((await site.get(f"/approvals/{action_id}/always")).text)
        assert "without approval" in page
        assert "this domain" not in page, "anybody has an address there"
        clock.advance(300)
        refused = await site.post(f"/approvals/{action_id}/always", action=action_id)
        assert "Confirm with your passphrase" in refused.text
        assert await status(site, action_id) == "approved_pending"
        assert (await site.api("GET", "/rules")).json()["items"] == []


@pytest.mark.req("UX-1")
async def test_no_rule_is_offered_for_a_reply_and_the_rule_that_asks_is_changed_and_no_other_made(site: Site) -> None:
    reply = await ask(site, "Lunch?", "auto_reply", body="Yes")
    assert f"/approvals/{reply}/always" not in (await site.get("/approvals")).text
    assert (await site.get(f"/approvals/{reply}/always")).status_code == 422
    rule = await add_one_rule(site, actions=("trash",))
    asked = await ask(site, "Your receipt")
    mine = update(actions).where(actions.c.id == asked).values(rule_id=rule.id, rule_name=rule.name, origin="rule")
    await site.write(lambda tx: tx.execute(mine))
    assert "It would no longer need your approval" in text_of((await site.get(f"/approvals/{asked}/always")).text)
    await site.post(f"/approvals/{asked}/always", stamp=rule.stamp)
    [changed] = (await site.api("GET", "/rules")).json()["items"]
    assert (changed["id"], changed["name"], changed["unattended"]) == (rule.id, rule.name, True)
