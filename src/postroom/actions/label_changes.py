"""What an action changes about a message's labels, what takes exactly that back, and applying it in the mailbox.

An action changes only what differs: archiving mail that is not in the inbox changes nothing, and then there is
nothing to undo. The first half is pure; `apply` and `LabelFinder` call the mailbox.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from postroom.accounts.account import Account
from postroom.accounts.mailbox_state import find_label, remember_labels
from postroom.db import Database
from postroom.domain.actions import ActionType as A
from postroom.domain.clock import Clock
from postroom.domain.errors import Fatal
from postroom.mailboxes.protocol import Detail, Mailbox, MailboxChange, MailboxLabel, MessageId, Move
from postroom.queue.job import describe

INBOX, UNREAD, STARRED, TRASH, SPAM = "INBOX", "UNREAD", "STARRED", "TRASH", "SPAM"
_PLACES = frozenset({INBOX, SPAM, TRASH})
"""Labels that the mailbox itself gives and takes when mail goes to the trash and back."""
_FLAGS = frozenset({UNREAD, STARRED})
_NONE: frozenset[str] = frozenset()

Labels = frozenset[str]
Json = dict[str, Any]


class LabelCall(StrEnum):
    MODIFY = "modify"
    TRASH = "trash"
    UNTRASH = "untrash"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class LabelEdit:
    """Calls of the mailbox that make one change, in their order; none where nothing differs."""

    calls: tuple[LabelCall, ...] = ()
    add: Labels = _NONE
    remove: Labels = _NONE

    @property
    def is_nothing(self) -> bool:
        return not self.calls


NOTHING = LabelEdit()


def change_for(action: A, before: Labels, label_id: str | None = None) -> LabelEdit:
    """What there is to do about a message that has these labels."""
    match action:
        case A.TRASH:
            return NOTHING if TRASH in before else LabelEdit((LabelCall.TRASH,))
        case A.RESTORE:
            return LabelEdit((LabelCall.UNTRASH,)) if TRASH in before else NOTHING
        case A.DELETE:
            return LabelEdit((LabelCall.DELETE,))
        case _:
            add, remove = _wanted(action, label_id)
            return modification(add - before, remove & before)


def modification(add: Labels, remove: Labels) -> LabelEdit:
    return LabelEdit((LabelCall.MODIFY,), add, remove) if add or remove else NOTHING


def _wanted(action: A, label_id: str | None) -> tuple[Labels, Labels]:
    named = _NONE if label_id is None else frozenset({label_id})
    match action:
        case A.ARCHIVE:
            return _NONE, frozenset({INBOX})
        case A.APPLY_LABEL:
            return named, _NONE
        case A.REMOVE_LABEL:
            return _NONE, named
        case A.MARK_READ:
            return _NONE, frozenset({UNREAD})
        case A.MARK_UNREAD:
            return frozenset({UNREAD}), _NONE
        case A.STAR:
            return frozenset({STARRED}), _NONE
        case A.UNSTAR:
            return _NONE, frozenset({STARRED})
        case A.SNOOZE:
            return named, frozenset({INBOX})
        case _:
            raise AssertionError(f"{action} is no change of labels")


_INVERSE: Mapping[A, A] = {
    A.ARCHIVE: A.APPLY_LABEL,
    A.APPLY_LABEL: A.REMOVE_LABEL,
    A.REMOVE_LABEL: A.APPLY_LABEL,
    A.MARK_READ: A.MARK_UNREAD,
    A.MARK_UNREAD: A.MARK_READ,
    A.STAR: A.UNSTAR,
    A.UNSTAR: A.STAR,
    A.TRASH: A.RESTORE,
    A.RESTORE: A.TRASH,
}
NO_INVERSE = "none"
UNSNOOZE = "unsnooze"


def hint_for(action: A, before: Labels, after: Labels, change: LabelEdit, label_id: str | None = None) -> Json:
    """How to take back what this action changed."""
    if action is A.DELETE:
        return irreversible(action)
    if change.is_nothing:
        return _hint(action, NO_INVERSE, {}) | {"nothing_changed": True}
    inverse = _INVERSE[action]
    match action:
        case A.TRASH:
            # Where labels are folders, all of them go with it; that it was read meanwhile is no part of this.
            parameters: Json = {"add_labels": sorted(before - after - _FLAGS)}
        case A.RESTORE:
            # Going back to the trash takes the inbox away, which it may have had even there.
            parameters = {"add_labels": sorted(before & {INBOX}), "remove_labels": sorted((after - before) & _PLACES)}
        case A.ARCHIVE:
            parameters = {"label": INBOX}
        case A.APPLY_LABEL | A.REMOVE_LABEL:
            parameters = {"label": label_id}
        case _:
            parameters = {}
    return _hint(action, inverse, parameters)


def snooze_hint(change: LabelEdit, until: str, label: tuple[str, str], job_id: str) -> Json:
    label_id, label_name = label
    parameters = {
        "cancel_unsnooze_job_id": job_id,
        "add_labels": sorted(change.remove),
        "remove_labels": sorted(change.add),
    }
    snooze = {"snooze_until": until, "snooze_label": label_name, "snooze_label_id": label_id, "unsnooze_job_id": job_id}
    return _hint(A.SNOOZE, UNSNOOZE, parameters) | snooze


def irreversible(action: A, **more: str) -> Json:
    return _hint(action, NO_INVERSE, {}, irreversible=True) | more


def _hint(action: A, inverse: str, parameters: Json, *, irreversible: bool = False) -> Json:
    return {
        "action": str(action),
        "inverse_action": str(inverse),
        "inverse_parameters": parameters,
        "irreversible": irreversible,
    }


@dataclass(frozen=True, slots=True)
class Inverse:
    """What a hint asks for, before the message is read."""

    place: LabelCall | None
    """Out of the trash, or back into it."""
    add: Labels
    remove: Labels
    cancel_job: str | None = None


def inverse_of(hint: Mapping[str, Any]) -> Inverse:
    """Read a stored hint; Fatal if it cannot be read."""
    try:
        name, parameters = str(hint["inverse_action"]), hint.get("inverse_parameters") or {}
        if name == UNSNOOZE:
            return _with_labels(None, parameters, str(parameters["cancel_unsnooze_job_id"]))
        action = A(name)
        if action in (A.RESTORE, A.TRASH):
            return _with_labels(LabelCall.UNTRASH if action is A.RESTORE else LabelCall.TRASH, parameters)
        label = parameters.get("label")
        add, remove = _wanted(action, None if label is None else str(label))
        return Inverse(None, add, remove)
    except (KeyError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise Fatal(f"How to undo it cannot be read from its record: {describe(error)}") from None


def _with_labels(place: LabelCall | None, parameters: Mapping[str, Any], job_id: str | None = None) -> Inverse:
    add, remove = (frozenset(map(str, parameters.get(name) or ())) for name in ("add_labels", "remove_labels"))
    return Inverse(place, add, remove, job_id)


def undoing(inverse: Inverse, before: Labels, now: Labels) -> LabelEdit:
    """What to do about a message that has these labels now and had those before the action.

    What was taken back already is left alone, and so is mail that went to the trash since.
    """
    if inverse.place is LabelCall.UNTRASH:
        return (
            LabelEdit((LabelCall.UNTRASH, LabelCall.MODIFY), inverse.add, inverse.remove) if TRASH in now else NOTHING
        )
    if inverse.place is LabelCall.TRASH:
        return (
            LabelEdit((LabelCall.TRASH, LabelCall.MODIFY), inverse.add, inverse.remove) if TRASH not in now else NOTHING
        )
    thrown_away = TRASH in now and TRASH not in before
    return modification(inverse.add - now - ({INBOX} if thrown_away else _NONE), inverse.remove & now)


class ActionMailboxes(Protocol):
    async def of(self, account: Account) -> Mailbox:
        """The account's mailbox, in the lane of what a person waits for; `at` gives another."""


async def labels_now(mailbox: Mailbox, message_id: MessageId) -> Labels:
    return (await mailbox.get(message_id, Detail.FLAGS)).label_ids


async def modified(mailbox: Mailbox, message_id: MessageId, change: MailboxChange) -> Labels:
    """Change one message; its labels afterwards."""
    return (await mailbox.modify([message_id], change))[message_id]


async def apply(mailbox: Mailbox, message_id: MessageId, change: LabelEdit, labels: Labels) -> Labels:
    """Make the change; the labels afterwards. `labels` are those that it has, as far as they are known."""
    for call in change.calls:
        if call is LabelCall.MODIFY:
            add, remove = change.add - labels, change.remove & labels
            if add or remove:
                labels = await modified(mailbox, message_id, MailboxChange(add, remove))
        else:
            labels = await modified(mailbox, message_id, MailboxChange(move=_MOVES[call]))
    return labels


_MOVES = {LabelCall.TRASH: Move.TRASH, LabelCall.UNTRASH: Move.RESTORE, LabelCall.DELETE: Move.DELETE}


class LabelFinder:
    """From a label's name or id to its id: first as the database knows it, then as the mailbox does."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def find(self, mailbox: Mailbox, account_id: str, text: str) -> str | None:
        known = await self._database.read(lambda tx: find_label(tx, account_id, text))
        if known is not None:
            return known.label_id
        listed = await mailbox.labels()
        await self._remember(account_id, listed)
        by_id = {label.id: label.id for label in listed}
        by_name = {label.name.lower(): label.id for label in listed}
        return by_id.get(text) or by_name.get(text.lower())

    async def find_or_create(self, mailbox: Mailbox, account_id: str, text: str) -> str:
        """Create the label if its name is unknown. If another process creates it first, that label is used."""
        found = await self.find(mailbox, account_id, text)
        if found is not None:
            return found
        created = await mailbox.create_label(text)
        await self._remember(account_id, [created])
        return created.id

    async def _remember(self, account_id: str, found: Sequence[MailboxLabel]) -> None:
        await self._database.write(lambda tx: remember_labels(tx, account_id, found, self._clock.now()))
