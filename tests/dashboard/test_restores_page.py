"""The pages of mail that is put back: counted first, started with the passphrase, steered, and proposed by others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import pytest

from postroom.accounts.account import NewAccount, add_account
from postroom.actions.restore import runs
from postroom.actions.restore.runs import RestoreOrder, RunState
from postroom.audit import SYSTEM, Actor
from postroom.dashboard.security import passphrase
from postroom.domain.clock import ManualClock
from postroom.domain.roles import Role
from tests.support.dashboard_data import HOSTILE_TEXT, archive_mail
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import ME
from tests.support.restores import archived
from tests.support.switchboards import in_a_task

PHRASE = "a long passphrase of the owner"


@pytest.fixture
async def stocked(database_url: str, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Site]:
    """Five messages in the archive, an account, and an owner who gave the passphrase a while ago."""
    async with in_a_task(open_site(tmp_path / "home", database_url, clock)) as site:
        await archive_mail(site, [archived(number) for number in range(5)])
        await site.write(lambda tx: add_account(tx, NewAccount(ME, "http://127.0.0.1:9"), clock.now()))
        made = await passphrase.PassphraseHasher().make(PHRASE)
        own = (await site.api("GET", "/settings")).json()["sessions"][0]["id"]
        await site.write(lambda tx: passphrase.set_hash(tx, made, SYSTEM, clock.now(), but=own))
        clock.advance(300)
        yield site


@pytest.mark.req("IM-8")
async def test_mail_is_counted_then_put_back_with_the_passphrase(stocked: Site) -> None:
    site = stocked
    assert 'href="/archive/restores"' in (await site.get("/archive")).text
    searched = (await site.get("/mail?query=number1")).text
    assert "/archive/restores?query=number1" in searched
    page = (await site.get(f"/archive/restores?query=number1&account={ME}")).text
    assert 'value="number1"' in page
    counted = await site.post("/archive/restores", account=ME, query="", intent="plan")
    assert "5 messages" in text_of(counted.text)
    assert "Put back" in counted.text
    wanted = {"account": ME, "query": "", "intent": "start"}
    asked = await site.post("/archive/restores", **wanted)
    assert asked.status_code == 403
    assert await site.read(runs.list_runs) == []
    begun = await site.post("/archive/restores", **wanted, proof=PHRASE)
    [made] = await site.read(runs.list_runs)
    assert begun.headers["location"] == f"/archive/restores/{made.run.id}"
    assert "Stop" in (await site.get(begun.headers["location"])).text
    stopped = await site.post(f"/archive/restores/{made.run.id}/stop")
    assert stopped.status_code == 303
    shown = text_of((await site.get("/archive/restores")).text)
    assert "Stopped" in shown or "stopped" in shown


@pytest.mark.req("IM-8")
async def test_a_proposal_is_approved_or_rejected_by_the_owner(stocked: Site) -> None:
    site, assistant = stocked, Actor("agent", "assistant")
    order = RestoreOrder.of(ME, "number2")
    proposed = await site.write(
        lambda tx: runs.begin(tx, site.app.queue, order, assistant, proposed=f"they asked {HOSTILE_TEXT}")
    )
    page = await site.get(f"/archive/restores/{proposed.id}")
    assert "An assistant proposes this: they asked" in unescape(text_of(page.text))
    assert HOSTILE_TEXT not in page.text
    assert (await site.post(f"/archive/restores/{proposed.id}/approve")).status_code == 403
    approved = await site.post(f"/archive/restores/{proposed.id}/approve", proof=PHRASE)
    assert approved.status_code == 303
    shown = (await site.api("GET", f"/archive/restores/{proposed.id}")).json()
    assert (shown["state"], shown["target"]) == (RunState.RUNNING, ME)
    again = await site.post(f"/archive/restores/{proposed.id}/reject")
    assert again.status_code == 303
    assert "Not done" in (await site.get(again.headers["location"])).text


async def test_the_api_counts_lists_and_refuses_a_token(stocked: Site) -> None:
    site = stocked
    counted = (await site.api("POST", "/archive/restores/plan", json={"account": ME, "query": "number3"})).json()
    assert counted["messages"] == 1
    token = await site.token(Role.DASHBOARD)
    async with site.stranger(headers={"Authorization": f"Bearer {token}"}) as program:
        refused = await program.post("/api/archive/restores", json={"account": ME})
        assert refused.status_code == 403
    wrong = await site.post("/archive/restores", account="nobody", query="", intent="plan")
    assert wrong.status_code == 422
    assert "is not an e-mail address" in unescape(wrong.text)
    assert (await site.api("GET", "/archive/restores")).json() == {"restores": []}
    assert (await site.get("/archive/restores/0199a1c2-7e5b-7abc-8def-0123456789ab")).status_code == 404
