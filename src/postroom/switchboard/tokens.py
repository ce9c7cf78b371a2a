"""Access tokens of the Switchboard: what one permits, and how it is created, verified and revoked.

Only a hash of each token is stored; the token itself is shown once. A token that creates another passes on no
more than it has, and revoking it revokes what it created.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, select, update

from postroom import audit
from postroom.audit import SYSTEM, Actor
from postroom.db import Database, Prepared, Tx
from postroom.db.tables.access import access_tokens as table
from postroom.domain.clock import Clock
from postroom.domain.errors import BadInput, NotAllowed, NotFound, PostroomError
from postroom.domain.ids import new_id, parse_id
from postroom.domain.roles import PERMISSIONS, Caller, Permission, Role, all_permissions, default_permissions
from postroom.telemetry import logs

log = logs.get(__name__)

MOST_DAYS = 3_650
_LONGEST_MAILBOX = 320


@dataclass(frozen=True, slots=True)
class TokenScope:
    role: Role
    permissions: frozenset[Permission]
    mailbox: str | None = None
    """None: every mailbox."""
    expires_at: datetime | None = None
    """None: it does not expire."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """What a token is asked for. None means the default, which the maker's own scope limits further."""

    role: Role
    name: str
    expires_days: int | None = None
    endpoint_identity: str | None = None
    """Good for this mailbox only."""
    permissions: Iterable[Permission] | None = None


def granted(wanted: NewToken, maker: TokenScope | None, now: datetime) -> TokenScope:
    """The scope that a new token gets. `maker` is the token that asks for it; None: the owner, who may grant anything.

    What is asked for by name and goes beyond the maker is refused. What is left open, and the time, is cut to the
    maker's.
    """
    scope = TokenScope(
        wanted.role, _permissions(wanted), _mailbox(wanted.endpoint_identity), _expires_at(wanted.expires_days, now)
    )
    if maker is None:
        return scope
    return _within(scope, maker, named=wanted.permissions is not None)


def _within(scope: TokenScope, maker: TokenScope, *, named: bool) -> TokenScope:
    if Permission.TOKENS not in maker.permissions:
        raise NotAllowed("This token may not make tokens: it lacks the permission `tokens`.")
    if scope.role is not maker.role:
        raise NotAllowed(f"A token of role {maker.role} can make no token of role {scope.role}.")
    beyond = scope.permissions - maker.permissions
    if named and beyond:
        raise NotAllowed(f"A token can pass on only what it has; this one lacks {listed(beyond)}.")
    if scope.mailbox is not None and maker.mailbox not in (None, scope.mailbox):
        raise NotAllowed(f"This token is for {maker.mailbox} only, and can make no token for another mailbox.")
    if not scope.permissions - beyond:
        raise BadInput("permissions", "are needed: this token has none of those that a new token gets by itself")
    return replace(
        scope,
        permissions=scope.permissions - beyond,
        mailbox=scope.mailbox or maker.mailbox,
        expires_at=_earlier(scope.expires_at, maker.expires_at),
    )


def listed(permissions: Iterable[Permission]) -> str:
    """In the order of the table of permissions."""
    wanted = set(permissions)
    return ", ".join(permission for permission in Permission if permission in wanted)


def _permissions(wanted: NewToken) -> frozenset[Permission]:
    if wanted.permissions is None:
        return default_permissions(wanted.role)
    asked = frozenset(wanted.permissions)
    strange = asked - all_permissions(wanted.role)
    if strange or not asked:
        what = (
            f"{listed(strange)} is nothing that a token of role {wanted.role} can have" if strange else "none is given"
        )
        raise BadInput("permissions", f"{what}; choose from {', '.join(PERMISSIONS[wanted.role])}")
    return asked


def _mailbox(address: str | None) -> str | None:
    """In lower case, as its connector writes it."""
    if address is None:
        return None
    if not address.strip() or not address.isprintable() or len(address) > _LONGEST_MAILBOX:
        raise BadInput("identity", "must be the address of a mailbox")
    return address.strip().lower()


def _expires_at(days: int | None, now: datetime) -> datetime | None:
    if days is None:
        return None
    if not 1 <= days <= MOST_DAYS:
        raise BadInput("expires-days", f"{days} is not between 1 and {MOST_DAYS}")
    return now + timedelta(days=days)


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((at for at in (one, other) if at is not None), default=None)


PREFIX = "prt_"
"""The log masks everything that begins so, in case a token gets into a message."""

SUBJECT = "token"

_ENTROPY_BYTES = 32
_FORM = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")
_NOTED_EVERY = timedelta(minutes=1)
_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class AccessToken:
    """What is stored about a token; the token itself is not."""

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
    def scope(self) -> TokenScope:
        return TokenScope(self.role, self.permissions, self.endpoint_identity, self.expires_at)

    @property
    def caller(self) -> Caller:
        return Caller(self.role, self.name, self.endpoint_identity, self.permissions, self.id)


def create_token(
    tx: Tx, new: NewToken, now: datetime, who: Actor = SYSTEM, maker: str | None = None
) -> tuple[AccessToken, str]:
    """The token as it is stored, and its text, which cannot be recovered later.

    `maker` is the id of the token that asks; it is locked, so that it cannot be revoked while it makes another.
    """
    scope = checked(new, now, None if maker is None else _good_maker(tx, maker, now).scope)
    text = PREFIX + secrets.token_urlsafe(_ENTROPY_BYTES)
    made = AccessToken(
        new_id(), new.role, new.name, scope.mailbox, now, scope.expires_at, None, None, scope.permissions, maker
    )
    tx.execute(table.insert().values(**_columns(made), sha256=_digest(text)))
    audit.record(tx, who, "token.create", (SUBJECT, made.id), now, after=_audited(made))
    return made, text


def checked(new: NewToken, now: datetime, maker: TokenScope | None = None) -> TokenScope:
    """The scope that such a token would have; a token that cannot be made is refused by the name of the field."""
    _check_name(new.name)
    return granted(new, maker, now)


_BY_DIGEST = Prepared(select(table).where(table.c.sha256 == bindparam("digest")))


def verify_token(tx: Tx, text: str, now: datetime) -> AccessToken | None:
    """The token with this text if it is good now. Looked up by its hash, so that timing reveals nothing."""
    if not _FORM.fullmatch(text):
        return None
    digest = _digest(text)
    rows = tx.run(_BY_DIGEST, {"digest": digest})
    if not rows or not hmac.compare_digest(rows[0].sha256, digest):
        return None
    token = _token(rows[0])
    return token if token.is_good(now) else None


def needs_noting(token: AccessToken, now: datetime) -> bool:
    """Whether the recorded last use is old enough to be worth a write."""
    return token.last_used_at is None or now - token.last_used_at >= _NOTED_EVERY


def note_use(tx: Tx, token_id: str, now: datetime) -> None:
    tx.execute(update(table).where(table.c.id == token_id).values(last_used_at=now))


class TokenVerifier:
    """Looks up tokens for each request, and notes when they were used."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def verified(self, text: str) -> AccessToken | None:
        """The token with this text if it is good now."""
        now = self._clock.now()
        token = await self._database.read(lambda tx: verify_token(tx, text, now))
        if token is not None and needs_noting(token, now):
            try:
                await self._database.write(lambda tx: note_use(tx, token.id, now))
            except PostroomError as error:  # which is no reason to refuse the request
                log.warning("switchboard.token_use_not_noted", error=error.message)
        return token


def revoke_token(tx: Tx, token_id: str, now: datetime, who: Actor = SYSTEM) -> AccessToken:
    """It and the tokens that it made are refused from now on. Revoking it again changes nothing."""
    return revoke_with_made(tx, token_id, now, who)[0]


def revoke_with_made(
    tx: Tx, token_id: str, now: datetime, who: Actor = SYSTEM, asker: str | None = None
) -> tuple[AccessToken, int]:
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
    """Revoke every token; how many were not revoked before. Repeats until none is left, because one may be made
    meanwhile."""
    fell = 0
    query = tx.locking(select(table).where(table.c.revoked_at.is_(None)).order_by(table.c.id))
    while rows := tx.execute(query).all():
        for row in rows:
            _revoked(tx, _token(row), now, who, {"with": "all"})
        fell += len(rows)
    audit.record(tx, who, "token.revoke_all", (SUBJECT, "all"), now, after={"revoked": fell})
    return fell


def list_tokens(tx: Tx) -> list[AccessToken]:
    """All tokens, also revoked and expired ones, oldest first."""
    return [_token(row) for row in tx.execute(select(table).order_by(table.c.created_at, table.c.id))]


def _good_maker(tx: Tx, token_id: str, now: datetime) -> AccessToken:
    row = tx.execute(tx.locking(select(table).where(table.c.id == token_id))).one_or_none()
    if row is None or not (maker := _token(row)).is_good(now):
        raise NotAllowed("The token that asks for this is no longer good.")
    return maker


def _made_by(tx: Tx, makers: Sequence[str]) -> Iterator[AccessToken]:
    """All that these made, and what those made in turn, each generation locked before the next is looked for."""
    while makers:
        query = select(table).where(table.c.made_by.in_(makers)).order_by(table.c.id)
        made = [_token(row) for row in tx.execute(tx.locking(query))]
        yield from made
        makers = [token.id for token in made]


def _line(tx: Tx, token: AccessToken) -> list[str]:
    """The token and its makers, up to the first."""
    line = [token.id]
    above = token.made_by
    while above is not None:
        line.append(above)
        above = tx.execute(select(table.c.made_by).where(table.c.id == above)).scalar()
    return line


def _revoked(
    tx: Tx, token: AccessToken, now: datetime, who: Actor, why: Mapping[str, str] | None = None
) -> AccessToken:
    if token.revoked_at is not None:
        return token
    tx.execute(update(table).where(table.c.id == token.id).values(revoked_at=now))
    revoked = replace(token, revoked_at=now)
    after = {**_audited(revoked), **(why or {})}
    audit.record(tx, who, "token.revoke", (SUBJECT, token.id), now, before=_audited(token), after=after)
    return revoked


def _audited(token: AccessToken) -> dict[str, Any]:
    """For the audit log: role, mailbox, permissions and times, and nothing that could be used to log in."""
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


def _columns(token: AccessToken) -> dict[str, Any]:
    return {name: getattr(token, name) for name in AccessToken.__slots__} | {"permissions": token.permission_names}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _token(row: Row[Any]) -> AccessToken:
    """A permission that this version does not know is ignored."""
    values = {name: getattr(row, name) for name in AccessToken.__slots__}
    permissions = frozenset(permission for permission in Permission if permission.value in row.permissions)
    return AccessToken(**values | {"role": Role(row.role), "permissions": permissions})
