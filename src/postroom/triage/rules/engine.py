"""Rules compiled once, to find the first that matches a message. A rule that fails is left out, and said so."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from postroom.domain.errors import PostroomError
from postroom.telemetry import logs
from postroom.triage.rules.checks import Check, compile_check
from postroom.triage.rules.conditions import AllOf, Condition, OfAccount, SenderDomain, SenderIs
from postroom.triage.rules.facts import MailFacts
from postroom.triage.rules.index import RuleIndex
from postroom.triage.rules.model import Rule, Scope, ScopeKind

log = logs.get(__name__)


@dataclass(frozen=True, slots=True)
class Match:
    rule: Rule


class RuleSet:
    """Rules in the order of their priority, then of their age."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.broken: dict[str, str] = {}
        """Rules that could not be used, by id, with the reason; grows when one fails on a message."""
        self._rules: list[Rule] = []
        self._checks: list[Check] = []
        conditions: list[Condition] = []
        for rule in sorted(rules, key=lambda rule: (rule.priority, rule.id)):
            condition = _with_scope(rule)
            try:
                check = compile_check(condition)
            except PostroomError as error:
                self.broken[rule.id] = error.message
                continue
            self._rules.append(rule)
            self._checks.append(check)
            conditions.append(condition)
        self._index = RuleIndex(conditions)
        self._usable = (1 << len(conditions)) - 1

    def __len__(self) -> int:
        return len(self._rules)

    def first_match(self, facts: MailFacts, now: datetime) -> Match | None:
        """The first rule that holds. One that fails is passed over, now and from now on."""
        candidates = self._candidates(facts)
        while candidates:
            lowest = candidates & -candidates
            number = lowest.bit_length() - 1
            if self._holds(number, facts, now):
                return Match(self._rules[number])
            candidates ^= lowest
        return None

    def _candidates(self, facts: MailFacts) -> int:
        try:
            return self._index.candidates(facts) & self._usable
        except Exception as error:
            # Whichever rule it is, checking them one by one will name it.
            log.error("rules.index_failed", error=_kind(error))
            return self._usable

    def _holds(self, number: int, facts: MailFacts, now: datetime) -> bool:
        try:
            return self._checks[number](facts, now)
        except Exception as error:
            rule = self._rules[number]
            log.error("rules.rule_failed", rule=rule.id, error=_kind(error))
            self.broken[rule.id] = f"It failed on a message: {_kind(error)}"
            self._usable &= ~(1 << number)
            return False


def _kind(error: Exception) -> str:
    """Never an error's own words here, which may repeat the mail: what it is, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].name}:{frames[-1].lineno}" if frames else type(error).__name__


def _with_scope(rule: Rule) -> Condition:
    scope = _scope_condition(rule.scope)
    return rule.condition if scope is None else AllOf((scope, rule.condition))


def _scope_condition(scope: Scope) -> Condition | None:
    match scope.kind:
        case ScopeKind.GLOBAL:
            return None
        case ScopeKind.ACCOUNT:
            return OfAccount(scope.ref)
        case ScopeKind.DOMAIN:
            return SenderDomain(frozenset({scope.ref}), subdomains=True)
        case ScopeKind.SENDER:
            return SenderIs(frozenset({scope.ref}))
