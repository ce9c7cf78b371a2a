"""Gmail's methods: the quota units that each costs, the allowance a minute under both sets of limits in force, and the
least OAuth scope that each needs; which scopes Postroom requests, and what to do when one is missing.

Cloud projects that used the API before May 2026 keep the `legacy` figures; newer ones get `2026`, where reading a
message costs four times as much from a smaller allowance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

GOOGLE = "https://gmail.googleapis.com"
MINUTE_S = 60.0
SHORTEST_EPOCH = 100_000_000
"""March 1973. A shorter number in a query could be taken for a date, so none is ever sent."""


class GmailMethod(StrEnum):
    """A method of the Gmail API, by its name in the discovery document (without `gmail.users.`)."""

    GET_PROFILE = "getProfile"
    WATCH = "watch"
    STOP = "stop"
    MESSAGES_LIST = "messages.list"
    MESSAGES_GET = "messages.get"
    MESSAGES_INSERT = "messages.insert"
    MESSAGES_IMPORT = "messages.import"
    MESSAGES_SEND = "messages.send"
    MESSAGES_MODIFY = "messages.modify"
    MESSAGES_BATCH_MODIFY = "messages.batchModify"
    MESSAGES_BATCH_DELETE = "messages.batchDelete"
    MESSAGES_TRASH = "messages.trash"
    MESSAGES_UNTRASH = "messages.untrash"
    MESSAGES_DELETE = "messages.delete"
    ATTACHMENTS_GET = "messages.attachments.get"
    THREADS_LIST = "threads.list"
    THREADS_GET = "threads.get"
    LABELS_LIST = "labels.list"
    LABELS_GET = "labels.get"
    LABELS_CREATE = "labels.create"
    LABELS_UPDATE = "labels.update"
    LABELS_PATCH = "labels.patch"
    LABELS_DELETE = "labels.delete"
    HISTORY_LIST = "history.list"
    DRAFTS_LIST = "drafts.list"
    DRAFTS_GET = "drafts.get"
    DRAFTS_CREATE = "drafts.create"
    DRAFTS_UPDATE = "drafts.update"
    DRAFTS_SEND = "drafts.send"
    DRAFTS_DELETE = "drafts.delete"


class ProfileName(StrEnum):
    LEGACY = "legacy"
    MAY_2026 = "2026"


@dataclass(frozen=True)
class QuotaProfile:
    """Units an account may use in any minute, and what each method takes of them."""

    name: ProfileName
    units_per_minute: int
    costs: Mapping[GmailMethod, int]

    def cost(self, method: GmailMethod) -> int:
        return self.costs[method]

    def reading_units(self, listed: int, fetched: int) -> int:
        """For listing so many messages and fetching so many, be it their headers or all of them."""
        pages = -(-listed // 500)
        return pages * self.cost(GmailMethod.MESSAGES_LIST) + fetched * self.cost(GmailMethod.MESSAGES_GET)


_LEGACY_COSTS: dict[GmailMethod, int] = {
    GmailMethod.GET_PROFILE: 1,
    GmailMethod.WATCH: 100,
    GmailMethod.STOP: 50,
    GmailMethod.MESSAGES_LIST: 5,
    GmailMethod.MESSAGES_GET: 5,
    GmailMethod.MESSAGES_INSERT: 25,
    GmailMethod.MESSAGES_IMPORT: 25,
    GmailMethod.MESSAGES_SEND: 100,
    GmailMethod.MESSAGES_MODIFY: 5,
    GmailMethod.MESSAGES_BATCH_MODIFY: 50,
    GmailMethod.MESSAGES_BATCH_DELETE: 50,
    GmailMethod.MESSAGES_TRASH: 5,
    GmailMethod.MESSAGES_UNTRASH: 5,
    GmailMethod.MESSAGES_DELETE: 10,
    GmailMethod.ATTACHMENTS_GET: 5,
    GmailMethod.THREADS_LIST: 10,
    GmailMethod.THREADS_GET: 10,
    GmailMethod.LABELS_LIST: 1,
    GmailMethod.LABELS_GET: 1,
    GmailMethod.LABELS_CREATE: 5,
    GmailMethod.LABELS_UPDATE: 5,
    GmailMethod.LABELS_PATCH: 5,
    GmailMethod.LABELS_DELETE: 5,
    GmailMethod.HISTORY_LIST: 2,
    GmailMethod.DRAFTS_LIST: 5,
    GmailMethod.DRAFTS_GET: 5,
    GmailMethod.DRAFTS_CREATE: 10,
    GmailMethod.DRAFTS_UPDATE: 15,
    GmailMethod.DRAFTS_SEND: 100,
    GmailMethod.DRAFTS_DELETE: 10,
}
_CHANGED_IN_MAY_2026: dict[GmailMethod, int] = {
    GmailMethod.MESSAGES_GET: 20,
    GmailMethod.MESSAGES_TRASH: 20,
    GmailMethod.ATTACHMENTS_GET: 20,
    GmailMethod.THREADS_GET: 40,
}

PROFILES: Mapping[ProfileName, QuotaProfile] = MappingProxyType(
    {
        ProfileName.LEGACY: QuotaProfile(ProfileName.LEGACY, 15_000, MappingProxyType(_LEGACY_COSTS)),
        ProfileName.MAY_2026: QuotaProfile(
            ProfileName.MAY_2026, 6_000, MappingProxyType(_LEGACY_COSTS | _CHANGED_IN_MAY_2026)
        ),
    }
)


_PREFIX = "https://www.googleapis.com/auth/"
READ = _PREFIX + "gmail.readonly"
CHANGE = _PREFIX + "gmail.modify"
SEND = _PREFIX + "gmail.send"
COMPOSE = _PREFIX + "gmail.compose"
INSERT = _PREFIX + "gmail.insert"
LABELS = _PREFIX + "gmail.labels"
EVERYTHING = "https://mail.google.com/"

_MORE_THAN_READING: Mapping[GmailMethod, str] = MappingProxyType(
    {
        GmailMethod.MESSAGES_INSERT: INSERT,
        GmailMethod.MESSAGES_IMPORT: INSERT,
        GmailMethod.MESSAGES_SEND: SEND,
        GmailMethod.MESSAGES_MODIFY: CHANGE,
        GmailMethod.MESSAGES_BATCH_MODIFY: CHANGE,
        GmailMethod.MESSAGES_TRASH: CHANGE,
        GmailMethod.MESSAGES_UNTRASH: CHANGE,
        GmailMethod.MESSAGES_DELETE: EVERYTHING,
        GmailMethod.MESSAGES_BATCH_DELETE: EVERYTHING,
        GmailMethod.LABELS_CREATE: LABELS,
        GmailMethod.LABELS_UPDATE: LABELS,
        GmailMethod.LABELS_PATCH: LABELS,
        GmailMethod.LABELS_DELETE: LABELS,
        GmailMethod.DRAFTS_CREATE: COMPOSE,
        GmailMethod.DRAFTS_UPDATE: COMPOSE,
        GmailMethod.DRAFTS_SEND: COMPOSE,
        GmailMethod.DRAFTS_DELETE: COMPOSE,
    }
)


def least_scope(method: GmailMethod) -> str:
    return _MORE_THAN_READING.get(method, READ)


def scopes_to_request(*, full_access: bool) -> frozenset[str]:
    """Reading, labels, drafts, sending and the trash need `gmail.modify`; only deleting for good needs full access."""
    return frozenset({EVERYTHING if full_access else CHANGE})


class AskedScope(NamedTuple):
    scope: str
    google_says: str
    """What Google's page calls it."""
    purposes: tuple[str, ...]
    """What Postroom uses it for."""


ASKED_SCOPES = (
    AskedScope(
        CHANGE,
        "Read, compose and send emails from your Gmail account",
        (
            "Reading: archive every message, follow new mail, search.",
            "Labels: archive, star, mark, snooze and label mail, as you or your rules say.",
            "The trash: move mail there, and back.",
            "Drafts and sending: replies and forwards that you wrote or approved.",
        ),
    ),
    AskedScope(
        EVERYTHING,
        "Read, compose, send and permanently delete all your email from Gmail",
        ("The same, and deleting mail for ever. Asked for only if you tick “Allow permanent deletion”.",),
    ),
)
"""What Google is asked for, and why; in full access the second takes the place of the first."""


def login_command(email: str, scopes: frozenset[str] = frozenset()) -> str:
    """What logs in again to this mailbox, with as much access as before."""
    flag = " --full-access" if EVERYTHING in scopes else ""
    return f"`postroom account add gmail --email {email} --client-secrets FILE{flag}`"


def missing_scope(granted: frozenset[str], email: str, *, full_access: bool = False) -> str | None:
    """What is missing and how to get it, or None if these grants are enough."""
    if EVERYTHING in granted or (CHANGE in granted and not full_access):
        return None
    if full_access:
        return (
            f"Deleting mail for ever needs full access ({EVERYTHING}), which {email} has not granted. "
            f"Log in again with {login_command(email, frozenset({EVERYTHING}))}."
        )
    return (
        f"{email} has not granted gmail.modify, so mail cannot be read, labelled or sent. "
        f"Log in again with {login_command(email)} and leave every box on Google's page ticked."
    )
