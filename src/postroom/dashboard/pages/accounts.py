"""Adding a mailbox: by a login at Google, or with a token at another server that speaks Gmail's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from postroom.dashboard.changing.passphrase import require_proof
from postroom.dashboard.forms import Form
from postroom.dashboard.logins import WantedLogin
from postroom.dashboard.pages import pages_router
from postroom.dashboard.security.proof import ProofNeeded, Sensitive
from postroom.dashboard.visit import Here, Visit
from postroom.domain.errors import BadInput, PostroomError
from postroom.gmail.client_secrets import ClientSecrets, parse_client_secrets
from postroom.gmail.grants import StaticGrant, normal_email
from postroom.gmail.reach import require_safe_url
from postroom.gmail.transport import GOOGLE
from postroom.telemetry import logs

router = pages_router()

SECTION = "settings"
_SECRETS = "client_secrets"
_LONGEST_EMAIL = 320


@router.get("/settings/accounts/new")
async def new(here: Here, email: Annotated[str, Query(max_length=_LONGEST_EMAIL)] = "") -> Response:
    """`email` where the login of a known mailbox is to be renewed."""
    form = Form.filled(email=email)
    return await _page(here, form=form, token_form=form)


@router.post("/settings/accounts/logins")
async def begin_login(here: Here) -> Response:
    async with here.request.form() as sent:
        form = Form.sent(FormData([item for item in sent.multi_items() if not isinstance(item[1], UploadFile)]))
        file = sent.get("file")
        chosen = await file.read() if isinstance(file, UploadFile) and file.filename else b""
    try:
        client = _client(chosen or form[_SECRETS].encode())
        if form.checked("full_access"):
            await require_proof(here, Sensitive.FULL_ACCESS, _with_secrets(form, chosen))
        wanted = WantedLogin(client, form["email"], form["api_base"] or GOOGLE, form.checked("full_access"))
        login = await here.desk.logins.begin(here.app, wanted, here.actor)
    except ProofNeeded:
        raise
    except PostroomError as error:
        return await _page(here, 422, form=form.refused(_beside(error, "email")))
    return await here.go(f"/settings/accounts/logins/{login.id}")


@router.get("/settings/accounts/logins/{login_id}")
async def show_login(here: Here, login_id: str) -> Response:
    return await here.page("accounts/login.html", SECTION, login=here.desk.logins[login_id])


@router.post("/settings/accounts")
async def add(here: Here) -> Response:
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


async def _page(here: Visit, status: int = 200, **forms: Form) -> Response:
    return await here.page("accounts/new.html", SECTION, status, **{"form": Form(), "token_form": Form(), **forms})
