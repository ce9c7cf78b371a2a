"""The tools for rules, and for the owner's instructions to the model: directions for all mail, guidance for a scope."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime, Field, StrictBool, StrictInt

from postroom.contract.fields import Id, Moment
from postroom.contract.tool import Arguments, Reply, ToolSignature
from postroom.domain.limits import DEFAULT_RULE_PRIORITY

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


class RuleReply(Reply):
    rule: str
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
ADD_DIRECTION = ToolSignature("directions.add", DirectionArguments, DirectionReply)
EDIT_DIRECTION = ToolSignature("directions.edit", EditDirectionArguments, DirectionReply)
REMOVE_DIRECTION = ToolSignature("directions.remove", RemoveDirectionArguments, DirectionReply)
ADD_GUIDANCE = ToolSignature("guidance.add", GuidanceArguments, GuidanceReply)
EDIT_GUIDANCE = ToolSignature("guidance.edit", EditGuidanceArguments, GuidanceReply)
REMOVE_GUIDANCE = ToolSignature("guidance.remove", RemoveGuidanceArguments, GuidanceReply)
