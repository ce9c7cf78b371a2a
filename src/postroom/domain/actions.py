"""What can be done with a message: thirteen actions, what each needs to know, and how far its consequences reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from postroom.domain.errors import BadInput

MOST_RECIPIENTS = 20
LONGEST_BODY = 50_000
_LONGEST_SNOOZE = timedelta(days=3_660)


class ActionType(StrEnum):
    ARCHIVE = "archive"
    APPLY_LABEL = "apply_label"
    REMOVE_LABEL = "remove_label"
    MARK_READ = "mark_read"
    MARK_UNREAD = "mark_unread"
    STAR = "star"
    UNSTAR = "unstar"
    TRASH = "trash"
    RESTORE = "restore"
    DELETE = "delete"
    SNOOZE = "snooze"
    FORWARD = "forward"
    AUTO_REPLY = "auto_reply"


class Consequence(IntEnum):
    """How much is at stake when it was wrong; safety asks for more certainty the further it goes."""

    MARKS = 1
    """Nothing is hidden: a label, a star."""
    HIDES = 2
    """The message leaves the inbox or no longer looks new."""
    DESTROYS = 3
    """The message is on its way out of the mailbox."""
    SPEAKS = 4
    """Someone else gets mail in the owner's name."""


CONSEQUENCES: Mapping[ActionType, Consequence] = MappingProxyType(
    {
        ActionType.APPLY_LABEL: Consequence.MARKS,
        ActionType.STAR: Consequence.MARKS,
        ActionType.MARK_UNREAD: Consequence.MARKS,
        ActionType.RESTORE: Consequence.MARKS,
        ActionType.REMOVE_LABEL: Consequence.HIDES,
        ActionType.UNSTAR: Consequence.HIDES,
        ActionType.MARK_READ: Consequence.HIDES,
        ActionType.ARCHIVE: Consequence.HIDES,
        ActionType.SNOOZE: Consequence.HIDES,
        ActionType.TRASH: Consequence.DESTROYS,
        ActionType.DELETE: Consequence.DESTROYS,
        ActionType.FORWARD: Consequence.SPEAKS,
        ActionType.AUTO_REPLY: Consequence.SPEAKS,
    }
)


class ActionStatus(StrEnum):
    QUEUED = "queued"
    APPROVED_PENDING = "approved_pending"
    """Waits for a person's approval."""
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    """No answer came in time."""
    CANCELED = "canceled"


class Origin(StrEnum):
    """Who wanted the action."""

    RULE = "rule"
    MODEL = "model"
    PERSON = "person"
    UNDO = "undo"


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]
_Body = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_BODY)]
_Address = Annotated[str, StringConstraints(strip_whitespace=True, pattern=r"^[^@\s<>,;]{1,250}@[^@\s<>,;]{1,250}$")]


class Parameters(BaseModel):
    """Of an action that needs to know nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LabelParameters(Parameters):
    label: _Text = Field(description="the label's name, or its id")


class SnoozeParameters(Parameters):
    until: AwareDatetime | None = Field(None, description="when to come back, with a time zone")
    amount: int | None = Field(None, ge=1, le=1_000_000, description="how long to stay away, in `units`")
    units: Literal["minutes", "hours", "days"] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> SnoozeParameters:
        relative = self.amount is not None and self.units is not None
        if (self.until is None) == (not relative) or (self.amount is None) != (self.units is None):
            raise ValueError("give either `until`, or `amount` with `units`")
        if relative and self.wait > _LONGEST_SNOOZE:
            raise ValueError("ten years are the longest")
        return self

    @property
    def wait(self) -> timedelta:
        return timedelta(**{self.units: self.amount}) if self.units and self.amount else timedelta(0)

    def wakes_at(self, now: datetime) -> datetime:
        return self.until if self.until is not None else now + self.wait


class ForwardParameters(Parameters):
    to: Annotated[list[_Address], Field(min_length=1, max_length=MOST_RECIPIENTS)]
    note: _Body | None = Field(None, description="stands above the forwarded message")


class ReplyParameters(Parameters):
    body: _Body = Field(description="the text of the reply")


_PARAMETERS: Mapping[ActionType, type[Parameters]] = MappingProxyType(
    {
        ActionType.APPLY_LABEL: LabelParameters,
        ActionType.REMOVE_LABEL: LabelParameters,
        ActionType.SNOOZE: SnoozeParameters,
        ActionType.FORWARD: ForwardParameters,
        ActionType.AUTO_REPLY: ReplyParameters,
    }
)


def parameters_of(action: ActionType) -> type[Parameters]:
    return _PARAMETERS.get(action, Parameters)


@dataclass(frozen=True, slots=True)
class WantedAction:
    """An action with its parameters, checked."""

    type: ActionType
    parameters: Parameters

    def to_json(self) -> dict[str, Any]:
        return {"type": str(self.type), **self.parameters_json()}

    def parameters_json(self) -> dict[str, Any]:
        return self.parameters.model_dump(mode="json", exclude_none=True)


def parse_action(name: object, parameters: object = None, where: str = "action") -> WantedAction:
    """An action from names and JSON, or BadInput that names the field."""
    try:
        action = ActionType(str(name))
    except ValueError:
        known = ", ".join(ActionType)
        raise BadInput(f"{where}.type", f"{str(name)[:60]!r} is no action; there are {known}") from None
    try:
        return WantedAction(action, parameters_of(action).model_validate({} if parameters is None else parameters))
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        place = ".".join([where, *map(str, problem["loc"])])
        raise BadInput(place, f"{problem['msg'].removeprefix('Value error, ')} ({action})") from None


_ADDED: Mapping[str, ActionType] = {
    "trash": ActionType.TRASH,
    "spam": ActionType.TRASH,  # Gmail deletes both after thirty days
    "starred": ActionType.STAR,
    "unread": ActionType.MARK_UNREAD,
}
_TAKEN_AWAY: Mapping[str, ActionType] = {
    "inbox": ActionType.ARCHIVE,
    "unread": ActionType.MARK_READ,
    "starred": ActionType.UNSTAR,
    "trash": ActionType.RESTORE,
}


def meaning(wanted: WantedAction) -> ActionType:
    """What the action comes to. Gmail's own labels are its states, so that a label can archive or throw away."""
    if not isinstance(wanted.parameters, LabelParameters):
        return wanted.type
    states = _ADDED if wanted.type is ActionType.APPLY_LABEL else _TAKEN_AWAY
    return states.get(wanted.parameters.label.strip().casefold(), wanted.type)


def consequence_of(wanted: WantedAction) -> Consequence:
    """How far the action reaches, by its name and by what it comes to."""
    reach = max(CONSEQUENCES[wanted.type], CONSEQUENCES[meaning(wanted)])
    return max(reach, Consequence.HIDES) if _leaves_first_tab(wanted) else reach


def _leaves_first_tab(wanted: WantedAction) -> bool:
    """Gmail shows mail of a category in a tab of its own, beside the one that opens."""
    if wanted.type is not ActionType.APPLY_LABEL or not isinstance(wanted.parameters, LabelParameters):
        return False
    label = wanted.parameters.label.strip().casefold()
    return label.startswith("category_") and label != "category_personal"


@dataclass(frozen=True, slots=True)
class Proposal:
    """An action that was decided on. With reasons it waits for a person; without any it is done."""

    wanted: WantedAction
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ActionOrder:
    """What one decision wants done with one message."""

    account_id: str
    message_id: str
    gmail_id: str
    thread_id: str | None
    decision_id: str
    origin: Origin
    wanted_by: str
    """For people: `rule Receipts`, `model gpt-5-mini`."""
    proposals: tuple[Proposal, ...]
    rule_id: str | None = None
    rule_name: str | None = None
