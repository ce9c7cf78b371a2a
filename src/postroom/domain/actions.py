"""What can be done with a message: fourteen actions, what each needs to know, and how far its consequences reach; and
why a message is left to a person.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from postroom.domain.errors import BadInput
from postroom.domain.validation import problem_text, shaped

MOST_RECIPIENTS = 20
OCTET_STREAM = "application/octet-stream"
MOST_ATTACHMENTS = 20
LONGEST_BODY = 50_000
LARGEST_FILES = 18 << 20
"""Of all attachments together: encoded for the way they fill the 25 MB that Gmail sends."""
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
    UNSUBSCRIBE = "unsubscribe"


class Consequence(IntEnum):
    """How much is at stake when it was wrong; safety asks for more certainty the further it goes."""

    MARKS = 1
    """Nothing is hidden: a label, a star."""
    HIDES = 2
    """The message leaves the inbox or no longer looks new."""
    DESTROYS = 3
    """The message is on its way out of the mailbox."""
    SPEAKS = 4
    """Someone else gets mail, or a request, in the owner's name."""


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
        ActionType.UNSUBSCRIBE: Consequence.SPEAKS,
    }
)

DOING: Mapping[ActionType, str] = MappingProxyType(
    {
        ActionType.ARCHIVE: "archiving",
        ActionType.APPLY_LABEL: "adding a label",
        ActionType.REMOVE_LABEL: "removing a label",
        ActionType.MARK_READ: "marking as read",
        ActionType.MARK_UNREAD: "marking as unread",
        ActionType.STAR: "starring",
        ActionType.UNSTAR: "removing the star",
        ActionType.TRASH: "moving to the trash",
        ActionType.RESTORE: "taking out of the trash",
        ActionType.DELETE: "deleting for ever",
        ActionType.SNOOZE: "snoozing",
        ActionType.FORWARD: "forwarding",
        ActionType.AUTO_REPLY: "replying",
        ActionType.UNSUBSCRIBE: "unsubscribing",
    }
)
"""For people, as the beginning of a sentence about the action."""
FOR_GOOD = frozenset({ActionType.DELETE, ActionType.FORWARD, ActionType.AUTO_REPLY, ActionType.UNSUBSCRIBE})
"""Once done, these cannot be undone."""


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
    REFUSED = "refused"
    """A guard kept it from being done, as it should; nothing is wrong."""
    DISMISSED = "dismissed"
    """It failed, and a person has seen that."""


UNDER_WAY = (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING, ActionStatus.EXECUTING)


class ItemState(StrEnum):
    """What became of one message of a restore."""

    PLANNED = "planned"
    APPENDING = "appending"
    """The call is about to be made, or was; whether it did anything is not known."""
    UNTRASHING = "untrashing"
    """It lies in the target's trash, and is about to be taken out."""
    APPENDED = "appended"
    VERIFIED = "verified"
    """Read back from the target, with the archive's bytes."""
    ALREADY_THERE = "already_there"
    """It was there before, with the archive's bytes."""
    FAILED = "failed"
    TRASHED = "trashed"
    """The restore was undone."""


class Origin(StrEnum):
    """Who wanted the action."""

    RULE = "rule"
    MODEL = "model"
    PERSON = "person"
    UNDO = "undo"


class ReviewCause(StrEnum):
    """Why a person has to look at a message."""

    NO_MODEL = "no_model"
    MODEL_OFF = "model_off"
    BUDGET = "budget"
    """A budget left no room for the model."""
    UNUSABLE_ANSWER = "unusable_answer"
    MODEL_REFUSED = "model_refused"
    """The provider would not answer about this message."""
    MODEL_UNSURE = "model_unsure"
    """The model itself left it to a person."""
    NO_ACCOUNT = "no_account"
    """Something was decided, but its mailbox is no account here."""


_Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=300)]
_Body = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_BODY)]
_ADDRESS = r"[^@\s<>,;]{1,250}@[^@\s<>,;]{1,250}"
_Address = Annotated[
    str, StringConstraints(strip_whitespace=True), shaped(_ADDRESS, "is not an address such as ana@example.org")
]


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


class FileParameters(Parameters):
    """A file that is sent along. As it is given it has `data`; an action's row keeps its size and hash instead."""

    filename: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    mime_type: Annotated[str, StringConstraints(min_length=3, max_length=255)] = OCTET_STREAM
    data: str | None = Field(None, max_length=2 * LARGEST_FILES, description="its content in base64")
    size: int | None = Field(None, ge=0, description="in bytes; left out where `data` is given")
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _has_content(self) -> FileParameters:
        if (self.data is None) == (self.size is None):
            raise ValueError(f"{self.filename[:60]!r} needs its content as `data`, in base64")
        if self.data is not None:
            self.content()
        return self

    @classmethod
    def of(cls, filename: str, mime_type: str, content: bytes) -> FileParameters:
        return cls(filename=filename, mime_type=mime_type, data=base64.b64encode(content).decode("ascii"))

    def content(self) -> bytes:
        try:
            return base64.b64decode(self.data or "", validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{self.filename[:60]!r} is not base64") from None

    def outline(self) -> FileParameters:
        """The same without its content."""
        if self.data is None:
            return self
        content = self.content()
        return FileParameters(
            filename=self.filename,
            mime_type=self.mime_type,
            size=len(content),
            sha256=hashlib.sha256(content).hexdigest(),
        )

    @property
    def length(self) -> int:
        return len(self.data) * 3 // 4 if self.data is not None else self.size or 0


_Recipients = Annotated[list[_Address], Field(max_length=MOST_RECIPIENTS)]
_Subject = Annotated[
    str,
    StringConstraints(min_length=1, max_length=1_000),
    shaped(r"[^\x00-\x1f\x7f]*", "has line breaks or other control characters"),
]
_Html = Annotated[str, StringConstraints(min_length=1, max_length=4 * LONGEST_BODY)]
_MessageId = Annotated[str, shaped(r"<[!-;=?-~]{1,990}>", "is not a Message-ID such as <abc@example.org>")]


class LetterParameters(Parameters):
    """What every mail that an action sends may have."""

    to: _Recipients = []
    cc: _Recipients = []
    subject: _Subject | None = Field(None, description="in place of `Re:` or `Fwd:` and the original's")
    body_html: _Html | None = Field(None, description="the text as HTML")
    attachments: Annotated[list[FileParameters], Field(max_length=MOST_ATTACHMENTS)] = []

    @model_validator(mode="after")
    def _fits(self) -> LetterParameters:
        if (size := sum(each.length for each in self.attachments)) > LARGEST_FILES:
            most = LARGEST_FILES >> 20
            raise ValueError(f"the attachments have {size / (1 << 20):.1f} MB, and at most {most} MB can be sent")
        return self

    @property
    def text(self) -> str | None:
        """The plain text that the owner adds."""
        return None


class ForwardParameters(LetterParameters):
    to: Annotated[list[_Address], Field(min_length=1, max_length=MOST_RECIPIENTS)]
    note: _Body | None = Field(None, description="stands above the forwarded message")

    @property
    def text(self) -> str | None:
        return self.note


class ReplyParameters(LetterParameters):
    """Without `to`, the reply goes to whom the message asks."""

    body: _Body | None = Field(None, description="the text of the reply")
    references: Annotated[list[_MessageId], Field(max_length=100)] = []

    @model_validator(mode="after")
    def _says_something(self) -> ReplyParameters:
        if self.body is None and self.body_html is None:
            raise ValueError("give the text of the reply as `body`, or as `body_html`")
        return self

    @property
    def text(self) -> str | None:
        return self.body


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
        return self.parameters.model_dump(mode="json", exclude_none=True, exclude_defaults=True)

    @property
    def files(self) -> list[FileParameters]:
        return self.parameters.attachments if isinstance(self.parameters, LetterParameters) else []

    def outline(self) -> WantedAction:
        """The same without the content of files, for what is shown, audited and kept."""
        if not self.files:
            return self
        outlined = [each.outline() for each in self.files]
        return WantedAction(self.type, self.parameters.model_copy(update={"attachments": outlined}))


def action_named(name: str) -> ActionType:
    """`reply` is what people call `auto_reply`."""
    return ActionType.AUTO_REPLY if name == "reply" else ActionType(name)


def parse_action(name: object, parameters: object = None, where: str = "action") -> WantedAction:
    """An action from names and JSON, or BadInput that names the field."""
    try:
        action = action_named(str(name))
    except ValueError:
        known = ", ".join(ActionType)
        raise BadInput(f"{where}.type", f"{str(name)[:60]!r} is no action; there are {known}") from None
    try:
        return WantedAction(action, parameters_of(action).model_validate({} if parameters is None else parameters))
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join([where, *map(str, problem["loc"])])
        raise BadInput(place, f"{problem_text(problem)} ({action})") from None


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
    """What one decision, or the application of a rule to past mail, wants done with one message."""

    account_id: str
    message_id: str | None
    """None where only the archive has it."""
    gmail_id: str
    thread_id: str | None
    decision_id: str | None
    origin: Origin
    wanted_by: str
    """For people: `rule Receipts`, `model gpt-5-mini`."""
    proposals: tuple[Proposal, ...]
    rule_id: str | None = None
    rule_name: str | None = None
    application_id: str | None = None
    subject: str | None = None
    sender: str | None = None
    """Of a message that only the archive has."""
