"""Tokens that open the Switchboard. Only a hash of each is stored; the token itself is shown once, when it is made."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, select, update

from postroom import audit
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.tables.switchboard import access_tokens as table
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import new_id, parse_id
from postroom.domain.roles import Caller, Role

PREFIX = "prt_"
"""Known to the log's redaction, so that a token that strays into a message is masked."""

SUBJECT = "token"

_ENTROPY_BYTES = 32
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NOTED_EVERY = timedelta(minutes=1)
_LONGEST_NAME = 100
_MOST_DAYS = 3_650


@dataclass(frozen=True, slots=True)
class Token:
    """What is known of a token: everything but the token."""

    id: str
    role: Role
    name: str
    endpoint_identity: str | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def is_good(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def caller(self) -> Caller:
        return Caller(self.role, self.name, self.endpoint_identity)


@dataclass(frozen=True, slots=True)
class NewToken:
    role: Role
    name: str
    expires_days: int | None = None
    endpoint_identity: str | None = None


def create_token(tx: Tx, new: NewToken, now: datetime, who: Actor = SYSTEM) -> tuple[Token, str]:
    """The token as it is stored, and its text, which nobody can recover later."""
    _check(new)
    text = PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)
    expires_at = None if new.expires_days is None else now + timedelta(days=new.expires_days)
    made = Token(new_id(), new.role, new.name, _mailbox(new.endpoint_identity), now, expires_at, None, None)
    tx.execute(table.insert().values(**{name: getattr(made, name) for name in Token.__slots__}, sha256=_digest(text)))
    audit.record(tx, who, "token.create", (SUBJECT, made.id), now, after=_audited(made))
    return made, text


def verify_token(tx: Tx, text: str, now: datetime) -> Token | None:
    """The token behind this text if it is good now. Looked up by its hash, so time tells nothing of what is stored."""
    if not _FORM.fullmatch(text):
        return None
    digest = _digest(text)
    row = tx.execute(select(table).where(table.c.sha256 == digest)).one_or_none()
    if row is None or not hmac.compare_digest(row.sha256, digest):
        return None
    token = _token(row)
    return token if token.is_good(now) else None


def needs_noting(token: Token, now: datetime) -> bool:
    """Whether its last use on record is old enough to be worth a write."""
    return token.last_used_at is None or now - token.last_used_at >= _NOTED_EVERY


def note_use(tx: Tx, token_id: str, now: datetime) -> None:
    tx.execute(update(table).where(table.c.id == token_id).values(last_used_at=now))


def revoke_token(tx: Tx, token_id: str, now: datetime, who: Actor = SYSTEM) -> Token:
    """From now on it opens nothing. Revoking it again changes nothing."""
    token_id = parse_id(token_id, "id")
    row = tx.execute(tx.locking(select(table).where(table.c.id == token_id))).one_or_none()
    if row is None:
        raise NotFound("id", f"there is no token {token_id}; `postroom token list` shows those there are")
    before = _token(row)
    if before.revoked_at is not None:
        return before
    tx.execute(update(table).where(table.c.id == token_id).values(revoked_at=now))
    revoked = replace(before, revoked_at=now)
    audit.record(tx, who, "token.revoke", (SUBJECT, token_id), now, before=_audited(before), after=_audited(revoked))
    return revoked


def list_tokens(tx: Tx) -> list[Token]:
    """All of them, the revoked and expired ones too, in the order in which they were made."""
    return [_token(row) for row in tx.execute(select(table).order_by(table.c.created_at, table.c.id))]


def _mailbox(identity: str | None) -> str | None:
    """As its connector writes it: capitals in an address mean nothing, and would shut the connector out."""
    return None if identity is None else identity.strip().lower()


def _audited(token: Token) -> dict[str, Any]:
    """What the audit log keeps of it: whom it speaks for and until when, and nothing that opens anything."""
    times = {name: at.isoformat() for name in ("expires_at", "revoked_at") if (at := getattr(token, name))}
    return {"role": token.role, "name": token.name, "endpoint_identity": token.endpoint_identity, **times}


def _check(new: NewToken) -> None:
    if not new.name.strip() or not new.name.isprintable() or len(new.name) > _LONGEST_NAME:
        raise BadInput("name", f"must be 1 to {_LONGEST_NAME} printable characters; it stands in the audit")
    if new.expires_days is not None and not 1 <= new.expires_days <= _MOST_DAYS:
        raise BadInput("expires-days", f"{new.expires_days} is not between 1 and {_MOST_DAYS}")
    if new.endpoint_identity is None:
        return
    if new.role is not Role.CONNECTOR:
        raise BadInput("identity", f"is for connectors; a token of role {new.role} speaks for no mailbox")
    if not new.endpoint_identity or not new.endpoint_identity.isprintable() or len(new.endpoint_identity) > 320:
        raise BadInput("identity", "must be the address of a mailbox")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: Row[Any]) -> Token:
    values = {name: getattr(row, name) for name in Token.__slots__}
    return Token(**values | {"role": Role(row.role)})
