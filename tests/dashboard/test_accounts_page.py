"""Adding a mailbox in the dashboard: by a login at Google, or with a token at a stand-in."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from postroom import audit
from postroom.accounts.account import NewAccount, add_account, list_accounts
from postroom.mailboxes.credentials import OAuthGrant, StaticGrant
from postroom.mailboxes.gmail.methods import ASKED_SCOPES, scopes_to_request
from postroom.queue.inspection import JobFilter, list_jobs
from postroom.settings import DashboardSettings
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from tests.support.dashboards import Site, open_site, text_of
from tests.support.logins import SECRET, consent, secrets_file

SAME = {"sec-fetch-site": "same-origin"}


def app_of(url: str, folder: Path) -> str:
    return secrets_file(folder, url).read_text()


async def stage_of(site: Site, login: str) -> dict[str, Any]:
    while (told := (await site.api("GET", f"/accounts/logins/{login}")).json())["stage"] == "waiting":
        await asyncio.sleep(0.02)
    answer: dict[str, Any] = told
    return answer


async def job_types(site: Site) -> set[str]:
    return {job.type for job in await site.read(lambda tx: list_jobs(tx, JobFilter()))}


async def test_an_empty_house_leads_to_the_page_that_adds_a_mailbox(site: Site) -> None:
    for page in ("/", "/settings"):
        assert 'href="/settings/accounts/new"' in (await site.get(page)).text


@pytest.mark.req("UX-2")
async def test_adding_a_mailbox_leads_through_googles_steps(site: Site) -> None:
    page = (await site.get("/settings/accounts/new")).text
    said = text_of(page)
    for step in ("enable the Gmail API", "consent screen", "seven days", "Desktop app", "Publish app"):
        assert step in said
    assert page.count('<details name="google"') == 4
    for asked in ASKED_SCOPES:
        assert asked.scope in said
        assert all(purpose in said for purpose in asked.purposes)
    assert scopes_to_request(full_access=False) | scopes_to_request(full_access=True) == {
        asked.scope for asked in ASKED_SCOPES
    }


@pytest.mark.req("UX-2")
async def test_the_stand_in_is_offered_to_developers_and_where_a_mailbox_is_at_one(site: Site, tmp_path: Path) -> None:
    new, offered = "/settings/accounts/new", "Simulated mailbox"
    assert offered not in (await site.get(new)).text
    assert "Address of the Gmail API" not in (await site.get(new)).text
    await site.write(
        lambda tx: add_account(tx, NewAccount("sim@example.com", "http://127.0.0.1:9"), site.app.clock.now())
    )
    assert offered in (await site.get(f"{new}?email=sim@example.com")).text
    async with open_site(tmp_path / "dev", dashboard=DashboardSettings(dev=True)) as dev:
        assert offered in (await dev.get(new)).text


@pytest.mark.req("UX-2")
async def test_the_client_file_is_checked_before_a_login(site: Site, tmp_path: Path) -> None:
    good = app_of("http://127.0.0.1:9", tmp_path)
    page = await site.post("/settings/accounts/client", email="owner@example.com", client_secrets=good)
    assert page.status_code == 200
    assert "The client file is good: a Desktop app" in text_of(page.text)
    assert 'value="owner@example.com"' in page.text
    key = json.dumps({"type": "service_account", "private_key": "x"})
    refused = await site.post("/settings/accounts/client", client_secrets=key)
    assert refused.status_code == 422
    assert "service account" in text_of(refused.text)
    assert "create a client of type Desktop app" in text_of(refused.text)
    missing = json.dumps({"installed": {"client_id": "x"}})
    told = (await site.api("POST", "/accounts/client", json={"content": missing})).json()
    assert "installed.client_secret" in told["problem"]
    told = (await site.api("POST", "/accounts/client", json={"content": good})).json()
    assert (told["client_id"], told["problem"]) == (json.loads(good)["installed"]["client_id"], None)
    assert await site.read(list_accounts) == []


async def test_a_token_at_a_stand_in_adds_the_mailbox_and_its_mail_begins_to_come(site: Site) -> None:
    async with running_sim(GeneratedMailbox(3, 1, "owner@example.com")) as sim:
        given = {"email": "Owner@Example.com", "api_base": sim.url, "access_token": sim.token}
        answer = await site.post("/settings/accounts", **given)
    assert (answer.status_code, answer.headers["location"]) == (303, "/settings#accounts")
    page = (await site.get("/settings")).text
    assert "owner@example.com is added" in text_of(page)
    assert sim.token not in page
    grant = site.app.grants.load("owner@example.com")
    assert isinstance(grant, StaticGrant)
    assert {"labels.sync.gmail", "history.sync.gmail", "sync.gmail"} <= await job_types(site)
    [entry] = (await site.read(lambda tx: audit.list_entries(tx, audit.AuditFilter(action="account.add")))).entries
    assert (entry.actor.name, entry.after) == ("owner", {"email": "owner@example.com", "api_base": sim.url})


@pytest.mark.parametrize(
    ("change", "beside"),
    [
        ({"email": "nobody"}, "email"),
        ({"api_base": "http://example.org"}, "api_base"),
        ({"api_base": "https://no..name"}, "api_base"),
        ({"access_token": ""}, "access_token"),
        ({"access_token": "wrong"}, "access_token"),
        ({"email": "other@example.com"}, "access_token"),
    ],
    ids=["no address", "in clear", "no name", "no token", "refused", "another mailbox"],
)
async def test_what_cannot_be_added_is_refused_beside_its_field_and_nothing_is_stored(
    site: Site, change: dict[str, str], beside: str
) -> None:
    async with running_sim(GeneratedMailbox(1, 1, "owner@example.com")) as sim:
        given = {"email": "owner@example.com", "api_base": sim.url, "access_token": sim.token, **change}
        answer = await site.post("/settings/accounts", **given)
    assert answer.status_code == 422
    assert f'id="e-{beside}"' in answer.text
    assert await site.read(list_accounts) == []
    assert site.app.grants.find("owner@example.com") is None


async def test_a_program_adds_a_mailbox_the_same_way(site: Site) -> None:
    async with running_sim(GeneratedMailbox(3, 1, "owner@example.com")) as sim:
        given = {"email": "owner@example.com", "api_base": sim.url, "access_token": sim.token}
        assert (await site.api("POST", "/accounts", json={**given, "access_token": "of two words"})).status_code == 422
        assert (await site.api("POST", "/accounts", json={**given, "access_token": "wrong"})).status_code == 409
        added = await site.api("POST", "/accounts", json=given)
    assert (added.status_code, added.json()["email"]) == (201, "owner@example.com")
    assert sim.token not in added.text


@pytest.mark.parametrize("uploaded", [True, False], ids=["file", "pasted"])
async def test_a_login_at_google_is_begun_here_and_finished_in_the_browser(
    site: Site, tmp_path: Path, uploaded: bool
) -> None:
    async with running_sim(GeneratedMailbox(3, 1, "owner@example.com")) as sim:
        text = app_of(sim.url, tmp_path)
        fields = {"csrf": site.csrf, "email": "owner@example.com", "api_base": sim.url}
        given: dict[str, Any] = {"data": fields if uploaded else {**fields, "client_secrets": text}}
        given["files"] = {"file": ("client.json", text if uploaded else "", "application/json")}
        begun = await site.http.post("/settings/accounts/logins", headers=SAME, **given)
        assert begun.status_code == 303, text_of(begun.text)
        place = begun.headers["location"]
        waiting = await site.get(place)
        assert "Continue to Google" in text_of(waiting.text)
        login = (await site.api("GET", f"/accounts/logins/{place.rpartition('/')[2]}")).json()
        assert (await consent(login["url"])).status_code == 200
        assert (await stage_of(site, login["id"]))["stage"] == "added"
    assert "is being fetched" in text_of((await site.get(place)).text)
    assert isinstance(site.app.grants.load("owner@example.com"), OAuthGrant)
    assert [account.email for account in await site.read(list_accounts)] == ["owner@example.com"]
    assert SECRET not in (await site.get(place)).text


async def test_a_login_that_the_owner_declines_says_so_and_stores_nothing(site: Site, tmp_path: Path) -> None:
    async with running_sim(GeneratedMailbox(1, 1, "owner@example.com")) as sim:
        wanted = {"email": "owner@example.com", "client_secrets": json.loads(app_of(sim.url, tmp_path))}
        begun = await site.api("POST", "/accounts/logins", json={**wanted, "api_base": sim.url})
        assert begun.status_code == 201
        back = httpx2.URL(begun.json()["url"]).params
        async with httpx2.AsyncClient() as browser:
            await browser.get(back["redirect_uri"], params={"state": back["state"], "error": "access_denied"})
        told = await stage_of(site, begun.json()["id"])
    assert (told["stage"], "declined" in told["message"]) == ("refused", True)
    assert "declined" in text_of((await site.get(f"/settings/accounts/logins/{told['id']}")).text)
    assert await site.read(list_accounts) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is needed"),
        ("not json", "is not JSON"),
        ('{"web": {}}', "Web application"),
        ("[1]", "no client-secrets file"),
        ("[" * 50_000, "is not JSON"),
    ],
    ids=["nothing", "no JSON", "web app", "a list", "deep"],
)
async def test_a_file_that_is_no_client_secrets_is_refused_with_how_to_get_one(
    site: Site, text: str, said: str
) -> None:
    answer = await site.post("/settings/accounts/logins", email="owner@example.com", client_secrets=text)
    assert answer.status_code == 422
    assert said in text_of(answer.text)
    assert 'id="e-client_secrets"' in answer.text


async def test_a_login_that_is_over_or_never_was_is_not_found(site: Site) -> None:
    assert (await site.api("GET", f"/accounts/logins/{uuid4()}")).status_code == 404
    assert (await site.get("/settings/accounts/logins/none")).status_code == 404


async def test_a_second_login_takes_the_place_of_the_first_and_few_may_be_under_way(site: Site, tmp_path: Path) -> None:
    app = json.loads(app_of("http://127.0.0.1:9", tmp_path))

    async def begin(email: str) -> httpx2.Response:
        return await site.api("POST", "/accounts/logins", json={"email": email, "client_secrets": app})

    first = (await begin("a@example.com")).json()
    assert (await begin("a@example.com")).json()["id"] != first["id"]
    assert "later login" in (await stage_of(site, first["id"]))["message"]
    async with httpx2.AsyncClient() as browser:
        with pytest.raises(httpx2.ConnectError):
            await browser.get(httpx2.URL(first["url"]).params["redirect_uri"])
    answers = [(await begin(f"{name}@example.com")).status_code for name in "bcdef"]
    assert answers == [201, 201, 201, 201, 503]


@pytest.mark.req("JB-17")
async def test_the_labels_of_a_mailbox_are_synced_at_the_press_of_a_button(site: Site) -> None:
    async with running_sim(GeneratedMailbox(3, 1, "owner@example.com")) as sim:
        given = {"email": "owner@example.com", "api_base": sim.url, "access_token": sim.token}
        assert (await site.post("/settings/accounts", **given)).status_code == 303
        assert "Sync labels" in (await site.get("/settings")).text
        done = await site.post("/settings/accounts/labels", email="owner@example.com")
        assert done.headers["location"] == "/settings#accounts"
        again = (await site.api("POST", "/accounts/owner@example.com/labels")).json()
        assert again["added"] == 0
        assert f"{again['labels']} labels: {again['labels']} added." in text_of((await site.get("/settings")).text)
