"""Adding an IMAP mailbox: a provider is chosen, a password entered, and the login tried before anything is stored. Also
checking any mailbox, and giving an IMAP mailbox a new password.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field, SecretStr
from starlette.responses import Response

from postroom.accounts.account import Account, Provider, get_account, list_accounts
from postroom.accounts.enrolment import Enrolment, UnprovenLogin
from postroom.app.server_discovery import UnconfirmedServer, WantedServer, find_servers
from postroom.dashboard.context import Here, RequestContext, api_router, named_by, pages_router, permits
from postroom.dashboard.forms import Form, query_of
from postroom.dashboard.settings.routes import AccountRow, account_row
from postroom.domain.checkups import Check, CheckVerdict, Finding, first_failure
from postroom.domain.errors import BadInput, PostroomError
from postroom.domain.ids import normal_email
from postroom.domain.roles import Permission
from postroom.mailboxes.imap.connection import ImapLogin, Security, ServerAddress
from postroom.mailboxes.imap.login import require_login
from postroom.mailboxes.imap.providers import PRESETS, ImapPreset, preset_at, preset_for, preset_named, submission_given
from postroom.telemetry import logs

SECTION = "settings"
OWN_SERVER = "other"
_LONGEST_EMAIL = 320
_LONGEST_PASSWORD = 1_000
_SECURITY = {"tls": Security.TLS, "starttls": Security.STARTTLS, "plain": Security.PLAIN}
_PROTECTION = {Security.TLS: "TLS", Security.STARTTLS: "STARTTLS", Security.PLAIN: "no encryption, on this machine"}

pages = pages_router()


@pages.get("/settings/accounts/imap")
async def imap_page(
    here: Here,
    provider: Annotated[str, Query(max_length=40)] = "",
    email: Annotated[str, Query(max_length=_LONGEST_EMAIL)] = "",
) -> Response:
    """`provider` is chosen first; `email` of a known mailbox asks for a new password only."""
    known = await _known(here, email)
    return await _page(here, Form.filled(provider=provider, email=email), known=known)


@pages.post("/settings/accounts/imap")
async def submit_imap(here: Here) -> Response:
    form = await here.form()
    known = await _known(here, form["email"])
    try:
        added, remarks = await _add(here, _wanted(form))
    except UnconfirmedServer as error:
        found = error.servers.address
        filled = {"host": (found.host,), "port": (str(found.port),), "security": (_security_name(found.security),)}
        return await _page(here, Form({**form.values, **filled}).refused(error), 422)
    except PostroomError as error:
        return await _page(here, form.refused(_beside(error)), 422, known=known)
    if known is not None:
        return await here.go("/settings#accounts", f"{added.email} has a new password, and the server accepts it.")
    message = " ".join([f"{added.email} is added, and its mail is being fetched.", *map(logs.clean, remarks)])
    return await here.go("/settings#accounts", message)


@pages.post("/settings/accounts/check")
async def submit_check(here: Here) -> Response:
    """Check a mailbox of any provider; what was found is shown once."""
    email = (await here.form())["email"]
    findings = await _check(here, await here.read(lambda tx: get_account(tx, email)))
    return await here.go("/settings#accounts", f"{email}: {_said(findings)}")


class ImapWanted(BaseModel, extra="forbid"):
    email: str = Field(min_length=3, max_length=_LONGEST_EMAIL, description="the mailbox's address")
    password: SecretStr = Field(min_length=1, max_length=_LONGEST_PASSWORD, description="often an app password")
    user: str = Field("", max_length=_LONGEST_EMAIL, description="the name to log in with; empty: the address")
    host: str = Field("", max_length=253, description="the IMAP server; empty: it is found by the address")
    port: int | None = Field(None, ge=1, le=65_535)
    security: str = Field("", pattern="^(tls|starttls|plain|)$", description="plain only on this machine; empty: tls")
    provider: str = Field("", max_length=40, description="a well-known provider; empty: by the address")
    smtp_host: str = Field("", max_length=260, description="host[:port] for sending; empty: as the provider has it")


class ImapCheckFinding(BaseModel):
    check: Check
    verdict: CheckVerdict
    message: str
    remedy: str


api = api_router("accounts")


@api.post("/imap", status_code=201)
@permits(Permission.ACCOUNTS)
async def add_imap(here: Here, wanted: ImapWanted) -> AccountRow:
    """Add an IMAP mailbox, or give it a new password. The login is tried first; a refused one is not stored."""
    account, _ = await _add(here, wanted)
    return account_row(account)


@api.post("/{email}/check")
@permits(Permission.ACCOUNTS, named_by("email"))
async def check(here: Here, email: str) -> list[ImapCheckFinding]:
    """Check a mailbox down to its login, and record the result with it."""
    findings = await _check(here, await here.read(lambda tx: get_account(tx, email)))
    return [
        ImapCheckFinding(check=each.check, verdict=each.verdict, message=each.message, remedy=each.remedy)
        for each in findings
    ]


async def _add(here: RequestContext, wanted: ImapWanted) -> tuple[Account, list[str]]:
    """Raises BadInput with the field, or UnprovenLogin with what the check found."""
    password = wanted.password.get_secret_value()
    logs.learn_secrets([password])
    email, preset = normal_email(wanted.email), preset_named(wanted.provider)
    if preset is not None and not preset.takes_password and not wanted.host:
        raise BadInput("provider", preset.hint)
    server = WantedServer(wanted.host or None, wanted.port, _SECURITY.get(wanted.security), preset)
    servers, _ = await find_servers(here.app, email, server)
    sending = submission_given(wanted.smtp_host) if wanted.smtp_host else servers.submission
    login = ImapLogin(email, servers.address, wanted.user or servers.user, password, str(sending or ""))
    return await here.app.take_in(require_login(login), here.actor)


async def _check(here: RequestContext, account: Account) -> list[Finding]:
    return await Enrolment(here.app.database, here.app.grants, here.app.clock).check(account)


def _said(findings: list[Finding]) -> str:
    """The first failure with its remedy, else the warnings, else that all is well."""
    failure = first_failure(findings)
    if failure is not None:
        return logs.clean(failure.text)
    warnings = [logs.clean(each.text) for each in findings if each.verdict is CheckVerdict.WARNING]
    return " ".join(["The server is reached, and it accepts the login.", *warnings])


def _wanted(form: Form) -> ImapWanted:
    """Raises BadInput with the field, for what the form allows to be left out or misspelt."""
    password = form.secret("password")
    if not password:
        raise BadInput("password", "is needed")
    if len(password) > _LONGEST_PASSWORD:
        raise BadInput("password", f"has more than {_LONGEST_PASSWORD:,} characters")
    if len(form["host"]) > 253 or len(form["user"]) > _LONGEST_EMAIL:
        raise BadInput("host", "server or user name is too long")
    port = form.number("port") if form["port"] else None
    if port is not None and not 1 <= port <= 65_535:
        raise BadInput("port", "is a number from 1 to 65535")
    return ImapWanted(
        email=normal_email(form["email"]),
        password=SecretStr(password),
        user=form["user"],
        host=form["host"],
        port=port,
        security=form.one_of("security", list(_SECURITY)) if form["security"] else "",
        smtp_host=form["smtp_host"][:260],
        provider="" if preset_named(form["provider"]) is None else form["provider"],
    )


def _beside(error: PostroomError) -> BadInput:
    """The problem beside the field that has to change."""
    match error:
        case BadInput():
            return BadInput(error.field.replace("-", "_"), error.problem)
        case UnprovenLogin():
            field = "password" if error.finding.check is Check.AUTH else "host"
            return BadInput(field, logs.clean(error.message))
        case _:
            return BadInput("email", logs.clean(error.message))


async def _known(here: RequestContext, email: str) -> Account | None:
    accounts = await here.read(list_accounts)
    return next((each for each in accounts if each.email == email and each.provider is Provider.IMAP), None)


async def _page(here: RequestContext, form: Form, status: int = 200, *, known: Account | None = None) -> Response:
    chosen = form["provider"] or (preset.key if (preset := preset_for(form["email"])) else "")
    preset = preset_named(chosen)
    if known is not None:
        preset = preset_at(ServerAddress.parse(known.api_base).host) or preset_for(known.email)
    offered = [*((each.key, each.name) for each in PRESETS), (OWN_SERVER, "Another server")]
    is_chosen = preset is not None or known is not None or chosen == OWN_SERVER or bool(form.errors)
    return await here.page(
        "accounts/imap.html",
        SECTION,
        status,
        form=form,
        known=known,
        preset=preset,
        provider_links=[(_link(key, form["email"]), name, key == chosen) for key, name in offered],
        is_chosen=is_chosen,
        own_server=OWN_SERVER,
        server=_server_words(preset, known),
        securities={"tls": "TLS from the start", "starttls": "STARTTLS", "plain": "None, on this machine only"},
    )


def _link(provider: str, email: str) -> str:
    return f"/settings/accounts/imap?{query_of(provider=provider, email=email)}"


def _server_words(preset: ImapPreset | None, known: Account | None) -> str:
    address = ServerAddress.parse(known.api_base) if known is not None else preset.address if preset else None
    return "" if address is None else f"{address.host}, port {address.port}, {_PROTECTION[address.security]}"


def _security_name(security: Security) -> str:
    return next(name for name, each in _SECURITY.items() if each is security)
