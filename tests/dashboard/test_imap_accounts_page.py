"""Adding an IMAP mailbox in the dashboard: the provider, the password, and what is wrong beside its field."""

from __future__ import annotations

import pytest

from postroom.accounts.account import AccountStatus, NewAccount, Provider, add_account, list_accounts, record_check
from postroom.app.installation import App
from postroom.app.server_discovery import DiscoveredServers
from postroom.mailboxes.imap.autoconfig import MailServers
from postroom.mailboxes.imap.connection import ServerAddress
from postroom.mailboxes.imap.providers import PRESETS
from postroom.queue.inspection import JobFilter, list_jobs
from tests.support.dashboards import Site, text_of
from tests.support.dovecot import PASSWORD, dovecot
from tests.support.mail import OWNER

PAGE = "/settings/accounts/imap"
WRONG = {"password": "wrong-one"}


class Finds:
    def __init__(self, found: DiscoveredServers | None) -> None:
        self._found = found

    async def find(self, email: str) -> DiscoveredServers | None:
        return self._found


@pytest.mark.req("IM-1")
async def test_every_provider_can_be_chosen_and_says_which_password_to_enter(site: Site) -> None:
    first = (await site.get(PAGE)).text
    assert 'name="password"' not in first
    for preset in PRESETS:
        assert f"provider={preset.key}" in first
        said = text_of((await site.get(PAGE, params={"provider": preset.key})).text)
        assert preset.hint.replace("`", "").split(".")[0] in said.replace("&gt;", ">").replace("&amp;", "&")
        if preset.takes_password:
            assert f"Server: {preset.address.host}, port {preset.address.port}" in said
    outlook = (await site.get(PAGE, params={"provider": "outlook"})).text
    assert 'name="password"' not in outlook, "a password would be of no use"
    assert 'href="/settings/accounts/imap"' in (await site.get("/settings/accounts/new")).text


@pytest.mark.req("IM-1")
async def test_a_mailbox_is_checked_added_shown_and_given_a_new_password(site: Site) -> None:
    with dovecot() as server:
        given = {"provider": "other", "email": OWNER, "host": "127.0.0.1", "port": str(server.port)}
        refused = await site.post(PAGE, **given, **WRONG)
        assert refused.status_code == 422
        assert 'id="e-password"' in refused.text
        assert "refuses the login" in text_of(refused.text)
        assert "wrong-one" not in refused.text
        assert f'value="{OWNER}"' in refused.text
        assert await site.read(list_accounts) == []
        assert site.app.grants.imap.find(OWNER) is None
        added = await site.post(PAGE, **given, password=PASSWORD)
        assert (added.status_code, added.headers["location"]) == (303, "/settings#accounts")
        page = (await site.get("/settings")).text
        assert f"{OWNER} is added" in text_of(page)
        assert "IMAP, 127.0.0.1" in text_of(page)
        assert {"sync.gmail"} <= {job.type for job in await site.read(lambda tx: list_jobs(tx, JobFilter()))}
        checked = await site.post("/settings/accounts/check", email=OWNER)
        assert checked.status_code == 303
        assert "it accepts the login" in text_of((await site.get("/settings")).text)
        moved = await site.get("/settings/accounts/new", params={"email": OWNER})
        assert moved.headers["location"].startswith(f"{PAGE}?email=")
        again = (await site.get(PAGE, params={"email": OWNER})).text
        assert f"New password for {OWNER}" in text_of(again)
        assert 'name="host"' not in again
        wrong = await site.post(PAGE, email=OWNER, **WRONG)
        assert (wrong.status_code, 'id="e-password"' in wrong.text) == (422, True)
        assert site.app.grants.imap.load(OWNER).password == PASSWORD, "the working one stays"
        [account] = await site.read(list_accounts)
        now = site.app.clock.now()
        await site.write(lambda tx: record_check(tx, account.id, now, "refused", login_refused=True))
        renewed = await site.post(PAGE, email=OWNER, password=PASSWORD)
        assert renewed.status_code == 303
        [account] = await site.read(list_accounts)
        assert account.status is AccountStatus.ACTIVE
    told = (await site.api("POST", f"/accounts/{OWNER}/check")).json()
    assert [each["verdict"] for each in told] == ["failed"]


@pytest.mark.req("IM-1")
@pytest.mark.parametrize(
    ("change", "beside", "said"),
    [
        ({"email": "nobody"}, "email", "not an e-mail address"),
        ({"password": ""}, "password", "is needed"),
        ({"host": "imap example"}, "host", "not the name of a server"),
        ({"host": "imap.example.com", "security": "plain"}, "host", "unencrypted"),
        ({"port": "x"}, "port", "not a whole number"),
        ({"port": "70000"}, "port", "65535"),
        ({"security": "none"}, "security", "is not one of"),
        ({"host": "127.0.0.1", "port": "1", "security": "plain"}, "host", "refused the connection"),
        ({"provider": "outlook"}, "provider", "--oauth microsoft"),
        ({"host": ""}, "host", "often it is imap.example.com"),
    ],
)
async def test_what_is_wrong_stands_beside_its_field(
    site: Site, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], beside: str, said: str
) -> None:
    monkeypatch.setattr(App, "discovery", Finds(None))
    given = {"provider": "other", "email": OWNER, "host": "127.0.0.1", "port": "", "password": "p", "user": ""}
    if change.get("provider"):
        given["host"] = ""
    answer = await site.post(PAGE, **{**given, **change})
    assert answer.status_code == 422
    assert f'id="e-{beside}"' in answer.text
    assert said in text_of(answer.text)
    assert await site.read(list_accounts) == []


@pytest.mark.req("IM-1")
async def test_a_server_that_only_dns_names_is_confirmed_by_pressing_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = MailServers(ServerAddress("imap.big.example", 993), OWNER)
    monkeypatch.setattr(App, "discovery", Finds(DiscoveredServers(servers, "in the DNS records", is_vouched=False)))
    page = await site.post(PAGE, provider="other", email=OWNER, **WRONG)
    assert page.status_code == 422
    assert 'value="imap.big.example"' in page.text
    assert "DNS can be forged" in text_of(page.text)


async def test_the_api_adds_and_refuses(site: Site) -> None:
    with dovecot() as server:
        wanted = {"email": OWNER, "password": PASSWORD, "host": "127.0.0.1", "port": server.port}
        assert (await site.api("POST", "/accounts/imap", json={**wanted, "password": "no"})).status_code >= 400
        added = await site.api("POST", "/accounts/imap", json=wanted)
        assert (added.status_code, added.json()["provider"]) == (201, "imap")
    now = site.app.clock.now()
    new = NewAccount("b@example.com", "imaps://imap.b.example:993", provider=Provider.IMAP)
    await site.write(lambda tx: add_account(tx, new, now))
    listed = text_of((await site.get("/settings")).text)
    assert "imap.b.example" in listed
