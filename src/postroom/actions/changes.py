"""What an action changes about a message's labels, and what takes exactly that back. Pure.

An action changes only what differs: archiving mail that is not in the inbox changes nothing, and then there is nothing
to undo. So that an undo restores only what its action changed, the hint is made of the labels before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.domain.actions import ActionType as A
from postroom.domain.errors import Fatal

INBOX, UNREAD, STARRED, TRASH, SPAM = "INBOX", "UNREAD", "STARRED", "TRASH", "SPAM"
_PLACES = frozenset({INBOX, SPAM, TRASH})
"""Labels that Gmail itself gives and takes when mail goes to the trash and back."""
_NONE: frozenset[str] = frozenset()

Labels = frozenset[str]
Json = dict[str, Any]


class Call(StrEnum):
    MODIFY = "modify"
    TRASH = "trash"
    UNTRASH = "untrash"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Change:
    """Calls of Gmail that make one change, in their order; none where nothing differs."""

    calls: tuple[Call, ...] = ()
    add: Labels = _NONE
    remove: Labels = _NONE

    @property
    def is_nothing(self) -> bool:
        return not self.calls


NOTHING = Change()


def change_for(action: A, before: Labels, label_id: str | None = None) -> Change:
    """What there is to do about a message that has these labels."""
    match action:
        case A.TRASH:
            return NOTHING if TRASH in before else Change((Call.TRASH,))
        case A.RESTORE:
            return Change((Call.UNTRASH,)) if TRASH in before else NOTHING
        case A.DELETE:
            return Change((Call.DELETE,))
        case _:
            add, remove = _wanted(action, label_id)
            return modification(add - before, remove & before)


def modification(add: Labels, remove: Labels) -> Change:
    return Change((Call.MODIFY,), add, remove) if add or remove else NOTHING


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


def hint_for(action: A, before: Labels, after: Labels, change: Change, label_id: str | None = None) -> Json:
    """How to take back what this action changed."""
    if action is A.DELETE:
        return irreversible(action)
    if change.is_nothing:
        return _hint(action, NO_INVERSE, {}) | {"nothing_changed": True}
    inverse = _INVERSE[action]
    match action:
        case A.TRASH:
            parameters: Json = {"add_labels": sorted((before - after) & _PLACES)}
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


def snooze_hint(change: Change, until: str, label: tuple[str, str], job_id: str) -> Json:
    label_id, label_name = label
    parameters = {
        "cancel_unsnooze_job_id": job_id,
        "add_labels": sorted(change.remove),
        "remove_labels": sorted(change.add),
    }
    told = {"snooze_until": until, "snooze_label": label_name, "snooze_label_id": label_id, "unsnooze_job_id": job_id}
    return _hint(A.SNOOZE, UNSNOOZE, parameters) | told


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
    """What a hint asks for, before anybody has looked at the message."""

    place: Call | None
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
            return _with_labels(Call.UNTRASH if action is A.RESTORE else Call.TRASH, parameters)
        label = parameters.get("label")
        add, remove = _wanted(action, None if label is None else str(label))
        return Inverse(None, add, remove)
    except (KeyError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise Fatal(f"How to undo it cannot be read from its record: {error!r}") from None


def _with_labels(place: Call | None, parameters: Mapping[str, Any], job_id: str | None = None) -> Inverse:
    add, remove = (frozenset(map(str, parameters.get(name) or ())) for name in ("add_labels", "remove_labels"))
    return Inverse(place, add, remove, job_id)


def undoing(inverse: Inverse, before: Labels, now: Labels) -> Change:
    """What to do about a message that has these labels now and had those before the action.

    What somebody has taken back already is left alone, and so is mail that went to the trash since: it stays there.
    """
    if inverse.place is Call.UNTRASH:
        return Change((Call.UNTRASH, Call.MODIFY), inverse.add, inverse.remove) if TRASH in now else NOTHING
    if inverse.place is Call.TRASH:
        return Change((Call.TRASH, Call.MODIFY), inverse.add, inverse.remove) if TRASH not in now else NOTHING
    thrown_away = TRASH in now and TRASH not in before
    return modification(inverse.add - now - ({INBOX} if thrown_away else _NONE), inverse.remove & now)
