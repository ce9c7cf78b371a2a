"""The Review page and its API: worked off one by one or many at once, and a rule made from an item."""

from __future__ import annotations

import httpx2
import pytest
from sqlalchemy import select, update

from postroom.audit import SYSTEM
from postroom.db import Tx
from postroom.db.tables.accounts import accounts
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import actions, decisions
from postroom.domain.jobs import CLASSIFY, RULES_APPLY
from postroom.domain.roles import Role
from postroom.triage.rules import applying
from postroom.triage.rules.applying import PastMail
from postroom.triage.rules.rows import StoredRule
from tests.support.dashboard_data import add_decided_mail, add_one_rule
from tests.support.dashboards import Site, text_of

WHY = "No rule decides it, and the budget of today has no room for the model."

pytestmark = pytest.mark.req("UX-1")


async def leave(site: Site, key: str, **more: object) -> str:
    """A message that nothing decided; its item."""
    given = {"source": "none", "reason": WHY, "needs_review": True, "review_cause": "budget", **more}
    message = await add_decided_mail(site, key, **given)  # type: ignore[arg-type]
    mine = select(accounts.c.id).scalar_subquery()
    await site.write(lambda tx: tx.execute(update(messages).values(account_id=mine)))
    query = select(decisions.c.id).where(decisions.c.message_id == message)
    return str(await site.read(lambda tx: tx.execute(query).scalar_one()))


async def after(site: Site, posted: httpx2.Response) -> str:
    """What the page says that a form leads to."""
    return text_of((await site.get(posted.headers["location"])).text)


async def keys_left(site: Site) -> list[str]:
    return [item["key"] for item in (await site.api("GET", "/review")).json()["items"]]


async def test_what_needs_review_is_listed_with_the_reason_and_done_in_bulk(site: Site) -> None:
    assert "Nothing needs review." in (await site.get("/review")).text
    items = [await leave(site, f"m{number}") for number in range(3)]
    assert "3 messages need review" in text_of((await site.get("/")).text)
    page = text_of((await site.get("/review")).text)
    assert WHY in page
    assert "Make a rule" in page
    done = await site.post("/review", intent="done", item=items[:2])
    assert "2 messages marked as reviewed." in await after(site, done)
    assert await keys_left(site) == ["m2"]
    assert (await site.post("/review", intent="done")).status_code == 422
    await site.post("/review", intent="done-all")
    assert await keys_left(site) == []


async def test_what_the_budget_sent_there_is_judged_again_in_bulk(site: Site) -> None:
    await leave(site, "m1")
    other = await leave(site, "m2", review_cause="model_unsure", source="llm")
    await site.post("/review", intent="ask-all", cause="budget")
    assert await keys_left(site) == ["m2"]
    queued = select(jobs.c.queue_name).where(jobs.c.type == CLASSIFY.name)
    assert await site.read(lambda tx: list(tx.execute(queued).scalars())) == ["history"]
    answer = await site.api("POST", "/review/ask", json={"items": [other]})
    assert answer.json() == {"asked": 0, "left": 1}


async def test_acting_on_a_message_also_marks_it_as_done(site: Site) -> None:
    item = await leave(site, "m1")
    refused = await site.post("/review", intent="act", item=item, action="apply_label", label="")
    assert refused.status_code == 422
    assert "is needed to apply a label" in text_of(refused.text)
    await site.post("/review", intent="act", item=item, action="apply_label", label="Later")
    assert await keys_left(site) == []
    [row] = await site.read(lambda tx: tx.execute(select(actions)).all())
    assert (row.type, row.parameters, row.origin) == ("apply_label", {"label": "Later"}, "person")


async def test_marking_as_done_and_acting_are_undone_by_one_press(site: Site) -> None:
    first, second = await leave(site, "m1"), await leave(site, "m2")
    assert "1 message had been dealt with meanwhile" not in await after(
        site, await site.post("/review", intent="done", item=first)
    )
    said = await after(site, await site.post("/review", intent="done", all=f"{first} {second}"))
    assert "1 message marked as reviewed. 1 message had been dealt with meanwhile." in said
    assert "2 messages are back on the list." in await after(
        site, await site.post("/review/undo", item=[first, second])
    )
    assert await keys_left(site) == ["m2", "m1"]
    page = await site.get((await site.post("/review", intent="act", item=first, action="star")).headers["location"])
    [row] = await site.read(lambda tx: tx.execute(select(actions)).all())
    assert f'name="action" value="{row.id}"' in page.text
    said = await after(site, await site.post("/review/undo", item=first, action=row.id))
    assert "1 message is back on the list. 1 action taken back." in said
    [row] = await site.read(lambda tx: tx.execute(select(actions)).all())
    assert row.status == "canceled"
    assert await keys_left(site) == ["m2", "m1"]


async def test_a_rule_is_made_from_an_item(site: Site) -> None:
    item = await leave(site, "m1")
    page = (await site.get(f"/rules/new?like={item}")).text
    assert "ann@example.org" in page
    assert 'value="Mail from ann@example.org"' in page


async def test_a_rule_is_applied_to_past_mail_stopped_and_goes_on(site: Site) -> None:
    rule = await add_one_rule(site)
    assert "Apply it to past mail" in (await site.get(f"/rules/{rule.id}")).text
    begun = await site.post(f"/rules/{rule.id}/apply", query="older_than:1d", cap="7")
    where = begun.headers["location"]
    assert where.startswith("/rules/applications/")
    assert "Receipts on past mail" in await after(site, begun)
    again = await site.post(f"/rules/{rule.id}/apply", cap="7")
    assert "is being applied already" in await after(site, again)
    await site.post(f"{where}/stop")
    await site.post(f"{where}/resume", cap="9")
    shown = (await site.api("GET", where)).json()
    assert (shown["state"], shown["cap"]) == ("running", 9)
    assert "Undoing has started" in await after(site, await site.post(f"{where}/undo"))
    kinds = select(jobs.c.type).where(jobs.c.type == RULES_APPLY.name)
    assert len(await site.read(lambda tx: tx.execute(kinds).all())) == 1


async def test_a_token_does_not_apply_a_rule_that_destroys_mail(site: Site) -> None:
    rule = await add_one_rule(site, actions=("trash",))
    headers = {"authorization": f"Bearer {await site.token(Role.DASHBOARD)}"}
    async with site.stranger(headers=headers) as program:
        answer = await program.post(f"/api/rules/{rule.id}/apply", json={})
        assert answer.status_code == 403
        assert "passphrase" in answer.json()["error"]["message"]
        begun = await apply_as_owner(site, rule)
        answer = await program.post(f"/api/rules/applications/{begun}/resume", json={"cap": 9_000})
    assert answer.status_code == 403, "to go on with another cap destroys more"
    assert "passphrase" in answer.json()["error"]["message"]


async def apply_as_owner(site: Site, rule: StoredRule) -> str:
    """From the command line, and stopped."""

    def write(tx: Tx) -> str:
        begun = applying.begin(tx, site.app.queue, rule, PastMail(), 0, SYSTEM)
        return applying.stop(tx, site.app.queue, begun.id, SYSTEM).id

    return await site.write(write)
