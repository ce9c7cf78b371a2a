"""Logins. The browser has a secret in a cookie; here is its hash, and until when it is good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update

from postroom.dashboard.security import browser_secrets as secrets
from postroom.db import Tx
from postroom.db.tables.dashboard import dashboard_sessions as table
from postroom.domain.errors import NotFound
from postroom.domain.ids import new_id, parse_id
from postroom.settings import DashboardSettings

MOST_LISTED = 100
_SEEN_EVERY = timedelta(minutes=1)
_KEPT = timedelta(days=30)
_LONGEST_CLIENT = 300


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    client: str
    address: str
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    notice: Mapping[str, Any] | None
    proved_at: datetime | None
    """When the passphrase was last given in it."""

    def needs_noting(self, now: datetime) -> bool:
        return now - self.last_seen_at >= _SEEN_EVERY


def begin_session(tx: Tx, settings: DashboardSettings, client: str, address: str, now: datetime) -> str:
    """The secret for the cookie; whoever begins a session has just proved to know the passphrase, or set it. Sessions
    that ended long ago are forgotten on the way."""
    tx.execute(delete(table).where(table.c.expires_at < now - _KEPT))
    secret = secrets.fresh(secrets.SESSION)
    tx.execute(
        table.insert().values(
            id=new_id(),
            sha256=secrets.digest(secret),
            client=client[:_LONGEST_CLIENT],
            address=address,
            created_at=now,
            last_seen_at=now,
            expires_at=now + timedelta(days=settings.session_days),
            proved_at=now,
        )
    )
    return secret


def find_session(tx: Tx, secret: str, settings: DashboardSettings, now: datetime) -> Session | None:
    """The session that this cookie opens, if it still does."""
    if not secrets.has_form(secret, secrets.SESSION):
        return None
    row = tx.execute(select(table).where(table.c.sha256 == secrets.digest(secret), *_good(settings, now))).one_or_none()
    return None if row is None else _session(row)


def note_seen(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(table).where(table.c.id == session_id).values(last_seen_at=now))


def note_proof(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(table).where(table.c.id == session_id).values(proved_at=now))


def list_sessions(tx: Tx, settings: DashboardSettings, now: datetime) -> list[Session]:
    """Those that are open, the last used first."""
    query = select(table).where(*_good(settings, now)).order_by(table.c.last_seen_at.desc(), table.c.id)
    return [_session(row) for row in tx.execute(query.limit(MOST_LISTED))]


def end_session(tx: Tx, session_id: str, now: datetime) -> None:
    """Ending one that has ended changes nothing."""
    session_id = parse_id(session_id, "session")
    if tx.execute(select(table.c.id).where(table.c.id == session_id)).first() is None:
        raise NotFound("session", f"there is no session {session_id}")
    tx.execute(update(table).where(table.c.id == session_id, table.c.ended_at.is_(None)).values(ended_at=now))


def end_all_sessions(tx: Tx, now: datetime, *, but: str | None = None) -> int:
    """All that are open, but for the one that asks; how many there were."""
    others = [] if but is None else [table.c.id != but]
    return tx.execute(update(table).where(table.c.ended_at.is_(None), *others).values(ended_at=now)).rowcount


def leave_notice(tx: Tx, session_id: str, notice: Mapping[str, Any] | None) -> None:
    """What the next page of this session says once. Kept here and not in a cookie, where others could read it."""
    value = None if notice is None else dict(notice)
    tx.execute(update(table).where(table.c.id == session_id).values(notice=value))


def _good(settings: DashboardSettings, now: datetime) -> tuple[ColumnElement[bool], ...]:
    idle = now - timedelta(days=settings.idle_days)
    return table.c.ended_at.is_(None), table.c.expires_at > now, table.c.last_seen_at > idle


def _session(row: Any) -> Session:
    return Session(**{name: getattr(row, name) for name in Session.__slots__})
