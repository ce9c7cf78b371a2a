"""Actions described for people: what one does, its state, and how to undo it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from postroom.actions.lifecycle import Action
from postroom.domain.actions import (
    ActionStatus,
    ActionType,
    ForwardParameters,
    LabelParameters,
    LetterParameters,
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
    ActionType.UNSTAR: "remove the star",
    ActionType.TRASH: "move the message to the trash",
    ActionType.RESTORE: "restore the message from the trash",
    ActionType.DELETE: "delete the message permanently",
    ActionType.UNSUBSCRIBE: "unsubscribe from the list that sent the message",
}


_LONGEST_HOST = 60


def deed(action: Action) -> str:
    """One line, without the text of mail that would be sent."""
    if action.host:
        return f"{_PLAIN[action.type]} (contacts {_end_of(action.host)})"
    try:
        return wish(action.wanted)
    except BadInput as error:
        return f"{action.type}, but its parameters cannot be read ({error.message})"


def wish(wanted: WantedAction) -> str:
    """The same for an action that is not ordered yet, such as a rule's."""
    place = _PLACES.get((wanted.type, _label(wanted.parameters).lower()))
    return _PLAIN.get(wanted.type) or place or _WITH_PARAMETERS[wanted.type](wanted.parameters)


def title(action: Action) -> str:
    """The same in a list that also holds undos."""
    return f"undo: {deed(action)}" if action.origin is Origin.UNDO else deed(action)


def standing(action: Action) -> str:
    """How it stands, with the reason where there is one."""
    match action.status:
        case ActionStatus.APPROVED_PENDING:
            return f"needs approval: {'; '.join(action.reasons)}"
        case ActionStatus.FAILED | ActionStatus.CANCELED | ActionStatus.REFUSED | ActionStatus.DISMISSED:
            return f"{action.status}: {action.error}" if action.error else str(action.status)
        case ActionStatus.COMPLETED if (action.undo_hint or {}).get("nothing_changed"):
            return "completed; nothing had to be changed"
        case _:
            return str(action.status).replace("_", " ")


def way_back(action: Action, obstacle: str | None) -> str:
    """How to take it back, or why that cannot be."""
    if action.status is ActionStatus.FAILED:
        return f"It can be tried again with `postroom actions retry {action.id}`, or left with `actions dismiss`."
    if action.status is ActionStatus.DISMISSED:
        return f"It can be tried again with `postroom actions retry {action.id}`."
    if action.status is ActionStatus.REFUSED:
        return "Nothing was sent, and nothing has to be done. To answer all the same, use `postroom actions do reply`."
    if action.status in (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING):
        return f"It can be called off with `postroom actions cancel {action.id}`."
    if obstacle is None:
        return f"It can be undone with `postroom actions undo {action.id}`."
    return f"It cannot be undone: {obstacle}."


@dataclass(frozen=True, slots=True)
class LetterPreview:
    """The mail that would be sent in the owner's name, as far as it is known before it is written."""

    to: tuple[str, ...]
    cc: tuple[str, ...]
    subject: str
    text: str | None
    """What the owner says; a forward has the original below it."""
    html: str | None
    attachments: tuple[str, ...]
    """Names, with sizes."""
    carries_original: bool


def letter_of(
    action: Action, answers_go_to: Sequence[str], subject: str | None, its_files: Sequence[str] = ()
) -> LetterPreview | None:
    """What a reply or forward would be; None for other actions. `subject` and `its_files` are the original's."""
    try:
        parameters = action.wanted.parameters
    except BadInput:
        return None
    if not isinstance(parameters, LetterParameters):
        return None
    is_forward = isinstance(parameters, ForwardParameters)
    mark = "Fwd:" if is_forward else "Re:"
    own = tuple(f"{each.filename} ({_size(each.length)})" for each in parameters.attachments)
    return LetterPreview(
        to=tuple(parameters.to or answers_go_to),
        cc=tuple(parameters.cc),
        subject=parameters.subject or f"{mark} {subject or ''}".strip(),
        text=parameters.text,
        html=parameters.body_html,
        attachments=(*its_files, *own) if is_forward else own,
        carries_original=is_forward,
    )


def _end_of(host: str) -> str:
    """A long name from its end, which says whose it is: `bank.example.evil.example` is not the bank's."""
    return host if len(host) <= _LONGEST_HOST else f"\N{HORIZONTAL ELLIPSIS}{host[-_LONGEST_HOST:]}"


def _size(size: int) -> str:
    return f"{size / (1 << 20):.1f} MB" if size >= 1 << 20 else f"{max(size // 1024, 1)} KB"


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
    if not isinstance(parameters, ReplyParameters):
        return "reply to the sender"
    whom = ", ".join(parameters.to) or "the sender"
    return f"reply to {whom} ({len(parameters.text or parameters.body_html or ''):,} characters)"


_PLACES: Mapping[tuple[ActionType, str], str] = {
    (ActionType.APPLY_LABEL, "inbox"): "move the message to the inbox",
    (ActionType.REMOVE_LABEL, "inbox"): "remove the message from the inbox",
    (ActionType.APPLY_LABEL, "spam"): "move the message to spam",
    (ActionType.REMOVE_LABEL, "spam"): "move the message out of spam",
}
"""Labels of the mailbox that people know as places."""


_WITH_PARAMETERS: Mapping[ActionType, Callable[[Parameters], str]] = {
    ActionType.APPLY_LABEL: lambda parameters: f"label “{_label(parameters)}”",
    ActionType.REMOVE_LABEL: lambda parameters: f"remove label “{_label(parameters)}”",
    ActionType.SNOOZE: _snooze,
    ActionType.FORWARD: _forward,
    ActionType.AUTO_REPLY: _reply,
}
