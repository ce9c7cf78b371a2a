"""Who speaks to the Switchboard: three roles that share no tool, what each may be allowed, the caller behind a request,
and the changes for which the owner gives the passphrase again.

The tools that make these changes call `require_proof`, so it holds whichever way they are called. A token cannot
prove that a person is there, so it makes none of them; the command line on the host is the owner's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from postroom.domain.errors import NotAllowed


class Role(StrEnum):
    DASHBOARD = "dashboard"
    """A person who steers: creates and controls backfill, reads the audit."""
    CONNECTOR = "connector"
    """A program that brings mail from a source."""
    AGENT = "agent"
    """A language model's client: reads, asks for mail on demand, and proposes. It never approves."""


class Permission(StrEnum):
    """What a token may be used for, within its role. Every tool and every route of the API names one of these."""

    READ = "read"
    SEARCH = "search"
    ASK = "ask"
    FETCH = "fetch"
    INGEST = "ingest"
    CONTACTS = "contacts"
    BACKFILL = "backfill"
    PROPOSE = "propose"
    UNDO = "undo"
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
        Permission.ASK: "ask the model about mail, within the daily ceiling of what it may cost",
        Permission.ACT: "act on mail; undo, retry, cancel and reschedule actions and jobs; work off the review list",
        Permission.APPROVE: "answer approvals",
        Permission.RULES: "write rules, guidance and directions; none that sends or destroys unattended",
        Permission.BACKFILL: "estimate, create and steer backfill; turn its switch",
        Permission.WEB: "follow and leave web sources; start, stop and repeat their runs",
        Permission.ACCOUNTS: "add mailboxes; start, stop and remove imports of uploaded files",
        Permission.SETTINGS: "change contacts, tier policy and categories; end logins; turn the model on or off, "
        "try it; change the passphrase, knowing it",
        Permission.TOKENS: "make tokens that may do no more than this one, and revoke those",
    },
    Role.CONNECTOR: {
        Permission.INGEST: "store and hand in mail, keep the history cursor, report its health",
        Permission.BACKFILL: "work on backfill jobs",
        Permission.CONTACTS: "copy the addresses of known contacts",
    },
    Role.AGENT: {
        Permission.READ: "read messages and attached text; list decisions, review, approvals, actions, rules, "
        "web sources and jobs; count mail",
        Permission.SEARCH: "search the archive",
        Permission.ASK: "ask the model about mail, within the daily ceiling of what it may cost",
        Permission.FETCH: "have more mail taken in from the mailbox",
        Permission.PROPOSE: "propose actions and rules, which you approve or reject; try a rule on the archive",
        Permission.UNDO: "undo actions",
    },
}
"""What each role may be allowed, in words for a person."""

ASKED_FOR_ONLY = frozenset({Permission.APPROVE, Permission.TOKENS, Permission.UNDO})
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


_ASKS, _HOST = "asks for the passphrase", "not offered: only on the host"
_REFUSED = "refused"


class SensitiveChange(Enum):
    """What is changed, and what the dashboard and a token with every permission can do about it."""

    MAKE_TOKEN = ("make a token", _ASKS, "only with `tokens`, and nothing beyond itself")
    UNATTENDED_RULE = ("save or switch on a rule that sends or destroys mail without approval", _ASKS, _REFUSED)
    PAST_MAIL = ("apply a rule that destroys mail to past mail", _ASKS, _REFUSED)
    RESTORE = ("put archived mail back into a mailbox", _ASKS, _REFUSED)
    FULL_ACCESS = ("ask Google for full access, the right to delete mail for ever", _ASKS, _REFUSED)
    RAISE_CAP = ("let a backfill job spend more a day than the settings say", _ASKS, _REFUSED)
    RAISE_CEILING = ("raise the ceiling of all model spend a day", _ASKS, _REFUSED)
    ARCHIVER = ("let the archiver remove mail at the source (`postroom archive run`, `[archiver]`)", _HOST, _REFUSED)
    SECRETS = ("export secrets, or back them up (`postroom backup`)", _HOST, _REFUSED)
    CEILINGS = ("change default caps, or whether backfill may run (`[backfill]`)", _ASKS, _REFUSED)
    MODEL = ("change the model, its price, address or key (`[model]`)", _ASKS, _REFUSED)
    NOTIFICATIONS = (
        "change where approvals, alerts and digests go (`[discord]`, `sync.self_email`, `[digest]`)",
        _ASKS,
        _REFUSED,
    )
    ALWAYS_ALLOW = ("change what needs approval (`[safety]`)", _HOST, _REFUSED)

    @property
    def what(self) -> str:
        return self.value[0]


class ProofNeeded(NotAllowed):
    """A change that needs the passphrase again."""

    def __init__(self, change: SensitiveChange) -> None:
        super().__init__(
            f"To {change.what}, give your passphrase again: send it to POST /api/settings/proof, then repeat this."
        )
        self.change = change


def require_proof(caller: Caller, change: SensitiveChange) -> None:
    """Refuses unless a person makes this change who gave the passphrase a short time ago."""
    if caller.token_id is not None:
        raise NotAllowed(
            f"A token cannot {change.what}: this needs the passphrase. Use the dashboard, or `postroom` on the command "
            "line."
        )
    if not caller.is_proved:
        raise ProofNeeded(change)


def sensitive_table() -> Iterator[str]:
    """For docs/security.md, which a test compares with this."""
    yield "| change | dashboard | token |"
    yield "|---|---|---|"
    for change in SensitiveChange:
        yield f"| {' | '.join(change.value)} |"
