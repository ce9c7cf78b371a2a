"""Logins at the stand-in: an app's client-secrets file, an owner with a browser, and a stored grant.

As a program it is the browser: `BROWSER="python -m tests.support.logins %s"` opens the consent page and agrees.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta
from pathlib import Path

import httpx2

from postroom.domain.clock import Clock
from postroom.mailboxes.browser_login import ClientSecrets
from postroom.mailboxes.credentials import GrantStore, OAuthGrant
from postroom.mailboxes.first_login import log_in
from postroom.sim.gmail.server import GmailSim
from postroom.vault import Vault

SECRET = "GOCSPX-the-secret-of-this-app"  # noqa: S105 - made up


def app_at(url: str) -> ClientSecrets:
    return ClientSecrets("app.example", SECRET, f"{url}/o/oauth2/auth", f"{url}/token")


def secrets_file(folder: Path, url: str) -> Path:
    app = app_at(url)
    path = folder / "client_secret.json"
    fields = {name: getattr(app, name) for name in ("client_id", "client_secret", "auth_uri", "token_uri")}
    path.write_text(json.dumps({"installed": {**fields, "redirect_uris": ["http://localhost"]}}))
    return path


async def consent(url: str) -> httpx2.Response:
    """What a browser does when its owner agrees: goes where it is sent."""
    async with httpx2.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        return await browser.get(url)


async def logged_in(
    sim: GmailSim, home: Path, clock: Clock, *, full_access: bool = False
) -> tuple[GrantStore, OAuthGrant]:
    """A home folder whose vault holds a fresh login at the stand-in."""
    browsers: list[asyncio.Task[httpx2.Response]] = []
    grant = await log_in(
        app_at(sim.url),
        sim.email,
        clock,
        show=lambda url: browsers.append(asyncio.create_task(consent(url))),
        api_base=sim.url,
        full_access=full_access,
    )
    assert (await browsers[0]).status_code == 200
    grants = GrantStore(Vault(home))
    grants.save(grant)
    return grants, grant


def stored(
    home: Path, *, api_base: str, token_uri: str, now: datetime, email: str = "owner@example.com", expired: bool = True
) -> GrantStore:
    """A login made up, as if it had been made once; its refresh token is good nowhere."""
    grants = GrantStore(Vault(home))
    grants.save(
        OAuthGrant(
            email=email,
            api_base=api_base,
            access_token="ya29.an-access-token-of-before",  # noqa: S106 - made up
            expires_at=now + timedelta(hours=-1 if expired else 1),
            refresh_token="1//a-refresh-token-of-before",  # noqa: S106 - made up
            scopes=frozenset({"https://www.googleapis.com/auth/gmail.modify"}),
            client_id="app.example",
            client_secret=SECRET,
            auth_uri=token_uri,
            token_uri=token_uri,
        )
    )
    return grants


if __name__ == "__main__":
    asyncio.run(consent(sys.argv[1]))
