"""Tools for rules, and for the owner's instructions to the model: directions and guidance.

A change is refused if what it changes was changed since the caller read it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from postroom.audit import Actor
from postroom.contract import rules as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.settings import SafetySettings
from postroom.switchboard.toolbox import Tool
from postroom.triage import guidance
from postroom.triage.guidance import Direction, StoredModelRule, changed_meanwhile
from postroom.triage.rules import store
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import RuleDraft, parse_fields, parse_scope
from postroom.triage.rules.store import MoveDirection, rule_with_id
from postroom.triage.safety import acts_alone

T = TypeVar("T")
_NOT_CHANGED = {"rule", "direction", "guidance", "seen", "stamp"}
"""Arguments that say what is changed, and how it was when it was read."""


class RuleTools:
    def __init__(self, database: Database, clock: Clock, safety: SafetySettings) -> None:
        self._database = database
        self._clock = clock
        self._safety = safety

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(contract.ADD, "Add a rule. It applies to mail that arrives from now on.", self.add)
        yield _tool(contract.EDIT, "Replace a rule. What it did before stays and can be undone.", self.edit)
        yield _tool(contract.REMOVE, "Remove a rule. Its past actions stay and can be undone.", self.remove)
        yield _tool(contract.MOVE, "Move a rule one place up or down in the order.", self.move)
        yield _tool(contract.SWITCH, "Switch a rule on, or off and keep it.", self.switch)
        yield _tool(contract.ADD_DIRECTION, "Add an instruction to the model for all mail.", self.add_direction)
        yield _tool(
            contract.EDIT_DIRECTION, "Change the text of a direction, or switch it on or off.", self.edit_direction
        )
        yield _tool(
            contract.REMOVE_DIRECTION, "Remove an instruction to the model for all mail.", self.remove_direction
        )
        yield _tool(contract.ADD_GUIDANCE, "Add an instruction to the model for mail of a scope.", self.add_guidance)
        yield _tool(
            contract.EDIT_GUIDANCE,
            "Change name, scope or text of guidance, or switch it on or off.",
            self.edit_guidance,
        )
        yield _tool(contract.REMOVE_GUIDANCE, "Remove an instruction to the model for a scope.", self.remove_guidance)

    async def add(self, caller: Caller, given: contract.RuleArguments) -> contract.RuleReply:
        draft = self._allowed(caller, parse_fields(given.model_dump()))
        return _rule(await self._write(caller, lambda tx, who, now: store.add_rule(tx, draft, who, now)))

    async def edit(self, caller: Caller, given: contract.EditRuleArguments) -> contract.RuleReply:
        draft = self._allowed(caller, parse_fields(given.model_dump(exclude=_NOT_CHANGED)))

        def change(tx: Tx, who: Actor, now: datetime) -> StoredRule:
            return store.edit_rule(tx, _unchanged(tx, given.rule, given.stamp), draft, who, now)

        return _rule(await self._write(caller, change))

    async def remove(self, caller: Caller, given: contract.RemoveRuleArguments) -> contract.RuleReply:
        def change(tx: Tx, who: Actor, now: datetime) -> StoredRule:
            rule = _unchanged(tx, given.rule, given.stamp)
            store.remove_rule(tx, rule, who, now)
            return rule

        return _rule(await self._write(caller, change))

    async def move(self, caller: Caller, given: contract.MoveRuleArguments) -> contract.RuleReply:
        direction = MoveDirection(given.direction)

        def change(tx: Tx, who: Actor, now: datetime) -> StoredRule:
            return store.move_rule(tx, rule_with_id(tx, given.rule), direction, who, now)

        return _rule(await self._write(caller, change))

    async def switch(self, caller: Caller, given: contract.SwitchRuleArguments) -> contract.RuleReply:
        def change(tx: Tx, who: Actor, now: datetime) -> StoredRule:
            rule = rule_with_id(tx, given.rule)
            if not given.enabled:
                return store.disable_rule(tx, rule, None, who, now)
            if rule.draft is not None:
                self._allowed(caller, rule.draft)
            return store.enable_rule(tx, rule, who, now)

        return _rule(await self._write(caller, change))

    async def add_direction(self, caller: Caller, given: contract.DirectionArguments) -> contract.DirectionReply:
        return _direction(
            await self._write(caller, lambda tx, who, now: guidance.add_direction(tx, given.text, who, now))
        )

    async def edit_direction(self, caller: Caller, given: contract.EditDirectionArguments) -> contract.DirectionReply:
        changes = given.model_dump(exclude=_NOT_CHANGED, exclude_none=True)

        def change(tx: Tx, who: Actor, now: datetime) -> Direction:
            before = guidance.direction_with_id(tx, given.direction)
            _require_seen(given.seen, before, "direction")
            return guidance.change_direction(tx, before, changes, who, now)

        return _direction(await self._write(caller, change))

    async def remove_direction(
        self, caller: Caller, given: contract.RemoveDirectionArguments
    ) -> contract.DirectionReply:
        def change(tx: Tx, who: Actor, now: datetime) -> Direction:
            before = guidance.direction_with_id(tx, given.direction)
            guidance.remove_direction(tx, before, who, now)
            return before

        return _direction(await self._write(caller, change))

    async def add_guidance(self, caller: Caller, given: contract.GuidanceArguments) -> contract.GuidanceReply:
        scope = parse_scope(given.scope)

        def change(tx: Tx, who: Actor, now: datetime) -> StoredModelRule:
            return guidance.add_model_rule(tx, given.name, scope, given.text, who, now)

        return _guidance(await self._write(caller, change))

    async def edit_guidance(self, caller: Caller, given: contract.EditGuidanceArguments) -> contract.GuidanceReply:
        changes = given.model_dump(exclude=_NOT_CHANGED, exclude_none=True)
        if given.scope is not None:
            changes["scope"] = parse_scope(given.scope)

        def change(tx: Tx, who: Actor, now: datetime) -> StoredModelRule:
            before = guidance.model_rule_with_id(tx, given.guidance)
            _require_seen(given.seen, before, f"guidance {before.name}")
            return guidance.change_model_rule(tx, before, changes, who, now)

        return _guidance(await self._write(caller, change))

    async def remove_guidance(self, caller: Caller, given: contract.RemoveGuidanceArguments) -> contract.GuidanceReply:
        def change(tx: Tx, who: Actor, now: datetime) -> StoredModelRule:
            before = guidance.model_rule_with_id(tx, given.guidance)
            guidance.remove_model_rule(tx, before, who, now)
            return before

        return _guidance(await self._write(caller, change))

    def _allowed(self, caller: Caller, draft: RuleDraft) -> RuleDraft:
        """A rule that sends or destroys without approval is saved and switched on only with the passphrase."""
        if acts_alone(draft.actions, self._safety, unattended=draft.unattended):
            require_proof(caller, SensitiveChange.UNATTENDED_RULE)
        return draft

    async def _write(self, caller: Caller, change: Callable[[Tx, Actor, datetime], T]) -> T:
        who, now = Actor.of(caller), self._clock.now()
        return await self._database.write(lambda tx: change(tx, who, now))


def _tool(
    signature: ToolSignature[Any, Any], description: str, run: Callable[[Caller, Any], Awaitable[Reply]]
) -> Tool[Any, Any]:
    return Tool(signature, Role.DASHBOARD, Permission.RULES, description, run)


def _unchanged(tx: Tx, rule_id: str, stamp: str | None) -> StoredRule:
    """The rule, if it is still as it was when `stamp` was read."""
    rule = rule_with_id(tx, rule_id)
    if stamp not in (None, rule.stamp):
        raise changed_meanwhile(f"rule {rule.name}")
    return rule


def _require_seen(seen: datetime | None, before: Direction | StoredModelRule, what: str) -> None:
    if seen not in (None, before.updated_at):
        raise changed_meanwhile(what)


def _rule(rule: StoredRule) -> contract.RuleReply:
    return contract.RuleReply(rule=rule.id, name=rule.name)


def _direction(direction: Direction) -> contract.DirectionReply:
    return contract.DirectionReply(direction=direction.id, text=direction.text, updated_at=direction.updated_at)


def _guidance(rule: StoredModelRule) -> contract.GuidanceReply:
    return contract.GuidanceReply(guidance=rule.id, name=rule.name, updated_at=rule.updated_at)
