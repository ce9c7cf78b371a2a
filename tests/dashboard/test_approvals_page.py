"""The Approvals page and its API: a person sees why, answers once, and whoever comes second is told."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from postroom.accounts.account import NewAccount, add_account
from postroom.actions.scheduling import ActionIntake
from postroom.audit import AuditFilter, list_entries
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, decisions
from postroom.domain import jobs as names
from postroom.domain.actions import ActionOrder, Origin, Proposal, parse_action
from postroom.domain.ids import new_id
from tests.support.dashboards import Site, text_of

HOSTILE = "<script>alert(1)</script> \u202egnp.exe"


async def ask(site: Site, subject: str = "Lunch?") -> str:
    """A question about a message; its action's id."""
    now = site.app.clock.now()
    owned = select(messages.c.account_id).where(messages.c.account_id.is_not(None)).limit(1)
    known = await site.app.database.read(lambda tx: tx.execute(owned).scalar())

    def run(tx: Tx) -> str:
        account = (
            known or add_account(tx, NewAccount("me@example.org", "http://127.0.0.1:1", None, frozenset()), now).id
        )
        message_id, decision_id = new_id(), new_id()
        mail = {"channel": "email", "provider": "gmail", "endpoint_identity": "me@example.org", "subject": subject}
        mail |= {"sender_identity": "ann@friends.example", "ingestion_tier": "full", "policy_tier": "default"}
        mail |= {"external_event_id": message_id, "idempotency_key": message_id, "account_id": account}
        times = {"observed_at": now, "received_at": now, "accepted_at": now}
        tx.execute(messages.insert().values(id=message_id, **mail, **times))
        judged = {"source": "llm", "action": "trash", "reason": "Junk.", "created_at": now}
        tx.execute(decisions.insert().values(id=decision_id, message_id=message_id, **judged))
        proposal = Proposal(parse_action("trash"), ("trash is dangerous", "the model is not sure"))
        order = ActionOrder(account, message_id, message_id, None, decision_id, Origin.MODEL, "model m", (proposal,))
        return ActionIntake(site.app.queue, site.app.settings.safety).accept(tx, order)[0]

    return await site.write(run)


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
    assert "trash is dangerous" in said
    assert "the model is not sure" in said
    assert "<script>alert" not in page.text
    assert "\u202e" not in page.text


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
