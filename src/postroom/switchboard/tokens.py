"""Tokens that open the Switchboard. Only a hash of each is stored; the token itself is shown once, when it is made.

A token that makes another passes on no more than it has (`scopes`), and what it made falls with it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, select, update

from postroom import audit
from postroom.audit import SYSTEM, Actor
from postroom.db import Tx
from postroom.db.tables.switchboard import access_tokens as table
from postroom.domain.errors import BadInput, NotAllowed, NotFound
from postroom.domain.ids import new_id, parse_id
from postroom.domain.roles import Caller, Permission, Role
from postroom.switchboard.scopes import NewToken as NewToken  # asked for where tokens are made
from postroom.switchboard.scopes import Scope, granted

PREFIX = "prt_"
"""Known to the log's redaction, so that a token that strays into a message is masked."""

SUBJECT = "token"

_ENTROPY_BYTES = 32
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NOTED_EVERY = timedelta(minutes=1)
_LONGEST_NAME = 100


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
    permissions: frozenset[Permission]
    made_by: str | None
    """The token that made it; None: the owner."""

    def is_good(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def state(self, now: datetime) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "good" if self.is_good(now) else "expired"

    @property
    def permission_names(self) -> list[str]:
        return [permission.value for permission in Permission if permission in self.permissions]

    @property
    def scope(self) -> Scope:
        return Scope(self.role, self.permissions, self.endpoint_identity, self.expires_at)

    @property
    def caller(self) -> Caller:
        return Caller(self.role, self.name, self.endpoint_identity, self.permissions, self.id)


def create_token(
    tx: Tx, new: NewToken, now: datetime, who: Actor = SYSTEM, maker: str | None = None
) -> tuple[Token, str]:
    """The token as it is stored, and its text, which nobody can recover later.

    `maker` is the id of the token that asks; it is locked, so that it cannot be revoked while it makes another.
    """
    scope = checked(new, now, None if maker is None else _good_maker(tx, maker, now).scope)
    text = PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)
    made = Token(
        new_id(), new.role, new.name, scope.mailbox, now, scope.expires_at, None, None, scope.permissions, maker
    )
    tx.execute(table.insert().values(**_columns(made), sha256=_digest(text)))
    audit.record(tx, who, "token.create", (SUBJECT, made.id), now, after=_audited(made))
    return made, text


def checked(new: NewToken, now: datetime, maker: Scope | None = None) -> Scope:
    """What such a token could be used for; refuses one that cannot be, by the name of the field."""
    _check_name(new.name)
    return granted(new, maker, now)


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
    """From now on it opens nothing, nor does what it made. Revoking it again changes nothing."""
    return revoke_with_made(tx, token_id, now, who)[0]


def revoke_with_made(
    tx: Tx, token_id: str, now: datetime, who: Actor = SYSTEM, asker: str | None = None
) -> tuple[Token, int]:
    """The revoked token, and how many that it made, or those made, were revoked with it.

    `asker` is the token that asks: it may revoke itself and what it made.
    """
    token_id = parse_id(token_id, "id")
    row = tx.execute(tx.locking(select(table).where(table.c.id == token_id))).one_or_none()
    if row is None:
        raise NotFound("id", f"there is no token {token_id}; `postroom token list` shows those there are")
    token = _token(row)
    if asker is not None and asker not in _line(tx, token):
        raise NotAllowed("A token can revoke itself and the tokens that it made, and no other.")
    made = list(_made_by(tx, [token_id]))
    revoked = _revoked(tx, token, now, who)
    fell = [_revoked(tx, each, now, who, {"with": token_id}) for each in made if each.revoked_at is None]
    return revoked, len(fell)


def revoke_all(tx: Tx, now: datetime, who: Actor = SYSTEM) -> int:
    """Every token there is; how many were not revoked yet. Asked again until none is left: one that was being made
    meanwhile is found by the next look."""
    fell = 0
    query = tx.locking(select(table).where(table.c.revoked_at.is_(None)).order_by(table.c.id))
    while rows := tx.execute(query).all():
        for row in rows:
            _revoked(tx, _token(row), now, who, {"with": "all"})
        fell += len(rows)
    audit.record(tx, who, "token.revoke_all", (SUBJECT, "all"), now, after={"revoked": fell})
    return fell


def list_tokens(tx: Tx) -> list[Token]:
    """All of them, the revoked and expired ones too, in the order in which they were made."""
    return [_token(row) for row in tx.execute(select(table).order_by(table.c.created_at, table.c.id))]


def _good_maker(tx: Tx, token_id: str, now: datetime) -> Token:
    row = tx.execute(tx.locking(select(table).where(table.c.id == token_id))).one_or_none()
    if row is None or not (maker := _token(row)).is_good(now):
        raise NotAllowed("The token that asks for this is no longer good.")
    return maker


def _made_by(tx: Tx, makers: Sequence[str]) -> Iterator[Token]:
    """All that these made, and what those made in turn, each generation locked before the next is looked for."""
    while makers:
        query = select(table).where(table.c.made_by.in_(makers)).order_by(table.c.id)
        made = [_token(row) for row in tx.execute(tx.locking(query))]
        yield from made
        makers = [token.id for token in made]


def _line(tx: Tx, token: Token) -> list[str]:
    """The token and its makers, up to the first."""
    line = [token.id]
    above = token.made_by
    while above is not None:
        line.append(above)
        above = tx.execute(select(table.c.made_by).where(table.c.id == above)).scalar()
    return line


def _revoked(tx: Tx, token: Token, now: datetime, who: Actor, why: Mapping[str, str] | None = None) -> Token:
    if token.revoked_at is not None:
        return token
    tx.execute(update(table).where(table.c.id == token.id).values(revoked_at=now))
    revoked = replace(token, revoked_at=now)
    after = {**_audited(revoked), **(why or {})}
    audit.record(tx, who, "token.revoke", (SUBJECT, token.id), now, before=_audited(token), after=after)
    return revoked


def _audited(token: Token) -> dict[str, Any]:
    """What the audit log keeps of it: whom it speaks for, for what and until when, and nothing that opens anything."""
    times = {name: at.isoformat() for name in ("expires_at", "revoked_at") if (at := getattr(token, name))}
    maker = {} if token.made_by is None else {"made_by": token.made_by}
    return {
        "role": token.role,
        "name": token.name,
        "endpoint_identity": token.endpoint_identity,
        "permissions": token.permission_names,
        **maker,
        **times,
    }


def _check_name(name: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise BadInput("name", f"must be 1 to {_LONGEST_NAME} printable characters; it stands in the audit")


def _columns(token: Token) -> dict[str, Any]:
    return {name: getattr(token, name) for name in Token.__slots__} | {"permissions": token.permission_names}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: Row[Any]) -> Token:
    """A permission that this version does not know allows nothing."""
    values = {name: getattr(row, name) for name in Token.__slots__}
    permissions = frozenset(permission for permission in Permission if permission.value in row.permissions)
    return Token(**values | {"role": Role(row.role), "permissions": permissions})
