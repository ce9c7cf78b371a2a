"""What a token may be used for, and what it may pass on to a token that it makes: never more than it has. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import PERMISSIONS, Permission, Role, all_permissions, default_permissions

MOST_DAYS = 3_650
_LONGEST_MAILBOX = 320


@dataclass(frozen=True, slots=True)
class Scope:
    role: Role
    permissions: frozenset[Permission]
    mailbox: str | None = None
    """None: every mailbox."""
    expires_at: datetime | None = None
    """None: it does not expire."""

    def covers(self, other: Scope) -> bool:
        """Whether a holder of this can already do everything that `other` allows, for at least as long."""
        return (
            other.role is self.role
            and other.permissions <= self.permissions
            and self.mailbox in (None, other.mailbox)
            and (self.expires_at is None or (other.expires_at is not None and other.expires_at <= self.expires_at))
        )


@dataclass(frozen=True, slots=True)
class NewToken:
    """What a token is asked for. None stands for the default, which a maker's own scope narrows further."""

    role: Role
    name: str
    expires_days: int | None = None
    endpoint_identity: str | None = None
    """Good for this mailbox only."""
    permissions: Iterable[Permission] | None = None


def granted(wanted: NewToken, maker: Scope | None, now: datetime) -> Scope:
    """The scope that a new token gets. `maker` is the token that asks for it; None: the owner, who may grant anything.

    What is asked for by name and goes beyond the maker is refused. What is left open, and the time, is cut to the
    maker's.
    """
    scope = Scope(
        wanted.role, _permissions(wanted), _mailbox(wanted.endpoint_identity), _expires_at(wanted.expires_days, now)
    )
    if maker is None:
        return scope
    return _within(scope, maker, named=wanted.permissions is not None)


def _within(scope: Scope, maker: Scope, *, named: bool) -> Scope:
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
    """As its connector writes it: capitals in an address mean nothing, and would shut the connector out."""
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
