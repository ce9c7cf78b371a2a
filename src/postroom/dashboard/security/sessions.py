"""Who makes a request, and what a browser carries: session secrets (stored only as hashes), login sessions, values
signed by this process that a page gives out and gets back unchanged, and secrets that a page shows once.

The signing key lives as long as the process, so no signed value outlives a change of the settings.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, select, update
from starlette.types import Scope

from postroom.audit import Actor
from postroom.db import Tx
from postroom.db.tables.access import dashboard_sessions
from postroom.domain.errors import Fatal, NotFound
from postroom.domain.ids import new_id, parse_id
from postroom.domain.roles import Caller, Role
from postroom.settings import DashboardSettings

SESSION, LINK, DEVICE = "prt_session_", "prt_link_", "prt_device_"
"""All begin as our tokens do, so that the log masks one that strays into it."""

_FORM = re.compile(r"prt_(?:session|link)_[A-Za-z0-9_-]{43}")
_DEVICE_FORM = re.compile(rf"{DEVICE}([A-Za-z0-9_-]{{22}})([0-9a-f]{{64}})")


def fresh_secret(prefix: str) -> str:
    return prefix + secrets.token_urlsafe(32)


def secret_digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def has_secret_form(secret: str, prefix: str) -> bool:
    return secret.startswith(prefix) and _FORM.fullmatch(secret) is not None


def csrf_token(session_secret: str) -> str:
    """What the forms of a session carry. Follows from the cookie, so it is stored nowhere and ends with the session."""
    return hmac.new(session_secret.encode(), b"csrf", hashlib.sha256).hexdigest()


def is_csrf_token(offered: str, session_secret: str) -> bool:
    return hmac.compare_digest(offered.encode(), csrf_token(session_secret).encode())


def device_secret(passphrase_hash: str) -> str:
    """For a browser that knew the passphrase. It opens nothing; it only sets the browser apart from strangers.

    Follows from the stored hash, so it is stored nowhere and ends when the passphrase is changed.
    """
    device = secrets.token_urlsafe(16)
    return f"{DEVICE}{device}{_device_seal(device, passphrase_hash)}"


def device_of(offered: str, passphrase_hash: str) -> str | None:
    """The device that this secret was made for, if it was made here and for this passphrase."""
    found = _DEVICE_FORM.fullmatch(offered)
    if found is None or not hmac.compare_digest(found[2], _device_seal(found[1], passphrase_hash)):
        return None
    return found[1]


def _device_seal(device: str, passphrase_hash: str) -> str:
    return hmac.new(passphrase_hash.encode(), f"device {device}".encode(), hashlib.sha256).hexdigest()


MOST_LISTED = 100
_SEEN_EVERY = timedelta(minutes=1)
_KEPT = timedelta(days=30)
_LONGEST_CLIENT = 300


@dataclass(frozen=True, slots=True)
class LoginSession:
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

    def is_proved(self, minutes: int, now: datetime) -> bool:
        """Whether the passphrase was given within so many minutes; a time in the future does not count."""
        return self.proved_at is not None and timedelta(0) <= now - self.proved_at < timedelta(minutes=minutes)


def begin_session(tx: Tx, settings: DashboardSettings, client: str, address: str, now: datetime) -> str:
    """The secret for the cookie; the caller has just checked that the visitor knows the passphrase, or set it. Sessions
    that ended long ago are forgotten on the way."""
    tx.execute(delete(dashboard_sessions).where(dashboard_sessions.c.expires_at < now - _KEPT))
    secret = fresh_secret(SESSION)
    tx.execute(
        dashboard_sessions.insert().values(
            id=new_id(),
            sha256=secret_digest(secret),
            client=client[:_LONGEST_CLIENT],
            address=address,
            created_at=now,
            last_seen_at=now,
            expires_at=now + timedelta(days=settings.session_days),
            proved_at=now,
        )
    )
    return secret


def find_session(tx: Tx, secret: str, settings: DashboardSettings, now: datetime) -> LoginSession | None:
    """The session that this cookie opens, if it still does."""
    if not has_secret_form(secret, SESSION):
        return None
    row = tx.execute(
        select(dashboard_sessions).where(dashboard_sessions.c.sha256 == secret_digest(secret), *_good(settings, now))
    ).one_or_none()
    return None if row is None else _session(row)


def note_seen(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(dashboard_sessions).where(dashboard_sessions.c.id == session_id).values(last_seen_at=now))


def note_proof(tx: Tx, session_id: str, now: datetime) -> None:
    tx.execute(update(dashboard_sessions).where(dashboard_sessions.c.id == session_id).values(proved_at=now))


def list_sessions(tx: Tx, settings: DashboardSettings, now: datetime) -> list[LoginSession]:
    """Those that are open, the last used first."""
    query = (
        select(dashboard_sessions)
        .where(*_good(settings, now))
        .order_by(dashboard_sessions.c.last_seen_at.desc(), dashboard_sessions.c.id)
    )
    return [_session(row) for row in tx.execute(query.limit(MOST_LISTED))]


def end_session(tx: Tx, session_id: str, now: datetime) -> None:
    """Ending one that has ended changes nothing."""
    session_id = parse_id(session_id, "session")
    if tx.execute(select(dashboard_sessions.c.id).where(dashboard_sessions.c.id == session_id)).first() is None:
        raise NotFound("session", f"there is no session {session_id}")
    tx.execute(
        update(dashboard_sessions)
        .where(dashboard_sessions.c.id == session_id, dashboard_sessions.c.ended_at.is_(None))
        .values(ended_at=now)
    )


def end_all_sessions(tx: Tx, now: datetime, *, but: str | None = None) -> int:
    """All that are open, but for the one that asks; how many there were."""
    others = [] if but is None else [dashboard_sessions.c.id != but]
    return tx.execute(
        update(dashboard_sessions).where(dashboard_sessions.c.ended_at.is_(None), *others).values(ended_at=now)
    ).rowcount


def leave_notice(tx: Tx, session_id: str, notice: Mapping[str, Any] | None) -> None:
    """What the next page of this session says once. Kept here and not in a cookie, where others could read it."""
    value = None if notice is None else dict(notice)
    tx.execute(update(dashboard_sessions).where(dashboard_sessions.c.id == session_id).values(notice=value))


def _good(settings: DashboardSettings, now: datetime) -> tuple[ColumnElement[bool], ...]:
    idle = now - timedelta(days=settings.idle_days)
    return (
        dashboard_sessions.c.ended_at.is_(None),
        dashboard_sessions.c.expires_at > now,
        dashboard_sessions.c.last_seen_at > idle,
    )


def _session(row: Any) -> LoginSession:
    return LoginSession(**{name: getattr(row, name) for name in LoginSession.__slots__})


VISITOR_KEY = "postroom.visitor"
OWNER = Caller(Role.DASHBOARD, "owner")


@dataclass(frozen=True, slots=True)
class Visitor:
    caller: Caller
    session: LoginSession | None = None
    secret: str = ""
    """Of the session; empty for a program."""

    @property
    def csrf(self) -> str:
        return csrf_token(self.secret) if self.session is not None else ""

    @property
    def actor(self) -> Actor:
        return Actor.of(self.caller)


def visitor_of(scope: Scope) -> Visitor | None:
    visitor: Visitor | None = scope.get(VISITOR_KEY)
    return visitor


def require_visitor(scope: Scope) -> Visitor:
    visitor = visitor_of(scope)
    if visitor is None:
        raise Fatal("A page was asked for without passing the gate.")
    return visitor


_LONGEST_SIGNED = 50_000


@dataclass(frozen=True, slots=True)
class SignedValue:
    value: dict[str, Any]
    sealed_at: datetime
    is_genuine: bool
    """We gave it out, for this purpose. Anything else is an unproved claim."""

    def is_good(self, now: datetime, longest: timedelta) -> bool:
        """Genuine, and not older than that; a clock that was set back makes it too old rather than too young."""
        return self.is_genuine and timedelta() <= now - self.sealed_at <= longest


class Signer:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def close(self, purpose: str, value: Mapping[str, Any], now: datetime) -> str:
        written = json.dumps({"at": now.isoformat(), "value": dict(value)}, separators=(",", ":")).encode()
        text = base64.urlsafe_b64encode(written).decode()
        return f"{text}.{self._signature(purpose, text)}"

    def open(self, purpose: str, sealed: str) -> SignedValue | None:
        """None for what cannot be read."""
        text, _, signature = sealed.rpartition(".")
        try:
            if len(sealed) > _LONGEST_SIGNED:
                return None
            written = json.loads(base64.b64decode(text, b"-_", validate=True))
            at = datetime.fromisoformat(written["at"])
            is_genuine = hmac.compare_digest(signature.encode(), self._signature(purpose, text).encode())
            return SignedValue(dict(written["value"]), at, is_genuine)
        except (ValueError, TypeError, KeyError, RecursionError):
            return None

    def _signature(self, purpose: str, text: str) -> str:
        return hmac.new(self._key, f"{purpose}\n{text}".encode(), hashlib.sha256).hexdigest()


_MOST = 50


class ShownOnce:
    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()

    def keep(self, session_id: str, name: str, secret: str) -> None:
        """Until it is taken; the oldest make room for it."""
        self._kept[session_id, name] = secret
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)

    def take(self, session_id: str, name: str) -> str | None:
        """None if it was shown already, or is of another login."""
        return self._kept.pop((session_id, name), None)
