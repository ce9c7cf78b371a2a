"""The tools for what decides about mail: rules, the owner's instructions to the model (directions for all mail,
guidance for a scope), and local triage that learns.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field, StrictBool, StrictInt

from postroom.contract.tool import Arguments, Id, Moment, Reply, ToolSignature
from postroom.domain.actions import ActionType
from postroom.domain.validation import DEFAULT_RULE_PRIORITY

SCOPE = "global, account:E, domain:D or sender:A"
CONDITION = "as in a file of rules: which messages it applies to, for example {sender_domain: shop.example}"
ACTIONS = "what to do, in order: `archive`, `apply_label=Receipts`, or an object with `type`"
_SEEN = "`updated_at` as you read it; refused if it changed since"
_STAMP = "`stamp` of the rule as you read it; refused if it was changed since"


class RuleArguments(Arguments):
    """A rule as people write it."""

    name: str
    scope: str = Field("global", description=SCOPE)
    priority: StrictInt = Field(DEFAULT_RULE_PRIORITY, description="lower numbers come first")
    condition: dict[str, Any] = Field(description=CONDITION)
    actions: list[str | dict[str, Any]] = Field(description=ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    enabled: StrictBool = True


class RuleChange(RuleArguments):
    stamp: str | None = Field(None, max_length=100, description=_STAMP)


class EditRuleArguments(RuleChange):
    rule: Id


class RemoveRuleArguments(Arguments):
    rule: Id
    stamp: str | None = Field(None, max_length=100, description=_STAMP)


class RuleMove(Arguments):
    direction: Literal["up", "down"]


class MoveRuleArguments(RuleMove):
    rule: Id


class SwitchRuleArguments(Arguments):
    rule: Id
    enabled: StrictBool


class ApplyRuleArguments(Arguments):
    rule: Id
    query: str = Field("", max_length=1_000, description="only mail that this search finds; empty: all")
    mailbox: str | None = Field(None, min_length=3, max_length=320, description="only mail of this one")
    cap: int = Field(1_000, ge=1, le=100_000, description="the most messages that it acts on")


class ApplicationArguments(Arguments):
    application: Id


class ResumeApplicationArguments(ApplicationArguments):
    cap: int | None = Field(None, ge=1, le=100_000, description="another cap; unset: as before")


class ApplicationsArguments(Arguments):
    rule: Id | None = None
    limit: int = Field(50, ge=1, le=200)


class ApplicationReply(Reply):
    id: str
    rule_id: str
    rule_name: str
    query: str
    mailbox: str | None
    cap: int
    state: str
    """running, completed, capped, stopped, failed or undone"""
    total: int
    looked_at: int
    acted_on: int
    left_alone: int
    reason: str | None
    requested_by: str
    created_at: Moment
    finished_at: Moment | None


class ApplicationsReply(Reply):
    applications: list[ApplicationReply]


class UndoApplicationReply(Reply):
    job: str
    canceled: int
    """Actions that had not begun and are not done."""


class ListRulesArguments(Arguments):
    pass


class ListedRuleReply(Reply):
    id: str
    name: str
    scope: str
    priority: int
    condition: dict[str, Any] | None
    actions: list[dict[str, Any]]
    enabled: bool
    disabled_reason: str | None


class RulesReply(Reply):
    rules: list[ListedRuleReply]


class TryRuleArguments(Arguments):
    condition: dict[str, Any] = Field(description=CONDITION)
    scope: str = Field("global", description=SCOPE)
    newest: int = Field(1_000, ge=1, le=10_000, description="how many of the newest messages to check")


class TriedMessage(Reply):
    account: str
    key: str
    date: Moment
    sender: str = Field(alias="from")
    subject: str


class TrialReply(Reply):
    looked_at: int
    matched: int
    is_cut_short: bool
    """It took too long and stopped before checking all of them."""
    samples: list[TriedMessage]


class ProposeRuleArguments(Arguments):
    name: str
    scope: str = Field("global", description=SCOPE)
    condition: dict[str, Any] = Field(description=CONDITION)
    actions: list[str | dict[str, Any]] = Field(description=ACTIONS)
    why: str = Field(min_length=1, max_length=300, description="for the person who decides")


class RuleReply(Reply):
    rule: str
    name: str


class SuggestionArguments(Arguments):
    suggestion: str = Field(min_length=1, max_length=64, description="`key` of a suggested rule")


class SuggestionReply(Reply):
    name: str


class DirectionArguments(Arguments):
    text: str = Field(description="what the model should follow, in a sentence or two")


class DirectionChange(Arguments):
    text: str | None = Field(None, description="null: unchanged")
    enabled: StrictBool | None = Field(None, description="null: unchanged")
    seen: AwareDatetime | None = Field(None, description=_SEEN)


class EditDirectionArguments(DirectionChange):
    direction: Id


class RemoveDirectionArguments(Arguments):
    direction: Id


class DirectionReply(Reply):
    direction: str
    text: str
    updated_at: Moment


class GuidanceArguments(Arguments):
    name: str
    scope: str = Field("global", description=SCOPE)
    text: str = Field(description="what the model should follow")


class GuidanceChange(Arguments):
    """Null values stay unchanged."""

    name: str | None = None
    scope: str | None = Field(None, description=SCOPE)
    text: str | None = None
    enabled: StrictBool | None = None
    seen: AwareDatetime | None = Field(None, description=_SEEN)


class EditGuidanceArguments(GuidanceChange):
    guidance: Id


class RemoveGuidanceArguments(Arguments):
    guidance: Id


class GuidanceReply(Reply):
    guidance: str
    name: str
    updated_at: Moment


ADD = ToolSignature("rules.add", RuleArguments, RuleReply)
EDIT = ToolSignature("rules.edit", EditRuleArguments, RuleReply)
REMOVE = ToolSignature("rules.remove", RemoveRuleArguments, RuleReply)
MOVE = ToolSignature("rules.move", MoveRuleArguments, RuleReply)
SWITCH = ToolSignature("rules.switch", SwitchRuleArguments, RuleReply)
DISMISS_SUGGESTION = ToolSignature("rules.dismiss_suggestion", SuggestionArguments, SuggestionReply)
ADD_DIRECTION = ToolSignature("directions.add", DirectionArguments, DirectionReply)
EDIT_DIRECTION = ToolSignature("directions.edit", EditDirectionArguments, DirectionReply)
REMOVE_DIRECTION = ToolSignature("directions.remove", RemoveDirectionArguments, DirectionReply)
ADD_GUIDANCE = ToolSignature("guidance.add", GuidanceArguments, GuidanceReply)
EDIT_GUIDANCE = ToolSignature("guidance.edit", EditGuidanceArguments, GuidanceReply)
REMOVE_GUIDANCE = ToolSignature("guidance.remove", RemoveGuidanceArguments, GuidanceReply)
APPLY = ToolSignature("rules.apply", ApplyRuleArguments, ApplicationReply)
APPLICATIONS = ToolSignature("rules.applications", ApplicationsArguments, ApplicationsReply)
STOP_APPLICATION = ToolSignature("rules.stop_application", ApplicationArguments, ApplicationReply)
RESUME_APPLICATION = ToolSignature("rules.resume_application", ResumeApplicationArguments, ApplicationReply)
UNDO_APPLICATION = ToolSignature("rules.undo_application", ApplicationArguments, UndoApplicationReply)
LIST_FOR_AGENT = ToolSignature("list_rules", ListRulesArguments, RulesReply)
TRY_FOR_AGENT = ToolSignature("try_rule", TryRuleArguments, TrialReply)
PROPOSE = ToolSignature("propose_rule", ProposeRuleArguments, RuleReply)


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


LEARNING_STATUS = ToolSignature("learning.status", LearningArguments, LearningReply)
SWITCH_LEARNING = ToolSignature("learning.switch", LearningSwitchArguments, LearningSwitchReply)
CORRECT_DECISION = ToolSignature("learning.correct", CorrectionArguments, CorrectionReply)
