"""`/api/accounts`: adding mailboxes."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, Secret

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.passphrase import require_proof
from postroom.dashboard.logins import Login, Stage, WantedLogin
from postroom.dashboard.reading.settings import AccountRow, account_row
from postroom.dashboard.security.permits import permits
from postroom.dashboard.security.proof import Sensitive
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission
from postroom.gmail.client_secrets import parse_client_secrets
from postroom.gmail.grants import StaticGrant, normal_email
from postroom.gmail.reach import require_safe_url
from postroom.gmail.transport import GOOGLE
from postroom.telemetry import logs

router = api_router("accounts")

_Email = Field(min_length=3, max_length=320, description="the mailbox's address; the login must be for this one")


Token = Annotated[str, Field(min_length=1, max_length=10_000, pattern=r"^[!-~]+$")]


class AccountWanted(BaseModel, extra="forbid"):
    email: str = _Email
    api_base: str = Field(max_length=2_000, description="a server that speaks Gmail's API, for example a stand-in")
    access_token: Secret[Token]


class LoginWanted(BaseModel, extra="forbid"):
    email: str = _Email
    client_secrets: dict[str, Any] = Field(description="the JSON of a Desktop app from Google's console")
    api_base: str = Field(GOOGLE, max_length=2_000)
    full_access: bool = Field(False, description="also ask for the right to delete mail for ever")


class LoginShown(BaseModel):
    id: str
    email: str
    stage: Stage
    url: str = Field(description="to be opened in a browser on the machine that Postroom runs on")
    said: str = Field(description="what is odd about the account, or why it was refused")


@router.post("", status_code=201)
@permits(Permission.ACCOUNTS)
async def add(here: Here, wanted: AccountWanted) -> AccountRow:
    """Add a mailbox with a bare token. The token is tried first; nothing is stored if it is for another mailbox."""
    token = wanted.access_token.get_secret_value()
    logs.learn_secrets([token])
    email, api_base = normal_email(wanted.email, "email"), require_safe_url(wanted.api_base, "api_base")
    grant = StaticGrant(email=email, api_base=api_base, access_token=token)
    account, _ = await here.app.take_in(grant, here.actor)
    return account_row(account)


@router.post("/logins", status_code=201)
@permits(Permission.ACCOUNTS)
async def begin_login(here: Here, wanted: LoginWanted) -> LoginShown:
    """Begin a login at Google; it is over when its stage is no longer `waiting`."""
    if wanted.full_access:
        await require_proof(here, Sensitive.FULL_ACCESS)
    client = parse_client_secrets(json.dumps(wanted.client_secrets).encode(), "client_secrets")
    login = WantedLogin(client, wanted.email, wanted.api_base, wanted.full_access)
    return _shown(await here.desk.logins.begin(here.app, login, here.actor))


@router.get("/logins/{login_id}")
@permits(Permission.ACCOUNTS)
async def show_login(here: Here, login_id: UUID) -> LoginShown:
    """How a login stands."""
    return _shown(here.desk.logins[str(login_id)])


def _shown(login: Login) -> LoginShown:
    return LoginShown(id=login.id, email=login.email, stage=login.stage, url=login.url, said=login.said)
