"""Who may come in: tokens made and revoked, logins ended."""

from __future__ import annotations

from datetime import datetime

from postroom import audit
from postroom.audit import Actor
from postroom.dashboard.security.sessions import end_all_sessions, end_session
from postroom.db import Tx


def end_one(tx: Tx, session_id: str, who: Actor, now: datetime) -> None:
    end_session(tx, session_id, now)
    audit.record(tx, who, "dashboard.end_session", ("dashboard_session", session_id), now)


def end_others(tx: Tx, own: str | None, who: Actor, now: datetime) -> int:
    """All logins but this one; how many there were."""
    ended = end_all_sessions(tx, now, but=own)
    if ended:
        audit.record(tx, who, "dashboard.end_sessions", ("dashboard", "sessions"), now, after={"ended": ended})
    return ended
