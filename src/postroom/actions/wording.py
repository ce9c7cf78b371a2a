"""Actions described for people: what one does, its state, and how to undo it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from postroom.actions.lifecycle import Action
from postroom.domain.actions import (
    ActionStatus,
    ActionType,
    ForwardParameters,
    LabelParameters,
    Origin,
    Parameters,
    ReplyParameters,
    SnoozeParameters,
    WantedAction,
)
from postroom.domain.errors import BadInput

_PLAIN: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "archive the message",
    ActionType.MARK_READ: "mark the message as read",
    ActionType.MARK_UNREAD: "mark the message as unread",
    ActionType.STAR: "star the message",
    ActionType.UNSTAR: "take the star away",
    ActionType.TRASH: "move the message to the trash",
    ActionType.RESTORE: "take the message out of the trash",
    ActionType.DELETE: "delete the message for ever",
}


def deed(action: Action) -> str:
    """One line, without the text of mail that would be sent."""
    try:
        return wish(action.wanted)
    except BadInput as error:
        return f"{action.type}, but its parameters cannot be read ({error.message})"


def wish(wanted: WantedAction) -> str:
    """The same for an action that is not ordered yet, such as a rule's."""
    return _PLAIN.get(wanted.type) or _WITH_PARAMETERS[wanted.type](wanted.parameters)


def title(action: Action) -> str:
    """The same in a list that also holds undos."""
    return f"undo: {deed(action)}" if action.origin is Origin.UNDO else deed(action)


def standing(action: Action) -> str:
    """How it stands, with the reason where there is one."""
    match action.status:
        case ActionStatus.APPROVED_PENDING:
            return f"waits for approval: {'; '.join(action.reasons)}"
        case ActionStatus.FAILED | ActionStatus.CANCELED:
            return f"{action.status}: {action.error}" if action.error else str(action.status)
        case ActionStatus.COMPLETED if (action.undo_hint or {}).get("nothing_changed"):
            return "completed; nothing had to be changed"
        case _:
            return str(action.status).replace("_", " ")


def way_back(action: Action, obstacle: str | None) -> str:
    """How to take it back, or why that cannot be."""
    if action.status is ActionStatus.FAILED:
        return f"It can be tried again with `postroom actions retry {action.id}`."
    if action.status in (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING):
        return f"It can be called off with `postroom actions cancel {action.id}`."
    if obstacle is None:
        return f"It can be undone with `postroom actions undo {action.id}`."
    return f"It cannot be undone: {obstacle}."


def outgoing_text(action: Action) -> str | None:
    """The text that would be sent in the owner's name, if any."""
    try:
        parameters = action.wanted.parameters
    except BadInput:
        return None
    match parameters:
        case ReplyParameters():
            return parameters.body
        case ForwardParameters():
            return parameters.note
        case _:
            return None


def _label(parameters: Parameters) -> str:
    return parameters.label if isinstance(parameters, LabelParameters) else "?"


def _snooze(parameters: Parameters) -> str:
    if not isinstance(parameters, SnoozeParameters):
        return "snooze the message"
    if parameters.until is not None:
        return f"snooze the message until {parameters.until:%Y-%m-%d %H:%M %Z}"
    return f"snooze the message for {parameters.amount} {parameters.units}"


def _forward(parameters: Parameters) -> str:
    to = ", ".join(parameters.to) if isinstance(parameters, ForwardParameters) else "?"
    return f"forward the message to {to}"


def _reply(parameters: Parameters) -> str:
    length = len(parameters.body) if isinstance(parameters, ReplyParameters) else 0
    return f"answer the sender with a text of {length} characters"


_WITH_PARAMETERS: Mapping[ActionType, Callable[[Parameters], str]] = {
    ActionType.APPLY_LABEL: lambda parameters: f"give the message the label {_label(parameters)}",
    ActionType.REMOVE_LABEL: lambda parameters: f"take the label {_label(parameters)} away",
    ActionType.SNOOZE: _snooze,
    ActionType.FORWARD: _forward,
    ActionType.AUTO_REPLY: _reply,
}
