"""A login at Microsoft's pages for an IMAP mailbox, against a stand-in for its token endpoint."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx2
import pytest

from postroom.domain.clock import SystemClock
from postroom.mailboxes.credentials import GrantStore, imap_login_of
from postroom.mailboxes.errors import LoginNeeded
from postroom.mailboxes.first_login import IMAP_SCOPES, log_in_to_imap, microsoft_client
from postroom.mailboxes.imap.autoconfig import MailServers
from postroom.mailboxes.imap.providers import SignIn, sign_in_preset
from postroom.vault import Vault
from tests.support.logins import consent
from tests.support.mail import OWNER
from tests.support.web_servers import Page, tiny_site

TOKENS = {"access_token": "EwB-first", "refresh_token": "M.C-refresh", "expires_in": 30}
REFUSED = Page(json.dumps({"error": "invalid_grant"}).encode(), "application/json", 400)


@pytest.mark.req("IM-1")
async def test_a_public_client_logs_in_without_a_secret_and_the_login_is_renewed_until_it_ends(tmp_path: Path) -> None:
    preset, clock = sign_in_preset(SignIn.MICROSOFT), SystemClock()
    servers = MailServers(preset.address, OWNER, preset.submission)
    shown: list[str] = []
    async with tiny_site() as site:
        site.pages["/token"] = Page(json.dumps(TOKENS).encode(), "application/json")
        client = replace(microsoft_client("an-app-id"), token_uri=f"{site.url}/token")
        assert urlsplit(client.auth_uri).hostname == "login.microsoftonline.com"
        agreeing: list[asyncio.Task[httpx2.Response]] = []

        def show(url: str) -> None:
            shown.append(url)
            asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
            back = asked["redirect_uri"].replace("localhost", "127.0.0.1")
            answer = urlencode({"code": "a-code", "state": asked["state"]})
            agreeing.append(asyncio.create_task(consent(f"{back}/?{answer}")))

        grant = await log_in_to_imap(client, OWNER, servers, clock, show=show)
        assert (await agreeing[0]).status_code == 200
        asked = parse_qs(urlsplit(shown[0]).query)
        assert urlsplit(asked["redirect_uri"][0]).hostname == "localhost"
        assert frozenset(asked["scope"][0].split()) == IMAP_SCOPES[SignIn.MICROSOFT]
        sent = parse_qs(site.requests[0].body.decode())
        assert "client_secret" not in sent
        assert sent["code_verifier"]
        assert (grant.api_base, grant.submission) == (str(preset.address), str(preset.submission))

        grants = GrantStore(Vault(tmp_path))
        grants.save(grant)
        login = imap_login_of(grants, OWNER, clock)
        assert (str(login.address), login.password) == (grant.api_base, "")
        assert login.tokens is not None
        site.pages["/token"] = Page(json.dumps({**TOKENS, "access_token": "EwB-second"}).encode(), "application/json")
        assert await login.tokens.access_token() == "EwB-second", "the first would end within the minute"
        site.pages["/token"] = REFUSED
        with pytest.raises(LoginNeeded, match="Microsoft no longer accepts the login") as raised:
            await imap_login_of(grants, OWNER, clock).tokens.access_token()  # type: ignore[union-attr]
        assert f"postroom account add imap --email {OWNER} --oauth microsoft" in raised.value.message
