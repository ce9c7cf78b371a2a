"""Tools for rules, for applying them to past mail, and for the owner's instructions to the model: directions and
guidance.

A change is refused if what it changes was changed since the caller read it. An agent lists rules, tries one on the
archive, and proposes one: a proposed rule is off until a person switches it on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

from postroom.actions import undo
from postroom.archive.backend import ArchiveBackend
from postroom.archive.messages import ArchivedMessage
from postroom.archive.service import read_apart
from postroom.audit import Actor
from postroom.contract import rules as contract
from postroom.contract.tool import Reply, ToolSignature
from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.ids import normal_email
from postroom.domain.roles import Caller, Permission, Role, SensitiveChange, require_proof
from postroom.queue import JobQueue
from postroom.settings import SafetySettings
from postroom.switchboard.toolbox import Tool
from postroom.triage import guidance
from postroom.triage.guidance import Direction, StoredModelRule, changed_meanwhile
from postroom.triage.rules import applying, store, suggesting
from postroom.triage.rules.applying import PastMail, RuleApplication
from postroom.triage.rules.rows import StoredRule, account_addresses, rule_named
from postroom.triage.rules.rule import RuleDraft, parse_fields, parse_scope
from postroom.triage.rules.store import MoveDirection, rule_with_id
from postroom.triage.rules.trial import UNSAID, replay_newest, subject_of
from postroom.triage.safety import acts_alone

T = TypeVar("T")
_SAMPLES = 20
_LONGEST_TRIAL_S = 4.0
_NOT_CHANGED = {"rule", "direction", "guidance", "seen", "stamp"}
"""Arguments that say what is changed, and how it was when it was read."""


class RuleTools:
    def __init__(self, database: Database, clock: Clock, safety: SafetySettings, archive: ArchiveBackend) -> None:
        self._database = database
        self._clock = clock
        self._safety = safety
        self._archive = archive
        self._trial_slot = asyncio.Semaphore(1)

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield _tool(contract.ADD, "Add a rule. It applies to mail that arrives from now on.", self.add)
        yield _tool(contract.EDIT, "Replace a rule. What it did before stays and can be undone.", self.edit)
        yield _tool(contract.REMOVE, "Remove a rule. Its past actions stay and can be undone.", self.remove)
        yield _tool(contract.MOVE, "Move a rule one place up or down in the order.", self.move)
        yield _tool(contract.SWITCH, "Switch a rule on, or off and keep it.", self.switch)
        yield _tool(
            contract.DISMISS_SUGGESTION, "Dismiss a suggested rule: it is not suggested again.", self.dismiss_suggestion
        )
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
        yield from self._agent_tools()

    def _agent_tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.LIST_FOR_AGENT,
            Role.AGENT,
            Permission.READ,
            "The owner's rules in the order in which they are tried.",
            self.list_rules,
            reads_only=True,
        )
        yield Tool(
            contract.TRY_FOR_AGENT,
            Role.AGENT,
            Permission.PROPOSE,
            "Try a condition on the newest archived mail: how many messages match, and which. Changes nothing.",
            self.try_rule,
            reads_only=True,
        )
        yield Tool(
            contract.PROPOSE,
            Role.AGENT,
            Permission.PROPOSE,
            "Propose a rule. It is saved switched off; a person looks at it and switches it on, or removes it.",
            self.propose,
        )

    async def list_rules(self, caller: Caller, given: contract.ListRulesArguments) -> contract.RulesReply:
        def read(tx: Tx) -> list[StoredRule]:
            addresses = account_addresses(tx)
            return [rule_named(rule, addresses) for rule in store.list_rules(tx)]

        return contract.RulesReply(rules=[_listed(rule) for rule in await self._database.read(read)])

    async def try_rule(self, caller: Caller, given: contract.TryRuleArguments) -> contract.TrialReply:
        data = {"name": "this rule", "actions": list(UNSAID), "condition": given.condition, "scope": given.scope}
        draft, now = parse_fields(data), self._clock.now()
        subject = await self._database.read(lambda tx: subject_of(tx, "tried", draft))
        async with self._trial_slot:
            trial, is_cut_short = await read_apart(
                self._archive,
                lambda archive: replay_newest(
                    subject, archive, now, given.newest, keep=_SAMPLES, longest_s=_LONGEST_TRIAL_S
                ),
            )
        samples = [_tried(hit.message) for hit in trial.hits]
        return contract.TrialReply(
            looked_at=trial.looked_at, matched=trial.total, is_cut_short=is_cut_short, samples=samples
        )

    async def propose(self, caller: Caller, given: contract.ProposeRuleArguments) -> contract.RuleReply:
        draft = parse_fields(given.model_dump(exclude={"why"}))
        return _rule(await self._write(caller, lambda tx, who, now: store.propose_rule(tx, draft, given.why, who, now)))

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

    async def dismiss_suggestion(self, caller: Caller, given: contract.SuggestionArguments) -> contract.SuggestionReply:
        def change(tx: Tx, who: Actor, now: datetime) -> str:
            found = suggesting.find_suggestion(tx, self._safety, given.suggestion)
            suggesting.dismiss(tx, found, who, now)
            return found.draft.name

        return contract.SuggestionReply(name=await self._write(caller, change))

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


def _listed(rule: StoredRule) -> contract.ListedRuleReply:
    return contract.ListedRuleReply(
        id=rule.id,
        name=rule.name,
        scope=str(rule.scope),
        priority=rule.priority,
        condition=None if rule.draft is None else dict(rule.draft.condition),
        actions=[] if rule.draft is None else [wanted.to_json() for wanted in rule.draft.actions],
        enabled=rule.enabled,
        disabled_reason=rule.disabled_reason or rule.problem,
    )


def _tried(message: ArchivedMessage) -> contract.TriedMessage:
    return contract.TriedMessage(
        account=message.account, key=message.key, date=message.date, sender=message.sender, subject=message.subject
    )


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


class PastMailTools:
    def __init__(self, queue: JobQueue, archive: ArchiveBackend) -> None:
        self._queue = queue
        self._archive = archive

    def tools(self) -> Iterator[Tool[Any, Any]]:
        yield Tool(
            contract.APPLICATIONS,
            Role.DASHBOARD,
            Permission.READ,
            "Rules that were applied to past mail, newest first, with how far each is.",
            self.applications,
            reads_only=True,
        )
        yield _tool(
            contract.APPLY,
            "Let a worker apply a rule to past mail that is still in its mailbox, newest first, up to a cap.",
            self.apply,
        )
        yield _tool(contract.STOP_APPLICATION, "Stop applying a rule to past mail. What it did stays.", self.stop)
        yield _tool(
            contract.RESUME_APPLICATION, "Go on applying a rule to past mail, with another cap if given.", self.resume
        )
        yield _tool(
            contract.UNDO_APPLICATION,
            "Let a worker undo all that one application of a rule to past mail did, the newest first.",
            self.undo,
        )

    async def applications(self, caller: Caller, given: contract.ApplicationsArguments) -> contract.ApplicationsReply:
        found = await self._queue.database.read(lambda tx: applying.list_applications(tx, given.rule, given.limit))
        return contract.ApplicationsReply(applications=[_reply(each) for each in found])

    async def apply(self, caller: Caller, given: contract.ApplyRuleArguments) -> contract.ApplicationReply:
        """A rule that destroys mail needs the passphrase, as one that does so unattended."""
        mailbox = None if given.mailbox is None else normal_email(given.mailbox, "mailbox")
        mail = PastMail(given.query, mailbox, given.cap)
        rule = await self._queue.database.read(lambda tx: rule_with_id(tx, given.rule))
        if rule.draft is not None:
            applying.require_applicable(rule.draft)
            if applying.destroys(rule.draft):
                require_proof(caller, SensitiveChange.PAST_MAIL)
        total = await asyncio.to_thread(mail.count, self._archive)
        who = Actor.of(caller)
        return await self._changed(lambda tx: applying.begin(tx, self._queue, rule, mail, total, who))

    async def stop(self, caller: Caller, given: contract.ApplicationArguments) -> contract.ApplicationReply:
        return await self._changed(lambda tx: applying.stop(tx, self._queue, given.application, Actor.of(caller)))

    async def resume(self, caller: Caller, given: contract.ResumeApplicationArguments) -> contract.ApplicationReply:
        """The same: with another cap it destroys more."""
        who = Actor.of(caller)
        before = await self._queue.database.read(lambda tx: applying.get_application(tx, given.application))
        if applying.destroys(before.draft):
            require_proof(caller, SensitiveChange.PAST_MAIL)
        return await self._changed(lambda tx: applying.resume(tx, self._queue, given.application, given.cap, who))

    async def undo(self, caller: Caller, given: contract.ApplicationArguments) -> contract.UndoApplicationReply:
        who = Actor.of(caller)
        job, canceled = await self._queue.database.write(
            lambda tx: undo_application(tx, self._queue, given.application, who)
        )
        return contract.UndoApplicationReply(job=job, canceled=canceled)

    async def _changed(self, change: Callable[[Tx], RuleApplication]) -> contract.ApplicationReply:
        return _reply(await self._queue.database.write(change))


def undo_application(tx: Tx, queue: JobQueue, application_id: str, who: Actor) -> tuple[str, int]:
    """End the application, and undo it: the job, and how many actions are not done."""
    application = applying.mark_undone(tx, queue, application_id, who)
    return undo.undo_application(tx, queue, application.id, application.created_at, who)


def _reply(application: RuleApplication) -> contract.ApplicationReply:
    return contract.ApplicationReply.model_validate(application)
