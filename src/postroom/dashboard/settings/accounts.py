"""Adding a mailbox: by logging in at Google, or with a token for another server that speaks Gmail's API.

A login at Google waits in a task of this process until the browser comes back, then adds the account.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from postroom import audit
from postroom.accounts.account import Provider, get_account, list_accounts
from postroom.accounts.enrolment import Enrolment
from postroom.app.installation import App
from postroom.audit import Actor
from postroom.contract.steering import ADD_ACCOUNT, SYNC_LABELS, AccountArguments, SyncedLabelsReply
from postroom.contract.tool import Id
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.forms import Form, query_of
from postroom.dashboard.security.login import ensure_proof
from postroom.dashboard.settings.routes import AccountRow, account_row
from postroom.domain.errors import BadInput, NotFound, PostroomError, Retryable
from postroom.domain.ids import new_id, normal_email
from postroom.domain.roles import Permission, ProofNeeded, SensitiveChange
from postroom.mailboxes.browser_login import ClientSecrets, parse_client_secrets
from postroom.mailboxes.credentials import OAuthGrant
from postroom.mailboxes.first_login import log_in
from postroom.mailboxes.gmail.methods import ASKED_SCOPES, EVERYTHING, GOOGLE
from postroom.mailboxes.reachability import require_safe_url
from postroom.telemetry import logs

log = logs.get(__name__)

_MOST_UNDER_WAY = 5
_MOST_REMEMBERED = 50


class GoogleLoginStage(StrEnum):
    WAITING = "waiting"
    ADDED = "added"
    REFUSED = "refused"


@dataclass
class GoogleLogin:
    email: str
    id: str = field(default_factory=new_id)
    url: str = ""
    """The address of Google's page, including where it sends the browser back to."""
    stage: GoogleLoginStage = GoogleLoginStage.WAITING
    message: str = ""
    """Remarks about the account, or why it was refused."""

    @property
    def port(self) -> int | None:
        """The port on this machine to which the browser returns."""
        [back] = parse_qs(urlsplit(self.url).query).get("redirect_uri", [""])
        return urlsplit(back).port


@dataclass(frozen=True)
class WantedLogin:
    client: ClientSecrets
    email: str
    api_base: str = GOOGLE
    full_access: bool = False


class GoogleLogins:
    def __init__(self) -> None:
        self._logins: dict[str, GoogleLogin] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __getitem__(self, login_id: str) -> GoogleLogin:
        try:
            return self._logins[login_id]
        except KeyError:
            raise NotFound("login", "this login is over; start it again") from None

    async def begin(self, app: App, wanted: WantedLogin, who: Actor) -> GoogleLogin:
        """The login, as soon as its page can be opened. It replaces an earlier one for the same mailbox."""
        email, api_base = normal_email(wanted.email), require_safe_url(wanted.api_base, "api_base")
        await Enrolment(app.database, app.grants, app.clock).refuse_known_elsewhere(email, api_base)
        await self._make_room(email)
        login = GoogleLogin(email)
        shown = asyncio.Event()

        def show(url: str) -> None:
            login.url = url
            shown.set()

        async def obtain() -> OAuthGrant:
            return await log_in(
                wanted.client, email, app.clock, show=show, api_base=api_base, full_access=wanted.full_access
            )

        self._logins[login.id] = login
        task = self._tasks[login.id] = asyncio.create_task(self._finish(app, login, obtain(), who))

        def over(_: object) -> None:
            self._tasks.pop(login.id, None)
            shown.set()

        task.add_done_callback(over)
        await shown.wait()
        return login

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await _cancelled(list(self._tasks.values()))

    async def _finish(self, app: App, login: GoogleLogin, obtained: Awaitable[OAuthGrant], who: Actor) -> None:
        try:
            account, oddities = await app.take_in(await obtained, who)
        except PostroomError as error:
            login.message, login.stage = logs.clean(error.message), GoogleLoginStage.REFUSED
        except Exception:
            log.exception("dashboard.login_failed", account=login.email)
            login.message, login.stage = "Internal error; the log has the details.", GoogleLoginStage.REFUSED
        else:
            login.message, login.stage = " ".join(map(logs.clean, oddities)), GoogleLoginStage.ADDED
            log.info("account.added", account=account.email)
        # Last, because the waiting page updates itself when the audit log grows.
        after = {"email": login.email, "stage": str(login.stage), "message": login.message}
        subject, now = ("login", login.id), app.clock.now()
        await app.database.write(lambda tx: audit.record(tx, who, "account.login", subject, now, after=after))

    async def _make_room(self, email: str) -> None:
        earlier = [id for id in self._tasks if self._logins[id].email == email]
        await _cancelled([self._tasks[id] for id in earlier])
        for login in (self._logins[id] for id in earlier):
            if login.stage is GoogleLoginStage.WAITING:
                login.message, login.stage = (
                    "A later login to the same mailbox replaced this one.",
                    GoogleLoginStage.REFUSED,
                )
        if len(self._tasks) >= _MOST_UNDER_WAY:
            raise Retryable("Several logins are already in progress. Finish one of them, or wait a few minutes.")
        over = [id for id in self._logins if id not in self._tasks]
        for id in over[: max(0, len(self._logins) - _MOST_REMEMBERED)]:
            del self._logins[id]


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


pages = pages_router()

SECTION = "settings"
_SECRETS = "client_secrets"
_LONGEST_EMAIL = 320


@pages.get("/settings/accounts/new")
async def new_account_page(here: Here, email: Annotated[str, Query(max_length=_LONGEST_EMAIL)] = "") -> Response:
    """`email` is set to log in again to a known mailbox, with as much access as before."""
    known = next((each for each in await here.read(list_accounts) if each.email == email), None)
    if known is not None and known.provider is Provider.IMAP:
        return await here.go(f"/settings/accounts/imap?{query_of(email=email)}")
    if known is None:
        return await _page(here, form=Form.filled(email=email), token_form=Form.filled(email=email))
    elsewhere = None if known.api_base == GOOGLE else known.api_base
    access = "on" if EVERYTHING in known.scopes else None
    form = Form.filled(email=email, full_access=access, api_base=elsewhere)
    return await _page(here, form=form, token_form=form, is_known=True)


@pages.post("/settings/accounts/client")
async def submit_client(here: Here) -> Response:
    """Check the client file, without a login; what was sent stays in the form."""
    form, chosen = await _sent_login(here)
    try:
        client = _client(chosen or form[_SECRETS].encode())
    except BadInput as error:
        return await _page(here, 422, form=form.refused(error))
    return await _page(here, form=_with_secrets(form, chosen), client=client)


@pages.post("/settings/accounts/logins")
async def submit_login(here: Here) -> Response:
    form, chosen = await _sent_login(here)
    try:
        client = _client(chosen or form[_SECRETS].encode())
        wanted = WantedLogin(client, form["email"], form["api_base"] or GOOGLE, form.checked("full_access"))
        login = await begin_login(here, wanted, _with_secrets(form, chosen))
    except ProofNeeded:
        raise
    except PostroomError as error:
        return await _page(here, 422, form=form.refused(_beside(error, "email")))
    return await here.go(f"/settings/accounts/logins/{login.id}")


async def _sent_login(here: RequestContext) -> tuple[Form, bytes]:
    """The form, and the file that was chosen in it."""
    async with here.request.form() as sent:
        form = Form.sent(FormData([item for item in sent.multi_items() if not isinstance(item[1], UploadFile)]))
        file = sent.get("file")
        return form, await file.read() if isinstance(file, UploadFile) and file.filename else b""


@pages.get("/settings/accounts/logins/{login_id}")
async def login_page(here: Here, login_id: str) -> Response:
    return await here.page("accounts/login.html", SECTION, login=here.services.google_logins[login_id])


@pages.post("/settings/accounts")
async def submit_account(here: Here) -> Response:
    """With an access token, which is never shown again."""
    form = await here.form()
    try:
        given = {name: form[name] for name in ("email", "api_base", "access_token")}
        account = await here.call(ADD_ACCOUNT, given)
    except PostroomError as error:
        return await _page(here, 422, token_form=form.refused(_beside(error, "access_token")))
    message = " ".join([f"{account.email} is added, and its mail is being fetched.", *map(logs.clean, account.remarks)])
    return await here.go("/settings#accounts", message)


@pages.post("/settings/accounts/labels")
async def submit_label_sync(here: Here) -> Response:
    done = await here.call(SYNC_LABELS, {"endpoint_identity": (await here.form())["email"]})
    return await here.go("/settings#accounts", _said(done))


def _said(done: SyncedLabelsReply) -> str:
    """What the comparison of labels found, in a sentence or two."""
    changes = {"added": done.added, "renamed": len(done.renamed), "deleted": len(done.deleted)}
    said = ", ".join(f"{count} {what}" for what, count in changes.items() if count) or "nothing changed"
    found = [f"{done.labels} labels: {said}."]
    if done.changed_rules:
        found.append(f"Rules that follow a new name: {', '.join(done.changed_rules)}.")
    if done.disabled_rules:
        found.append(f"Rules that are off for this mailbox: {', '.join(done.disabled_rules)}.")
    return " ".join(map(logs.clean, found))


def _with_secrets(form: Form, file: bytes) -> Form:
    """The form with the file's content as text: a browser does not send a file a second time by itself."""
    return Form({**form.values, _SECRETS: (file.decode(errors="replace"),)}) if file else form


def _client(content: bytes) -> ClientSecrets:
    if not content.strip():
        raise BadInput(_SECRETS, "is needed: choose the file from Google's console, or paste its content (step 4)")
    return parse_client_secrets(content, _SECRETS)


async def begin_login(here: RequestContext, wanted: WantedLogin, form: Form | None = None) -> GoogleLogin:
    if wanted.full_access:
        await ensure_proof(here, SensitiveChange.FULL_ACCESS, form)
    return await here.services.google_logins.begin(here.app, wanted, here.actor)


def _beside(error: PostroomError, otherwise: str) -> BadInput:
    """The refusal beside the field that it names, or else beside the most likely one."""
    if isinstance(error, BadInput):
        return BadInput(error.field.replace("-", "_"), error.problem)
    return BadInput(otherwise, logs.clean(error.message))


async def _page(
    here: RequestContext,
    status: int = 200,
    *,
    form: Form | None = None,
    token_form: Form | None = None,
    client: ClientSecrets | None = None,
    is_known: bool = False,
) -> Response:
    """Servers other than Google are offered to developers, and where a form names one already."""
    form, token_form = form or Form(), token_form or Form()
    elsewhere = bool(form["api_base"] or token_form["api_base"] or token_form.errors)
    return await here.page(
        "accounts/new.html",
        SECTION,
        status,
        form=form,
        token_form=token_form,
        client=client,
        scopes=ASKED_SCOPES,
        offers_stand_in=here.app.settings.dashboard.dev or elsewhere,
        is_known=is_known or bool(form.errors) or client is not None,
    )


api = api_router("accounts")

_Email = Field(min_length=3, max_length=320, description="the mailbox's address; the login must be for it")


class LoginWanted(BaseModel, extra="forbid"):
    email: str = _Email
    client_secrets: dict[str, Any] = Field(description="the JSON of a Desktop app from Google's console")
    api_base: str = Field(GOOGLE, max_length=2_000)
    full_access: bool = Field(False, description="also ask for permission to delete mail permanently")


class ClientWanted(BaseModel, extra="forbid"):
    content: str = Field(max_length=100_000, description="the text of the JSON file")


class ClientShown(BaseModel):
    client_id: str | None
    project: str = Field(description="the project at Google; empty if the file does not name it")
    problem: str | None = Field(description="why it cannot be used, and what to do; null: it is good")


class LoginShown(BaseModel):
    id: str
    email: str
    stage: GoogleLoginStage
    url: str = Field(description="to be opened in a browser on the machine that Postroom runs on")
    message: str = Field(description="remarks about the account, or why it was refused")


@api.post("", status_code=201)
@permits(Permission.ACCOUNTS)
async def add(here: Here, wanted: AccountArguments) -> AccountRow:
    """Add a mailbox with an access token. The token is tried first and refused if it is for another mailbox."""
    added = await here.call(ADD_ACCOUNT, wanted)
    return await here.read(lambda tx: account_row(get_account(tx, added.email)))


@api.post("/{email}/labels")
@permits(Permission.ACT, named_by("email"))
async def sync_labels(here: Here, email: str) -> SyncedLabelsReply:
    """List a mailbox's labels now, and let rules follow what was renamed or deleted."""
    return await here.call(SYNC_LABELS, {"endpoint_identity": email})


@api.post("/client")
@permits(Permission.ACCOUNTS)
async def check_client(here: Here, wanted: ClientWanted) -> ClientShown:
    """Check the client file from Google's console; nothing is stored."""
    try:
        client = _client(wanted.content.encode())
    except BadInput as error:
        return ClientShown(client_id=None, project="", problem=error.problem)
    return ClientShown(client_id=client.client_id, project=client.project, problem=None)


@api.post("/logins", status_code=201)
@permits(Permission.ACCOUNTS)
async def log_in_at_google(here: Here, wanted: LoginWanted) -> LoginShown:
    """Start a login at Google; it is over when its stage is no longer `waiting`."""
    client = parse_client_secrets(json.dumps(wanted.client_secrets).encode(), "client_secrets")
    login = WantedLogin(client, wanted.email, wanted.api_base, wanted.full_access)
    return _shown(await begin_login(here, login))


@api.get("/logins/{login_id}")
@permits(Permission.ACCOUNTS)
async def show_login(here: Here, login_id: Id) -> LoginShown:
    """The state of a login."""
    return _shown(here.services.google_logins[login_id])


def _shown(login: GoogleLogin) -> LoginShown:
    return LoginShown(id=login.id, email=login.email, stage=login.stage, url=login.url, message=login.message)
