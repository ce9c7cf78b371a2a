"""The tools for local triage that learns: how it stands, switch it, and correct a decision."""

from __future__ import annotations

from pydantic import Field, StrictBool

from postroom.contract.fields import Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.actions import ActionType


class LearningArguments(Arguments):
    """None."""


class AnswerReply(Reply):
    answer: str
    state: str
    since: Moment
    compared: int
    differed: int
    checked: int
    check_differed: int
    disagreement: float | None
    decided: int
    saved_microdollars: int


class AccountLearningReply(Reply):
    account: str
    labels: int
    fitted_at: Moment | None
    answers: list[AnswerReply]


class DecidedReply(Reply):
    by_rules: int
    learned: int
    by_model: int
    undecided: int
    without_model: float | None
    """The share of what would otherwise have gone to the model."""


class LearningReply(Reply):
    on: bool
    why_off: str | None
    sure: float
    check_share: float
    least_seen: int
    decided: DecidedReply
    """In the last 30 days."""
    saved_microdollars: int
    accounts: list[AccountLearningReply]


class LearningSwitchArguments(Arguments):
    enabled: StrictBool


class LearningSwitchReply(Reply):
    on: bool
    changed_by: str | None
    changed_at: Moment | None


class CorrectionArguments(Arguments):
    message: str = Field(min_length=1, max_length=300, description="a message's key or id")
    action: ActionType | None = Field(None, description="what should have been done; unset: nothing")
    label: str | None = Field(None, min_length=1, max_length=300, description="with apply_label or remove_label")


class CorrectionReply(Reply):
    learned: bool
    """False: nothing is learned from this message, because it is suspicious, not authenticated, or a rule decided."""
    undone: int
    """Actions that are being undone or were called off."""
    action: str | None
    """The action that is done instead."""


STATUS = ToolSignature("learning.status", LearningArguments, LearningReply)
SWITCH = ToolSignature("learning.switch", LearningSwitchArguments, LearningSwitchReply)
CORRECT = ToolSignature("learning.correct", CorrectionArguments, CorrectionReply)
