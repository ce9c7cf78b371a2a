"""Sensitive changes ask for the passphrase again; a token makes none of them, and a stolen one gains nothing."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import httpx2
import pytest

from postroom.audit import SYSTEM, AuditFilter, list_entries
from postroom.dashboard.security import passphrase
from postroom.domain.clock import ManualClock
from postroom.domain.roles import Permission, Role, SensitiveChange, sensitive_table
from postroom.switchboard.tokens import list_tokens
from tests.dashboard.test_approvals_page import ask
from tests.support.dashboards import Site, open_site, text_of
from tests.support.mail import ME

pytestmark = pytest.mark.req("HW-4")

PHRASE, NEW = "correct horse battery staple", "another horse, another staple"
FORWARD = {"name": "Take it all", "condition": {"subject_contains": "a"}, "unattended": True}
FORWARD |= {"actions": ["forward=thief@evil.example", "trash"]}
EDITOR = {"name": "Away", "priority": "50", "whose_mail": "global", "subject": "offer", "action_1": "trash"}
EDITOR |= {"unattended": "yes", "enabled": "yes", "intent": "save"}
CLIENT = {"installed": {"client_id": "x", "client_secret": "GOCSPX-x", "redirect_uris": ["http://localhost"]}}
CLIENT["installed"] |= {"auth_uri": "https://accounts.google.com/a", "token_uri": "https://oauth2.googleapis.com/t"}


async def set_phrase(site: Site) -> None:
    made = await passphrase.PassphraseHasher().make(PHRASE)
    own = (await site.api("GET", "/settings")).json()["sessions"][0]["id"]
    await site.write(lambda tx: passphrase.set_hash(tx, made, SYSTEM, site.app.clock.now(), but=own))


def confirmation(answer: httpx2.Response) -> dict[str, str]:
    """The fields of the page that asks, as a browser without script would send them on."""
    assert "Confirm with your passphrase" in answer.text
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', answer.text)
    return {name: unescape(value) for name, value in found if name != "csrf"}


async def shown_after(site: Site, answer: httpx2.Response) -> str:
    """The page that a change leads to."""
    assert answer.status_code == 303, text_of(answer.text)
    return (await site.get(answer.headers["location"])).text


def test_the_table_of_sensitive_changes_is_that_of_the_handbook() -> None:
    page = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
    for line in sensitive_table():
        assert f"{line}\n" in page, line
    assert page.count("asks for the passphrase |") == sum("asks" in change.value[1] for change in SensitiveChange)


async def test_a_login_that_is_minutes_old_confirms_before_it_makes_a_token(tmp_path: Path, clock: ManualClock) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        wanted = {"role": "agent", "name": 'a "script"', "expires_days": "3"}
        assert "prt_" in await shown_after(site, await site.post("/settings/tokens", **wanted))
        clock.advance(300)
        asked = await site.post("/settings/tokens", **wanted)
        fields = confirmation(asked)
        assert (asked.status_code, fields) == (403, wanted)
        wrong = await site.post("/settings/tokens", **fields, proof="not the passphrase")
        assert wrong.status_code == 422
        assert 'id="e-proof"' in wrong.text
        assert len(await site.read(list_tokens)) == 1
        right = await site.post("/settings/tokens", **confirmation(wrong), proof=PHRASE)
        page = await shown_after(site, right)
        assert ("prt_" in page, PHRASE in page) == (True, False)
        again = await site.post("/settings/tokens", **wanted)
        assert "prt_" in await shown_after(site, again), "the proof holds for five minutes"
        clock.advance(299)
        assert "prt_" in await shown_after(site, await site.post("/settings/tokens", **wanted))
        clock.advance(1)
        assert (await site.post("/settings/tokens", **wanted)).status_code == 403
        entries = (await site.read(lambda tx: list_entries(tx, AuditFilter(action="dashboard.proof")))).entries
        assert len(entries) == 1


async def test_the_confirmation_needs_its_csrf_token_and_guesses_are_counted(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        clock.advance(600)
        wanted = {"role": "agent", "name": "x", "proof": PHRASE}
        assert (await site.http.post("/settings/tokens", data=wanted)).status_code == 403
        for n in range(5):
            assert (await site.post("/settings/tokens", **wanted | {"proof": f"guess {n}"})).status_code == 422
        assert (await site.post("/settings/tokens", **wanted)).status_code == 429
        assert await site.read(list_tokens) == []


async def test_the_api_asks_a_login_for_its_passphrase_and_a_token_cannot_give_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        token = await site.token(Role.DASHBOARD)
        clock.advance(300)
        wanted = {"role": "agent", "name": "x"}
        refused = await site.api("POST", "/settings/tokens", json=wanted)
        assert refused.status_code == 403
        assert "/api/settings/proof" in refused.json()["error"]["message"]
        assert (await site.api("POST", "/settings/proof", json={"passphrase": "wrong wrong"})).status_code == 422
        assert (await site.api("POST", "/settings/proof", json={"passphrase": PHRASE})).status_code == 200
        assert (await site.api("POST", "/settings/tokens", json=wanted)).status_code == 201
        async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
            assert (await program.post("/api/settings/proof", json={"passphrase": PHRASE})).status_code == 403


async def test_a_rule_that_destroys_unattended_is_saved_and_switched_on_only_with_the_passphrase(
    tmp_path: Path, clock: ManualClock
) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        clock.advance(300)
        tame = {name: value for name, value in EDITOR.items() if name != "unattended"} | {"name": "Tame"}
        assert (await site.post("/rules/new", **tame)).status_code == 303
        asked = await site.post("/rules/new", **EDITOR)
        assert asked.status_code == 403
        assert (await site.post("/rules/new", **confirmation(asked), proof=PHRASE)).status_code == 303
        rules = {each["name"]: each["id"] for each in (await site.api("GET", "/rules")).json()["items"]}
        away, tame_id = f"/rules/{rules['Away']}", f"/rules/{rules['Tame']}"
        await site.post(f"{away}/disable")
        clock.advance(300)
        assert (await site.post(f"{tame_id}/edit", **EDITOR | {"name": "Tame"})).status_code == 403
        assert (await site.post(f"{away}/enable", back="list")).status_code == 403
        assert (await site.api("POST", f"{away}/enable")).status_code == 403
        assert (await site.post(f"{tame_id}/enable")).status_code == 303
        assert (await site.post(f"{away}/enable", back="list", proof=PHRASE)).headers["location"] == "/rules"


async def test_full_access_to_a_mailbox_asks_with_the_file_that_was_chosen(tmp_path: Path, clock: ManualClock) -> None:
    async with open_site(tmp_path / "home", clock=clock) as site:
        await set_phrase(site)
        clock.advance(300)
        sent = {"csrf": site.csrf, "email": ME, "client_secrets": "", "full_access": "yes"}
        file = {"file": ("secrets.json", json.dumps(CLIENT).encode(), "application/json")}
        asked = await site.http.post("/settings/accounts/logins", data=sent, files=file)
        assert asked.status_code == 403
        fields = confirmation(asked)
        assert json.loads(fields["client_secrets"]) == CLIENT
        begun = await site.post("/settings/accounts/logins", **fields, proof=PHRASE)
        assert begun.status_code == 303
        token = await site.token(Role.DASHBOARD)
        async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
            wanted = {"email": ME, "client_secrets": CLIENT, "full_access": True}
            refused = await program.post("/api/accounts/logins", json=wanted)
            assert refused.status_code == 403
            assert "command line" in refused.json()["error"]["message"]


async def test_a_stolen_token_gains_nothing_lasting_and_a_new_passphrase_leaves_none_alive(site: Site) -> None:
    """Case 6: a one-day token minted others for ever, wrote a rule that forwards and trashes, and approved."""
    await set_phrase(site)
    question = await ask(site)
    stolen = await site.token(Role.DASHBOARD, permissions=None, expires_days=1)
    minting = await site.token(Role.DASHBOARD, permissions=[Permission.READ, Permission.TOKENS], expires_days=1)
    async with site.stranger(headers={"authorization": f"Bearer {stolen}"}) as thief:
        for role in Role:
            minted = await thief.post("/api/settings/tokens", json={"role": role, "name": "mine"})
            assert minted.status_code == 403
        rule_made = await thief.post("/api/rules", json=FORWARD)
        assert rule_made.status_code == 403
        assert "cannot" in rule_made.json()["error"]["message"]
        approved = await thief.post(f"/api/approvals/{question}", json={"verdict": "approve"})
        assert approved.status_code == 403
    async with site.stranger(headers={"authorization": f"Bearer {minting}"}) as thief:
        for role in (Role.AGENT, Role.CONNECTOR):
            assert (await thief.post("/api/settings/tokens", json={"role": role, "name": "x"})).status_code == 403
        more = {"role": "dashboard", "name": "more", "permissions": ["approve"]}
        assert (await thief.post("/api/settings/tokens", json=more)).status_code == 403
        made = (await thief.post("/api/settings/tokens", json={"role": "dashboard", "name": "heir"})).json()
    stored = {token.name: token for token in await site.read(list_tokens)}
    heir = stored["heir"]
    parent = next(token for token in stored.values() if token.id == heir.made_by)
    assert heir.permissions == {Permission.READ}
    assert heir.expires_at == parent.expires_at is not None
    async with site.stranger(headers={"authorization": f"Bearer {made['token']}"}) as second:
        assert (await second.get("/api/queue")).status_code == 200
        revoked = await site.post(f"/settings/tokens/{parent.id}/revoke")
        assert revoked.status_code == 303
        assert "with 1 token that it made" in text_of((await site.get("/settings")).text)
        assert (await second.get("/api/queue")).status_code == 401
    new = {"current": PHRASE, "passphrase": NEW, "repeated": NEW, "revoke_tokens": "yes"}
    assert (await site.post("/settings/passphrase", **new)).status_code == 303
    assert "1 token revoked" in text_of((await site.get("/settings")).text)
    async with site.stranger(headers={"authorization": f"Bearer {stolen}"}) as thief:
        assert (await thief.get("/api/queue")).status_code == 401
    assert all(token.revoked_at is not None for token in await site.read(list_tokens))
    entries = (await site.read(lambda tx: list_entries(tx, AuditFilter(action="token.revoke_all")))).entries
    assert [entry.after for entry in entries] == [{"revoked": 1}]


async def test_a_new_passphrase_revokes_no_token_unasked(site: Site) -> None:
    await set_phrase(site)
    token = await site.token(Role.DASHBOARD)
    new = {"current": PHRASE, "passphrase": NEW, "repeated": NEW}
    assert "Also revoke all tokens" in (await site.get("/settings")).text
    assert (await site.post("/settings/passphrase", **new)).status_code == 303
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        assert (await program.get("/api/queue")).status_code == 200


async def test_a_token_with_the_permission_approves(site: Site) -> None:
    question = await ask(site)
    token = await site.token(Role.DASHBOARD, permissions=[Permission.APPROVE])
    async with site.stranger(headers={"authorization": f"Bearer {token}"}) as program:
        answer = await program.post(f"/api/approvals/{question}", json={"verdict": "reject"})
        assert (answer.status_code, answer.json()["counted"]) == (200, True)


async def test_a_link_that_sets_the_passphrase_anew_can_revoke_all_tokens_too(site: Site) -> None:
    await set_phrase(site)
    await site.token(Role.DASHBOARD)
    link = await site.write(lambda tx: passphrase.make_link(tx, SYSTEM, site.app.clock.now()))
    async with site.stranger() as person:
        assert "Also revoke all tokens" in (await person.get("/welcome", params={"link": link})).text
        given = {"link": link, "passphrase": NEW, "repeated": NEW, "revoke_tokens": "yes"}
        assert (await person.post("/welcome", data=given)).status_code == 303
    assert all(token.revoked_at is not None for token in await site.read(list_tokens))
