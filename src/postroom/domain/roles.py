"""Who speaks to the Switchboard: three roles that share no tool, what each may be allowed, and the caller behind a
request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    DASHBOARD = "dashboard"
    """A person who steers: creates and controls backfill, reads the audit."""
    CONNECTOR = "connector"
    """A program that brings mail from a source."""
    AGENT = "agent"
    """A language model's client: reads, and asks for mail on demand."""


class Permission(StrEnum):
    """What a token may be used for, within its role. Every tool and every route of the API names one of these."""

    READ = "read"
    SEARCH = "search"
    FETCH = "fetch"
    INGEST = "ingest"
    CONTACTS = "contacts"
    BACKFILL = "backfill"
    ACT = "act"
    APPROVE = "approve"
    RULES = "rules"
    WEB = "web"
    ACCOUNTS = "accounts"
    SETTINGS = "settings"
    TOKENS = "tokens"


PERMISSIONS: Mapping[Role, Mapping[Permission, str]] = {
    Role.DASHBOARD: {
        Permission.READ: "look at everything: mail, rules, jobs, settings, the audit log",
        Permission.ACT: "undo, retry, cancel and reschedule actions and jobs",
        Permission.APPROVE: "answer approvals",
        Permission.RULES: "write rules, guidance and directions; none that sends or destroys unattended",
        Permission.BACKFILL: "estimate, create and steer backfill; turn its switch",
        Permission.WEB: "start, stop and repeat web runs",
        Permission.ACCOUNTS: "add mailboxes",
        Permission.SETTINGS: "end logins; turn the model off and on; change the passphrase, knowing it",
        Permission.TOKENS: "make tokens that may do no more than this one, and revoke those",
    },
    Role.CONNECTOR: {
        Permission.INGEST: "store and hand in mail, keep the history cursor, report its health",
        Permission.BACKFILL: "work on backfill jobs",
        Permission.CONTACTS: "copy the addresses of known contacts",
    },
    Role.AGENT: {
        Permission.READ: "read a message, list decisions and jobs",
        Permission.SEARCH: "search the archive",
        Permission.FETCH: "have more mail taken in from the mailbox",
    },
}
"""What each role may be allowed, in words for a person."""

ASKED_FOR_ONLY = frozenset({Permission.APPROVE, Permission.TOKENS})
"""Permissions that a new token has only when they are named."""


def all_permissions(role: Role) -> frozenset[Permission]:
    return frozenset(PERMISSIONS[role])


def default_permissions(role: Role) -> frozenset[Permission]:
    return all_permissions(role) - ASKED_FOR_ONLY


@dataclass(frozen=True, slots=True)
class Caller:
    """The one that a request comes from. Without `permissions` it may do everything that its role can."""

    role: Role
    name: str
    endpoint_identity: str | None = None
    """Set where the caller may speak for this mailbox only."""
    permissions: frozenset[Permission] = frozenset()
    token_id: str | None = field(default=None, compare=False)
    """None: the owner, or this installation itself."""
    is_proved: bool = field(default=False, compare=False)
    """A person calls who gave the passphrase a short time ago."""

    def __post_init__(self) -> None:
        if self.token_id is None and not self.permissions:
            object.__setattr__(self, "permissions", all_permissions(self.role))

    def may(self, permission: Permission) -> bool:
        return permission in self.permissions

    def __str__(self) -> str:
        return f"{self.role} {self.name}"
