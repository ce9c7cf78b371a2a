"""OAuth scopes: the least one that each method needs, those that Postroom requests, and what to do when one is
missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from postroom.mailboxes.gmail.quota import GmailMethod

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
