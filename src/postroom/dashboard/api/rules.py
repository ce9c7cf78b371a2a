"""`/api/rules`: the same as the Rules page."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import Query
from pydantic import BaseModel, Field, StrictBool, StrictInt

from postroom.dashboard.api import api_router
from postroom.dashboard.changing.rules import (
    edit_rule,
    remove_rule,
    require_rule_proof,
    require_switch_proof,
    switch_rule,
)
from postroom.dashboard.paging import AfterId, Limit
from postroom.dashboard.reading.rules import PAGE, RulePage, RuleRow, rule_row, rules_page, stored_rule
from postroom.dashboard.reading.trials import CHOICES, TriedOut, try_out
from postroom.dashboard.security.permits import permits
from postroom.dashboard.visit import Here, Visit
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage.rules import store
from postroom.triage.rules.model import DEFAULT_PRIORITY, RuleDraft, parse_fields
from postroom.triage.rules.ordering import Direction, move_rule
from postroom.triage.rules.replaying import UNSAID

router = api_router("rules")

ONE = "/{rule_id}"
Stamp = Annotated[str | None, Query(max_length=100, description="`stamp` of the rule as it was seen")]
_CONDITION = "as in a file of rules: what is asked of a message, for example {sender_domain: shop.example}"
_ACTIONS = "what is done, in order: `archive`, `apply_label=Receipts`, or an object with `type`"


class Asked(BaseModel, extra="forbid"):
    """A rule that is tried: it needs neither a name nor actions."""

    name: str = "this rule"
    scope: str = Field("global", description="global, account:E, domain:D or sender:A")
    condition: dict[str, Any] = Field(description=_CONDITION)
    actions: list[str | dict[str, Any]] | None = Field(None, description=_ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    newest: int = Field(CHOICES[0], ge=1, le=max(CHOICES), description="how many of the newest messages to look at")

    def draft(self) -> RuleDraft:
        data = self.model_dump(exclude={"newest"})
        return parse_fields({**data, "actions": list(UNSAID) if self.actions is None else self.actions})


class Written(BaseModel, extra="forbid"):
    """A rule as people write it."""

    name: str
    scope: str = Field("global", description="global, account:E, domain:D or sender:A")
    priority: StrictInt = Field(DEFAULT_PRIORITY, description="lower numbers come first")
    condition: dict[str, Any] = Field(description=_CONDITION)
    actions: list[str | dict[str, Any]] = Field(description=_ACTIONS)
    unattended: StrictBool = Field(False, description="dangerous actions need no approval")
    enabled: StrictBool = True

    def draft(self) -> RuleDraft:
        return parse_fields(self.model_dump(exclude={"stamp"}))


class Changed(Written):
    stamp: str | None = Field(None, description="of the rule as it was seen; refused if it was changed since")


class Moved(BaseModel, extra="forbid"):
    direction: Direction


class TryWanted(BaseModel, extra="forbid"):
    newest: int = Field(CHOICES[0], ge=1, le=max(CHOICES), description="how many of the newest messages to look at")


class RemovedRule(BaseModel):
    id: str
    name: str


@router.get("")
@permits(Permission.READ)
async def rules(here: Here, after: AfterId = None, limit: Limit = PAGE) -> RulePage:
    """Rules in the order in which they are tried."""
    start = None if after is None else str(after)
    return await here.read(lambda tx: rules_page(tx, here.app.settings.safety, start, limit))


@router.post("", status_code=201)
@permits(Permission.RULES)
async def add(here: Here, wanted: Written) -> RuleRow:
    """Add a rule. It is in force for mail that comes in from now on."""
    draft = wanted.draft()
    await require_rule_proof(here, draft)
    rule = await here.write(lambda tx: store.add_rule(tx, draft, here.actor, here.now))
    return await _row(here, rule.id)


@router.post("/try")
@permits(Permission.RULES)
async def try_new(here: Here, asked: Asked) -> TriedOut:
    """Try a rule on the newest mail of the archive before it is saved. Takes a few seconds at most; nothing is done."""
    return await try_out(here, asked.draft(), asked.newest, says_what=asked.actions is not None)


@router.get(ONE)
@permits(Permission.READ)
async def rule(here: Here, rule_id: UUID) -> RuleRow:
    """One rule."""
    return await _row(here, str(rule_id))


@router.put(ONE)
@permits(Permission.RULES)
async def change(here: Here, rule_id: UUID, wanted: Changed) -> RuleRow:
    """Put this in the place of a rule."""
    draft = wanted.draft()
    await require_rule_proof(here, draft)
    await here.write(lambda tx: edit_rule(tx, str(rule_id), wanted.stamp, draft, here.actor, here.now))
    return await _row(here, str(rule_id))


@router.delete(ONE)
@permits(Permission.RULES)
async def remove(here: Here, rule_id: UUID, stamp: Stamp = None) -> RemovedRule:
    """Remove a rule. What it did stays done, and can be undone."""
    gone = await here.write(lambda tx: remove_rule(tx, str(rule_id), stamp, here.actor, here.now))
    return RemovedRule(id=gone.id, name=gone.name)


@router.post(f"{ONE}/enable")
@permits(Permission.RULES)
async def enable(here: Here, rule_id: UUID) -> RuleRow:
    """Switch a rule on."""
    await require_switch_proof(here, str(rule_id))
    await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=True))
    return await _row(here, str(rule_id))


@router.post(f"{ONE}/disable")
@permits(Permission.RULES)
async def disable(here: Here, rule_id: UUID) -> RuleRow:
    """Switch a rule off, and keep it."""
    await here.write(lambda tx: switch_rule(tx, str(rule_id), here.actor, here.now, on=False))
    return await _row(here, str(rule_id))


@router.post(f"{ONE}/move")
@permits(Permission.RULES)
async def move(here: Here, rule_id: UUID, wanted: Moved) -> RuleRow:
    """Move a rule one place up or down in the order."""
    await here.write(
        lambda tx: move_rule(tx, store.rule_with_id(tx, str(rule_id)), wanted.direction, here.actor, here.now)
    )
    return await _row(here, str(rule_id))


@router.post(f"{ONE}/try")
@permits(Permission.RULES)
async def try_saved(here: Here, rule_id: UUID, wanted: TryWanted) -> TriedOut:
    """Try a saved rule on the newest mail of the archive. Takes a few seconds at most; nothing is done."""
    stored = await here.read(lambda tx: stored_rule(tx, str(rule_id)))
    if stored.draft is None:
        raise BadInput("rule", stored.problem or "cannot be read")
    return await try_out(here, stored.draft, wanted.newest)


async def _row(here: Visit, rule_id: str) -> RuleRow:
    return await here.read(lambda tx: rule_row(tx, rule_id, here.app.settings.safety))
