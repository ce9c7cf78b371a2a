"""Adding a mailbox: by a login at Google, or with a token at another server that speaks Gmail's API. Pages and API."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field, Secret
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from postroom.dashboard.context import Here, RequestContext
from postroom.dashboard.forms import Form
from postroom.dashboard.routing import api_router, pages_router, permits
from postroom.dashboard.security.proof import ProofNeeded, SensitiveChange, require_proof
from postroom.dashboard.settings.google_logins import GoogleLogin, GoogleLoginStage, WantedLogin
from postroom.dashboard.settings.queries import AccountRow, account_row
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.roles import Permission
from postroom.mailboxes.gmail.client_secrets import ClientSecrets, parse_client_secrets
from postroom.mailboxes.gmail.credentials import StaticGrant, normal_email
from postroom.mailboxes.gmail.transport import GOOGLE
from postroom.mailboxes.reachability import require_safe_url
from postroom.telemetry import logs

pages = pages_router()

SECTION = "settings"
_SECRETS = "client_secrets"
_LONGEST_EMAIL = 320


@pages.get("/settings/accounts/new")
async def new_account_page(here: Here, email: Annotated[str, Query(max_length=_LONGEST_EMAIL)] = "") -> Response:
    """`email` where the login of a known mailbox is to be renewed."""
    form = Form.filled(email=email)
    return await _page(here, form=form, token_form=form)


@pages.post("/settings/accounts/logins")
async def submit_login(here: Here) -> Response:
    async with here.request.form() as sent:
        form = Form.sent(FormData([item for item in sent.multi_items() if not isinstance(item[1], UploadFile)]))
        file = sent.get("file")
        chosen = await file.read() if isinstance(file, UploadFile) and file.filename else b""
    try:
        client = _client(chosen or form[_SECRETS].encode())
        if form.checked("full_access"):
            await require_proof(here, SensitiveChange.FULL_ACCESS, _with_secrets(form, chosen))
        wanted = WantedLogin(client, form["email"], form["api_base"] or GOOGLE, form.checked("full_access"))
        login = await here.desk.logins.begin(here.app, wanted, here.actor)
    except ProofNeeded:
        raise
    except PostroomError as error:
        return await _page(here, 422, form=form.refused(_beside(error, "email")))
    return await here.go(f"/settings/accounts/logins/{login.id}")


@pages.get("/settings/accounts/logins/{login_id}")
async def login_page(here: Here, login_id: str) -> Response:
    return await here.page("accounts/login.html", SECTION, login=here.desk.logins[login_id])


@pages.post("/settings/accounts")
async def submit_account(here: Here) -> Response:
    """With a bare token, which is never shown again."""
    form = await here.form()
    try:
        grant = _grant(form)
        account, oddities = await here.app.take_in(grant, here.actor)
    except PostroomError as error:
        return await _page(here, 422, token_form=form.refused(_beside(error, "access_token")))
    said = " ".join([f"{account.email} is added; its mail is coming in.", *map(logs.clean, oddities)])
    return await here.go("/settings#accounts", said)


def _with_secrets(form: Form, file: bytes) -> Form:
    """The form with the file's content as pasted: a file cannot be sent twice without being chosen twice."""
    return Form({**form.values, _SECRETS: (file.decode(errors="replace"),)}) if file else form


def _client(content: bytes) -> ClientSecrets:
    if not content.strip():
        raise BadInput(_SECRETS, "is needed: choose the file that Google's console gave you, or paste its content")
    return parse_client_secrets(content, _SECRETS)


def _grant(form: Form) -> StaticGrant:
    email, api_base = normal_email(form["email"], "email"), require_safe_url(form["api_base"], "api_base")
    token = form["access_token"]
    if not token or not token.isascii() or not token.isprintable():
        raise BadInput("access_token", "is empty, or holds what no token has")
    logs.learn_secrets([token])
    return StaticGrant(email=email, api_base=api_base, access_token=token)


def _beside(error: PostroomError, otherwise: str) -> BadInput:
    """Every refusal stands beside a field: that which it names, or the one that it is most likely about."""
    if isinstance(error, BadInput):
        return BadInput(error.field.replace("-", "_"), error.problem)
    return BadInput(otherwise, logs.clean(error.message))


async def _page(here: RequestContext, status: int = 200, **forms: Form) -> Response:
    return await here.page("accounts/new.html", SECTION, status, **{"form": Form(), "token_form": Form(), **forms})


api = api_router("accounts")

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
    stage: GoogleLoginStage
    url: str = Field(description="to be opened in a browser on the machine that Postroom runs on")
    said: str = Field(description="what is odd about the account, or why it was refused")


@api.post("", status_code=201)
@permits(Permission.ACCOUNTS)
async def add(here: Here, wanted: AccountWanted) -> AccountRow:
    """Add a mailbox with a bare token. The token is tried first; nothing is stored if it is for another mailbox."""
    token = wanted.access_token.get_secret_value()
    logs.learn_secrets([token])
    email, api_base = normal_email(wanted.email, "email"), require_safe_url(wanted.api_base, "api_base")
    grant = StaticGrant(email=email, api_base=api_base, access_token=token)
    account, _ = await here.app.take_in(grant, here.actor)
    return account_row(account)


@api.post("/logins", status_code=201)
@permits(Permission.ACCOUNTS)
async def begin_login(here: Here, wanted: LoginWanted) -> LoginShown:
    """Begin a login at Google; it is over when its stage is no longer `waiting`."""
    if wanted.full_access:
        await require_proof(here, SensitiveChange.FULL_ACCESS)
    client = parse_client_secrets(json.dumps(wanted.client_secrets).encode(), "client_secrets")
    login = WantedLogin(client, wanted.email, wanted.api_base, wanted.full_access)
    return _shown(await here.desk.logins.begin(here.app, login, here.actor))


@api.get("/logins/{login_id}")
@permits(Permission.ACCOUNTS)
async def show_login(here: Here, login_id: UUID) -> LoginShown:
    """How a login stands."""
    return _shown(here.desk.logins[str(login_id)])


def _shown(login: GoogleLogin) -> LoginShown:
    return LoginShown(id=login.id, email=login.email, stage=login.stage, url=login.url, said=login.said)
