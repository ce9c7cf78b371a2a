"""Rules compiled once, to find the first that matches a message; `RuleBook` keeps the rules in force at hand.

A rule that fails is left out and logged. Changes by any process are noticed before the next message is judged.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias, assert_never

from postroom.db import Database, Tx
from postroom.domain.clock import Clock
from postroom.domain.errors import PostroomError
from postroom.mail.patterns import LONGEST_TEXT, in_any_case
from postroom.telemetry import logs
from postroom.triage.rules import conditions, store
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.index import RuleIndex
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.rule import Rule, RuleScope, ScopeKind, rule_of
from postroom.triage.rules.store import Version

Check: TypeAlias = Callable[[MessageFacts, datetime], bool]


def compile_check(condition: conditions.RuleCondition) -> Check:
    match condition:
        case conditions.AllOf(parts):
            return _all(tuple(map(compile_check, parts)))
        case conditions.AnyOf(parts):
            return _any(tuple(map(compile_check, parts)))
        case conditions.Negation(part):
            check = compile_check(part)
            return lambda facts, now: not check(facts, now)
        case _:
            return _leaf(condition)


def _all(checks: tuple[Check, ...]) -> Check:
    def check(facts: MessageFacts, now: datetime) -> bool:
        for each in checks:  # noqa: SIM110 (a generator costs more than what it runs)
            if not each(facts, now):
                return False
        return True

    return check


def _any(checks: tuple[Check, ...]) -> Check:
    def check(facts: MessageFacts, now: datetime) -> bool:
        for each in checks:  # noqa: SIM110 (as above)
            if each(facts, now):
                return True
        return False

    return check


def _leaf(leaf: conditions.Leaf) -> Check:  # noqa: C901 (one line for each kind)
    match leaf:
        case conditions.SenderIs(addresses):
            return lambda facts, now: bool(facts.senders) and addresses.issuperset(facts.senders)
        case conditions.SenderDomain(domains, subdomains):
            return _sender_domain(domains, subdomains=subdomains)
        case conditions.SubjectContains(texts):
            return lambda facts, now: any(text in facts.folded_subject for text in texts)
        case conditions.SubjectMatches(patterns):
            return _subject_matches(patterns)
        case conditions.HeaderContains(name, texts):
            return lambda facts, now: any(text in facts.folded_header(name) for text in texts)
        case conditions.HeaderMatches(name, patterns):
            return _header_matches(name, patterns)
        case conditions.HeaderPresent(name, present):
            return lambda facts, now: (name in facts.headers) is present
        case conditions.HasLabel(labels):
            return lambda facts, now: not labels.isdisjoint(facts.labels)
        case conditions.SentTo(addresses):
            return lambda facts, now: not addresses.isdisjoint(facts.recipients)
        case conditions.OnList(ids):
            return lambda facts, now: facts.list_id in ids
        case conditions.AttachmentPresent(wanted):
            return lambda facts, now: facts.has_attachment is wanted
        case conditions.LargerThan(size):
            return lambda facts, now: facts.size_bytes is not None and facts.size_bytes > size
        case conditions.SmallerThan(size):
            return lambda facts, now: facts.size_bytes is not None and facts.size_bytes < size
        case conditions.OlderThan(age):
            return lambda facts, now: now - facts.received_at > age
        case conditions.YoungerThan(age):
            return lambda facts, now: now - facts.received_at < age
        case conditions.OfAccount(account_id):
            return lambda facts, now: facts.account_id == account_id
        case _:
            assert_never(leaf)


def _sender_domain(domains: frozenset[str], *, subdomains: bool) -> Check:
    if not subdomains:
        return lambda facts, now: bool(facts.senders) and domains.issuperset(facts.sender_domains)
    endings = tuple(f".{domain}" for domain in domains)

    def check(facts: MessageFacts, now: datetime) -> bool:
        found = facts.sender_domains
        return bool(found) and all(domain in domains or domain.endswith(endings) for domain in found)

    return check


def _subject_matches(patterns: tuple[str, ...]) -> Check:
    compiled = [in_any_case(pattern, "subject_regex") for pattern in patterns]
    return lambda facts, now: any(pattern.found_in_bytes(facts.subject_bytes) for pattern in compiled)


def _header_matches(name: str, patterns: tuple[str, ...]) -> Check:
    compiled = [in_any_case(pattern, "header.regex") for pattern in patterns]

    def check(facts: MessageFacts, now: datetime) -> bool:
        text = facts.headers.get(name)
        return text is not None and any(pattern.found_in(text[:LONGEST_TEXT]) for pattern in compiled)

    return check


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
        usable: list[conditions.RuleCondition] = []
        for rule in sorted(rules, key=lambda rule: (rule.priority, rule.id)):
            condition = _with_scope(rule)
            try:
                check = compile_check(condition)
            except PostroomError as error:
                self.broken[rule.id] = error.message
                continue
            self._rules.append(rule)
            self._checks.append(check)
            usable.append(condition)
        self._index = RuleIndex(usable)
        self._usable = (1 << len(usable)) - 1

    def __len__(self) -> int:
        return len(self._rules)

    def first_match(self, facts: MessageFacts, now: datetime) -> Match | None:
        """The first rule that holds. One that fails is passed over, now and from now on."""
        candidates = self._candidates(facts)
        while candidates:
            lowest = candidates & -candidates
            number = lowest.bit_length() - 1
            if self._holds(number, facts, now):
                return Match(self._rules[number])
            candidates ^= lowest
        return None

    def may_match(self, facts: MessageFacts) -> bool:
        """False where no rule holds for a message with this sender among others, subject, labels and headers."""
        return bool(self._candidates(facts))

    def _candidates(self, facts: MessageFacts) -> int:
        try:
            return self._index.candidates(facts) & self._usable
        except PostroomError:  # the archive could not give the headers that a rule asks for
            raise
        except Exception as error:
            # Whichever rule it is, checking them one by one will name it.
            log.error("rules.index_failed", error=_kind(error))
            return self._usable

    def _holds(self, number: int, facts: MessageFacts, now: datetime) -> bool:
        try:
            return self._checks[number](facts, now)
        except PostroomError:  # the archive could not give the headers that it asks for
            raise
        except Exception as error:
            rule = self._rules[number]
            log.error("rules.rule_failed", rule=rule.id, error=_kind(error))
            self.broken[rule.id] = f"It failed on a message: {_kind(error)}"
            self._usable &= ~(1 << number)
            return False


def _kind(error: Exception) -> str:
    """The error's type and place. Its message is left out, because it may repeat the mail."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {frames[-1].name}:{frames[-1].lineno}" if frames else type(error).__name__


def _with_scope(rule: Rule) -> conditions.RuleCondition:
    scope = _scope_condition(rule.scope)
    limits = [] if scope is None else [scope]
    limits += [conditions.Negation(conditions.OfAccount(account_id)) for account_id in sorted(rule.off_for)]
    return conditions.AllOf((*limits, rule.condition)) if limits else rule.condition


def _scope_condition(scope: RuleScope) -> conditions.RuleCondition | None:
    match scope.kind:
        case ScopeKind.GLOBAL:
            return None
        case ScopeKind.ACCOUNT:
            return conditions.OfAccount(scope.ref)
        case ScopeKind.DOMAIN:
            return conditions.SenderDomain(frozenset({scope.ref}), subdomains=True)
        case ScopeKind.SENDER:
            return conditions.SenderIs(frozenset({scope.ref}))


_LONGEST_TRUST_S = 300
"""A row that was changed by hand shows in no version; it is read again after this time."""


class RuleBook:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._rules = RuleSet(())
        self._seen: dict[str, str] = {}
        self._version: Version | None = None
        self._read_at = 0.0
        self._turning = asyncio.Lock()

    def version(self, tx: Tx) -> Version:
        """Of the rules in force. Those who ask at the same moment share a look."""
        found: Version = tx.shared("rules", lambda: store.version(tx))
        return found

    async def match(self, facts: MessageFacts, version: Version | None = None) -> Match | None:
        """The first rule that matches. Rules that cannot be used are disabled with the reason, and decide nothing.
        `version` was in force a moment ago, where that is known."""
        rules = await self._current(version)
        found = rules.first_match(facts, self._clock.now())
        if rules.broken:
            await self._disable(rules)
        return found

    async def _current(self, version: Version | None) -> RuleSet:
        if self._is_trusted():
            rules, known = self._rules, self._version
            if (version or await self._database.read(self.version)) == known:
                return rules
        async with self._turning:
            return await self._renewed()

    def _is_trusted(self) -> bool:
        return self._clock.monotonic() - self._read_at <= _LONGEST_TRUST_S

    async def _renewed(self) -> RuleSet:
        known = self._version if self._is_trusted() else None
        changed = await self._database.read(lambda tx: store.load_changed(tx, known))
        if changed is not None:
            version, rules = changed
            # All of it or nothing: a cancellation here must not leave old rules under the new version.
            self._rules = await asyncio.to_thread(compiled, rules)
            self._seen = {rule.id: rule.stamp for rule in rules}
            self._version, self._read_at = version, self._clock.monotonic()
        return self._rules

    async def _disable(self, rules: RuleSet) -> None:
        reasons, seen = dict(rules.broken), dict(self._seen)
        names = await self._database.write(lambda tx: store.disable_broken(tx, reasons, seen, self._clock.now()))
        for rule_id in reasons:
            rules.broken.pop(rule_id, None)
        if names:
            log.warning("rules.disabled", rules=names)


def compiled(rules: Sequence[StoredRule]) -> RuleSet:
    """Those that can be read; the others are among its `broken`."""
    usable = RuleSet(rule_of(rule.id, rule.draft, rule.off_for) for rule in rules if rule.draft is not None)
    usable.broken |= {rule.id: rule.problem or "It cannot be read" for rule in rules if rule.draft is None}
    return usable
