"""Accounts, tokens, logins, switches and settings as the Settings page shows them; ending logins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import SecretStr

from postroom import audit, kill_switch
from postroom.accounts.account import Account, list_accounts
from postroom.audit import Actor
from postroom.dashboard.security.sessions import LoginSession, end_all_sessions, end_session, list_sessions
from postroom.db import Tx
from postroom.kill_switch import KillSwitch, SwitchState
from postroom.settings import Settings, reference
from postroom.switchboard.tokens import AccessToken, list_tokens


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
    """The id of the token that made it; null: the owner."""


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


def setup(tx: Tx, settings: Settings, now: datetime) -> Setup:
    return Setup(
        [account_row(each) for each in list_accounts(tx)],
        sorted((token_row(each, now) for each in list_tokens(tx)), key=lambda row: row.state != "good"),
        [_session(each) for each in list_sessions(tx, settings.dashboard, now)],
        kill_switch.state(tx, settings.backfill),
        kill_switch.model_switch(tx),
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


def all_settings(settings: Settings) -> Iterator[tuple[str, list[SettingRow]]]:
    """By group, as the reference page has them. Of a secret only whether it is set."""
    for title, rows in reference():
        named = [row for row in rows if row.key]
        if named:
            yield title, [SettingRow(row.key, _value(settings, row.key), row.default, row.help) for row in named]


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
    )


def _session(session: LoginSession) -> SessionRow:
    return SessionRow(**{name: getattr(session, name) for name in SessionRow.__slots__})


def end_one(tx: Tx, session_id: str, who: Actor, now: datetime) -> None:
    end_session(tx, session_id, now)
    audit.record(tx, who, "dashboard.end_session", ("dashboard_session", session_id), now)


def end_others(tx: Tx, own: str | None, who: Actor, now: datetime) -> int:
    """All logins but this one; how many there were."""
    ended = end_all_sessions(tx, now, but=own)
    if ended:
        audit.record(tx, who, "dashboard.end_sessions", ("dashboard", "sessions"), now, after={"ended": ended})
    return ended
