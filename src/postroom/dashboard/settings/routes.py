"""Settings: accounts, tokens, logins, the passphrase, the kill switches of backfill and the model, and every setting
as this process reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field, SecretStr, StrictBool
from starlette.responses import Response

from postroom import audit, kill_switch
from postroom.accounts.account import Account, Provider, list_accounts
from postroom.app.assistants import AssistantClient, client_config
from postroom.contract import steering as contract
from postroom.contract.backfill import SWITCH, SwitchArguments
from postroom.contract.tool import Id
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.dashboard.security import sessions
from postroom.dashboard.security.login import PassphraseChanged, call_with_proof, change_passphrase, give_proof
from postroom.dashboard.security.passphrase import LONGEST, SHORTEST, TooManyAttempts
from postroom.dashboard.security.sessions import LoginSession
from postroom.dashboard.settings.configuration import waiting_for_restart
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.domain.money import format_dollars, from_cents, parse_dollars, to_cents
from postroom.domain.roles import PERMISSIONS, Permission, Role, all_permissions
from postroom.kill_switch import KillSwitch, SwitchState
from postroom.mailboxes.imap.connection import ServerAddress
from postroom.settings import (
    FILE_NAME,
    Setting,
    SettingLayers,
    Settings,
    SettingSource,
    read_layers,
    reference,
    shown_value,
)
from postroom.switchboard.spending import DaySpending, ModelBudget
from postroom.switchboard.tokens import AccessToken, list_tokens
from postroom.triage.model import api_key, meter_for


@dataclass(frozen=True, slots=True)
class AccountRow:
    id: str
    provider: str
    email: str
    status: str
    quota: str | None
    created_at: datetime
    last_checked_at: datetime | None
    last_error: str | None
    server: str = ""
    """Of an IMAP mailbox."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    id: str
    role: str
    name: str
    endpoint_identity: str | None
    state: str
    """good, expired or revoked"""
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    permissions: list[str]
    made_by: str | None
    """The id of the token that made it; null if the owner did."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    id: str
    client: str
    address: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SettingRow:
    key: str
    value: str
    default: str
    help: str
    source: str = ""
    """Where the value comes from; empty: it is the default."""

    @property
    def is_changed(self) -> bool:
        return self.value != self.default


@dataclass(frozen=True, slots=True)
class Setup:
    accounts: list[AccountRow]
    tokens: list[TokenRow]
    sessions: list[SessionRow]
    switch: SwitchState
    model_switch: KillSwitch
    spending: DaySpending
    """What model calls cost today, and the ceiling."""


def setup(tx: Tx, settings: Settings, budget: ModelBudget, now: datetime) -> Setup:
    return Setup(
        [account_row(each) for each in list_accounts(tx)],
        sorted((token_row(each, now) for each in list_tokens(tx)), key=lambda row: row.state != "good"),
        [_session(each) for each in sessions.list_sessions(tx, settings.dashboard, now)],
        kill_switch.state(tx, settings.backfill),
        kill_switch.model_switch(tx),
        budget.today(tx),
    )


def token_row(token: AccessToken, now: datetime) -> TokenRow:
    return TokenRow(
        token.id,
        token.role,
        token.name,
        token.endpoint_identity,
        token.state(now),
        token.created_at,
        token.expires_at,
        token.last_used_at,
        token.permission_names,
        token.made_by,
    )


def _token_row(reply: contract.TokenReply) -> TokenRow:
    return TokenRow(**reply.model_dump())


def all_settings(settings: Settings) -> Iterator[tuple[str, list[SettingRow]]]:
    """By group, as on the reference page. A secret is shown only as set."""
    found = _layers(settings.home)
    for title, rows in reference():
        named = [row for row in rows if row.key]
        if named:
            yield (
                title,
                [
                    SettingRow(row.key, _value(settings, row.key), row.default, row.help, _source(settings, found, row))
                    for row in named
                ],
            )


def _layers(home: Path) -> tuple[SettingLayers, Settings] | None:
    """None if the files cannot be read any more."""
    try:
        layers = read_layers(home)
        return layers, layers.settings()
    except BadInput:
        return None


def _source(running: Settings, found: tuple[SettingLayers, Settings] | None, row: Setting) -> str:
    if found is None or shown_value(running, row.path) != shown_value(found[1], row.path):
        return "" if _value(running, row.key) == row.default else "set when this process started"
    match found[0].source(row.path):
        case SettingSource.ENVIRONMENT:
            return row.variable
        case SettingSource.DASHBOARD:
            return "the dashboard"
        case SettingSource.FILE:
            return FILE_NAME
        case SettingSource.DEFAULT:
            return ""


def _value(settings: Settings, key: str) -> str:
    value: Any = settings
    for part in key.split("."):
        value = getattr(value, part)
    if isinstance(value, SecretStr):
        return "(set)"
    return "" if value is None else str(value)


def account_row(account: Account) -> AccountRow:
    return AccountRow(
        account.id,
        account.provider,
        account.email,
        account.status,
        account.quota,
        account.created_at,
        account.last_checked_at,
        account.last_error,
        ServerAddress.parse(account.api_base).host if account.provider is Provider.IMAP else "",
    )


def _session(session: LoginSession) -> SessionRow:
    return SessionRow(**{name: getattr(session, name) for name in SessionRow.__slots__})


async def end_session(here: RequestContext, session_id: str) -> None:
    def change(tx: Tx) -> None:
        sessions.end_session(tx, session_id, here.now)
        audit.record(tx, here.actor, "dashboard.end_session", ("dashboard_session", session_id), here.now)

    await here.write(change)


async def end_other_sessions(here: RequestContext) -> int:
    """All logins but this one; how many there were."""
    own = here.visitor.session

    def change(tx: Tx) -> int:
        ended = sessions.end_all_sessions(tx, here.now, but=own.id if own else None)
        if ended:
            after, subject = {"ended": ended}, ("dashboard", "sessions")
            audit.record(tx, here.actor, "dashboard.end_sessions", subject, here.now, after=after)
        return ended

    return await here.write(change)


pages = pages_router()

SECTION = "settings"


@pages.get("/settings")
async def settings_page(here: Here, made: Annotated[str, Query(max_length=100)] = "") -> Response:
    """`made` is a token that was just made here: it is shown once, whatever is reloaded."""
    session = here.visitor.session
    secret = here.services.shown_once.take(session.id, made) if session is not None and made else None
    return await _page(here, made=made, secret=secret or "")


@pages.post("/settings/tokens")
async def submit_token(here: Here) -> Response:
    """The page that follows shows the token once; it is stored nowhere. A reload of that page makes no other."""
    form, session = await here.form(), here.visitor.session
    try:
        made = await call_with_proof(here, contract.CREATE_TOKEN, _new_token(form), form)
    except BadInput as error:
        field = error.field.replace("-", "_")
        return await _page(here, 422, form=form.refused(BadInput(field, error.problem)))
    if session is not None:
        here.services.shown_once.keep(session.id, made.stored.id, made.token)
    return await here.go(f"/settings?made={made.stored.id}")


@pages.post("/settings/tokens/{token_id}/revoke")
async def submit_revoke(here: Here, token_id: Id) -> Response:
    revoked = await here.call(contract.REVOKE_TOKEN, {"id": token_id})
    also = f", with {plural(revoked.made, 'token')} that it made" if revoked.made else ""
    return await here.go("/settings#tokens", f"The token {revoked.stored.name} is revoked{also}.")


@pages.post("/settings/revoke-tokens")
async def submit_revoke_all(here: Here) -> Response:
    revoked = await here.call(contract.REVOKE_ALL_TOKENS, {})
    return await here.go("/settings#tokens", f"{plural(revoked.tokens, 'token')} revoked.")


@pages.post("/settings/sessions/{session_id}/end")
async def submit_end_session(here: Here, session_id: Id) -> Response:
    await end_session(here, session_id)
    return await here.go("/settings#sessions", "The login is ended.")


@pages.post("/settings/sessions/end-others")
async def submit_end_other_sessions(here: Here) -> Response:
    ended = await end_other_sessions(here)
    return await here.go("/settings#sessions", f"{plural(ended, 'other login')} ended.")


@pages.post("/settings/passphrase")
async def submit_passphrase(here: Here) -> Response:
    form = await here.form()
    current, chosen, repeated = (form.secret(name) for name in ("current", "passphrase", "repeated"))
    try:
        changed = await change_passphrase(here, current, chosen, repeated, revoke_tokens=form.checked("revoke_tokens"))
    except BadInput as error:
        return await _page(here, 422, form=form.refused(error))
    except TooManyAttempts as error:
        return await _page(here, 429, form=form.refused(BadInput("current", error.message)))
    message = f"The passphrase is changed, and {plural(changed.logins_ended, 'other login')} ended."
    if form.checked("revoke_tokens"):
        message += f" {plural(changed.tokens_revoked, 'token')} revoked."
    return await here.go("/settings#sessions", message)


@pages.post("/settings/backfill-switch")
async def submit_backfill_switch(here: Here) -> Response:
    on = (await here.form()).one_of("enabled", ("on", "off")) == "on"
    await here.call(SWITCH, {"enabled": on})
    return await here.go("/settings#backfill", f"The switch is {'on' if on else 'off'}.")


@pages.post("/settings/model-switch")
async def submit_model_switch(here: Here) -> Response:
    form = await here.form()
    on = form.one_of("enabled", ("on", "off")) == "on"
    await here.call(contract.SWITCH_MODEL, {"enabled": on})
    back = "/" if form["back"] == "/" else "/settings#model"
    off = "The model is off: it gets no more mail, and its pending actions need approval."
    return await here.go(back, "The model is on." if on else off)


@pages.post("/settings/model-ceiling")
async def submit_model_ceiling(here: Here) -> Response:
    cents = to_cents(parse_dollars((await here.form())["dollars"], "dollars"))
    await here.call(contract.SET_CEILING, {"cents": cents})
    return await here.go("/settings#model", f"The ceiling is {format_dollars(from_cents(cents))} a day.")


def _new_token(form: Form) -> dict[str, Any]:
    role = Role(form.one_of("role", list(Role)))
    days = form.number("expires_days") if form["expires_days"] else None
    chosen = form.all("permissions")
    asked = [each for each in chosen if each in all_permissions(role)] if chosen else None
    named = {"name": form["name"], "identity": form.optional("identity")}
    return {"role": role, "expires_days": days, "permissions": asked, **named}


async def _page(here: RequestContext, status: int = 200, **values: Any) -> Response:
    settings = here.app.settings
    shown = await show(here)
    tariff = meter_for(settings.model).tariff
    return await here.page(
        "settings.html",
        SECTION,
        status,
        **{"made": "", "secret": "", "form": Form(), **values},
        setup=shown,
        settings=settings,
        price=None if tariff is None else tariff.describe(),
        has_key=settings.model.provider is not None and api_key(settings.model, here.app.vault) is not None,
        roles=list(Role),
        permissions=PERMISSIONS,
        assistants=[client_config(client, settings.home) for client in AssistantClient],
        shortest=SHORTEST,
        all_settings=list(all_settings(settings)),
        restart=await waiting_for_restart(here),
    )


api = api_router("settings")


class MadeToken(BaseModel):
    token: str = Field(description="shown once")
    stored: TokenRow


class PassphraseWanted(BaseModel, extra="forbid"):
    current: str = Field(max_length=LONGEST)
    passphrase: str = Field(min_length=SHORTEST, max_length=LONGEST, description="the new one")
    revoke_tokens: StrictBool = Field(False, description="also revoke every token, including this one")


class PassphraseProof(BaseModel, extra="forbid"):
    passphrase: str = Field(max_length=LONGEST)


class ProofReply(BaseModel):
    until: datetime = Field(description="this login may make sensitive changes until then")


@api.get("")
@permits(Permission.READ)
async def show(here: Here) -> Setup:
    """Accounts, tokens, logins, and whether backfill and the model are switched on."""
    return await here.read(lambda tx: setup(tx, here.app.settings, here.app.budget, here.now))


@api.post("/tokens", status_code=201)
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def create(here: Here, wanted: contract.NewTokenArguments) -> MadeToken:
    """Make a token. It is shown once; only its hash is kept. A token makes none that may do more than it may."""
    made = await here.call(contract.CREATE_TOKEN, wanted)
    return MadeToken(token=made.token, stored=_token_row(made.stored))


@api.post("/tokens/{token_id}/revoke")
@permits(Permission.TOKENS, keeps_to_mailbox=True)
async def revoke(here: Here, token_id: Id) -> TokenRow:
    """Revoke a token and those that it made. A token may revoke itself and those that it made."""
    return _token_row((await here.call(contract.REVOKE_TOKEN, {"id": token_id})).stored)


@api.post("/revoke-tokens")
@permits(Permission.TOKENS)
async def revoke_tokens(here: Here) -> contract.RevokedTokens:
    """Revoke every token. Needs a login: a token can only revoke itself and those that it made, one by one."""
    return await here.call(contract.REVOKE_ALL_TOKENS, {})


@api.post("/sessions/{session_id}/end")
@permits(Permission.SETTINGS)
async def end(here: Here, session_id: Id) -> Setup:
    """End a login."""
    await end_session(here, session_id)
    return await show(here)


@api.post("/passphrase")
@permits(Permission.SETTINGS)
async def change(here: Here, wanted: PassphraseWanted) -> PassphraseChanged:
    """Change the passphrase. Needs the current one; wrong attempts count as failed logins."""
    new = wanted.passphrase
    return await change_passphrase(here, wanted.current, new, new, revoke_tokens=wanted.revoke_tokens)


@api.post("/proof")
@permits(Permission.SETTINGS)
async def prove(here: Here, wanted: PassphraseProof) -> ProofReply:
    """Give the passphrase again before a sensitive change. Needs a login; wrong attempts count as failed logins."""
    await give_proof(here, wanted.passphrase)
    return ProofReply(until=here.now + timedelta(minutes=here.app.settings.dashboard.proof_minutes))


@api.post("/backfill-switch")
@permits(Permission.BACKFILL)
async def switch_backfill(here: Here, wanted: SwitchArguments) -> Setup:
    """Switch all backfill on or off."""
    await here.call(SWITCH, wanted)
    return await show(here)


@api.post("/model-ceiling")
@permits(Permission.SETTINGS)
async def set_model_ceiling(here: Here, wanted: contract.CeilingArguments) -> Setup:
    """Set the most that all model calls of a day may cost together."""
    await here.call(contract.SET_CEILING, wanted)
    return await show(here)


@api.post("/model-switch")
@permits(Permission.SETTINGS)
async def switch_model(here: Here, wanted: contract.ModelSwitchArguments) -> Setup:
    """Switch the model off in every process, or on again."""
    await here.call(contract.SWITCH_MODEL, wanted)
    return await show(here)
