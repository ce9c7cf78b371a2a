"""Actions in words for people. Pure."""

from __future__ import annotations

from postroom.actions.store import Action
from postroom.domain.actions import ActionStatus as S
from postroom.domain.actions import ActionType as A
from postroom.domain.actions import Origin

_PLAIN = {
    A.ARCHIVE: "archive",
    A.MARK_READ: "mark as read",
    A.MARK_UNREAD: "mark as unread",
    A.STAR: "star",
    A.UNSTAR: "take the star away",
    A.TRASH: "move to the trash",
    A.RESTORE: "take out of the trash",
    A.DELETE: "delete for ever",
    A.AUTO_REPLY: "reply",
}


def deed(action: Action) -> str:
    """What is to be done, in a few words."""
    given = action.parameters
    match action.type:
        case A.APPLY_LABEL:
            words = f"add the label {given.get('label')}"
        case A.REMOVE_LABEL:
            words = f"take the label {given.get('label')} away"
        case A.SNOOZE:
            until, amount, units = given.get("until"), given.get("amount"), given.get("units")
            words = f"snooze until {until}" if until else f"snooze for {amount} {units}"
        case A.FORWARD:
            words = f"forward to {', '.join(map(str, given.get('to') or ()))}"
        case _:
            words = _PLAIN[action.type]
    return f"undo: {words}" if action.origin is Origin.UNDO else words


def standing(action: Action) -> str:
    """How it stands, with the reason where there is one."""
    match action.status:
        case S.APPROVED_PENDING:
            return f"waits for approval: {'; '.join(action.reasons)}"
        case S.FAILED | S.CANCELED:
            return f"{action.status}: {action.error}" if action.error else str(action.status)
        case S.COMPLETED if (action.undo_hint or {}).get("nothing_changed"):
            return "completed; nothing had to be changed"
        case _:
            return str(action.status).replace("_", " ")


def way_back(action: Action, obstacle: str | None) -> str:
    """How to take it back, or why that cannot be."""
    if action.status is S.FAILED:
        return f"It can be tried again with `postroom actions retry {action.id}`."
    if action.status in (S.QUEUED, S.APPROVED_PENDING):
        return f"It can be called off with `postroom actions cancel {action.id}`."
    if obstacle is None:
        return f"It can be undone with `postroom actions undo {action.id}`."
    return f"It cannot be undone: {obstacle}."
