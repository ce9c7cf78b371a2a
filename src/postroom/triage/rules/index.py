"""Which rules a message may match, found without looking at each of them.

For a condition to hold, one of a few simple things has to be true of the message: this sender, that word in the
subject. They are looked up all at once, and only the rules that they lead to are checked. Sets of rules are the bits of
a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from postroom.mail.patterns import LONGEST_TEXT, PatternSet, in_any_case
from postroom.triage.rules import conditions
from postroom.triage.rules.facts import MessageFacts

_LARGEST_PATTERN = 1_000
"""Larger ones are looked for alone, and only where everything else fits: a set of them could fill its memory."""


class Clue(StrEnum):
    SENDER = "sender"
    LIST = "list"
    DOMAIN = "domain"
    DOMAIN_TREE = "domain tree"
    SUBJECT_TEXT = "subject text"
    SUBJECT_PATTERN = "subject pattern"
    HEADER_TEXT = "header text"
    HEADER_PATTERN = "header pattern"
    HEADER = "header"
    LABEL = "label"
    RECIPIENT = "recipient"
    ACCOUNT = "account"


_COMMONNESS: Mapping[Clue, int] = {
    Clue.SENDER: 1,
    Clue.LIST: 1,
    Clue.DOMAIN: 2,
    Clue.DOMAIN_TREE: 2,
    Clue.SUBJECT_TEXT: 5,
    Clue.SUBJECT_PATTERN: 8,
    Clue.HEADER_TEXT: 10,
    Clue.HEADER_PATTERN: 12,
    Clue.HEADER: 40,
    Clue.LABEL: 60,
    Clue.RECIPIENT: 100,
    Clue.ACCOUNT: 200,
}
"""How much mail each is likely to be true of, to choose the rarest by."""


class Sign(NamedTuple):
    clue: Clue
    value: str
    header: str = ""


def signs_of(condition: conditions.RuleCondition) -> frozenset[Sign] | None:
    """Signs of which a message has at least one if the condition holds; None where no sign has to be there."""
    match condition:
        case conditions.AllOf(parts):
            found = [signs for part in parts if (signs := signs_of(part)) is not None]
            return min(found, key=_commonness, default=None)
        case conditions.AnyOf(parts):
            each = [signs_of(part) for part in parts]
            return None if None in each else frozenset().union(*(signs for signs in each if signs))
        case _:
            return _signs_of_leaf(condition)


def _commonness(signs: Iterable[Sign]) -> int:
    return sum(_COMMONNESS[sign.clue] for sign in signs)


def _signs_of_leaf(leaf: conditions.RuleCondition) -> frozenset[Sign] | None:
    match leaf:
        case conditions.SenderIs(addresses):
            return _signs(Clue.SENDER, addresses)
        case conditions.SenderDomain(domains, subdomains):
            return _signs(Clue.DOMAIN_TREE if subdomains else Clue.DOMAIN, domains)
        case conditions.OnList(ids):
            return _signs(Clue.LIST, ids)
        case conditions.HasLabel(labels):
            return _signs(Clue.LABEL, labels)
        case conditions.SentTo(addresses):
            return _signs(Clue.RECIPIENT, addresses)
        case conditions.OfAccount(account_id):
            return _signs(Clue.ACCOUNT, [account_id])
        case _:
            return _signs_of_text(leaf)


def _signs_of_text(leaf: conditions.RuleCondition) -> frozenset[Sign] | None:
    match leaf:
        case conditions.SubjectContains(texts):
            return _signs(Clue.SUBJECT_TEXT, texts)
        case conditions.SubjectMatches(patterns):
            return _signs(Clue.SUBJECT_PATTERN, patterns) if _are_small(patterns) else None
        case conditions.HeaderContains(name, texts):
            return _signs(Clue.HEADER_TEXT, texts, name)
        case conditions.HeaderMatches(name, patterns):
            small = _are_small(patterns)
            return _signs(Clue.HEADER_PATTERN, patterns, name) if small else _signs(Clue.HEADER, [name])
        case conditions.HeaderPresent(name, True):
            return _signs(Clue.HEADER, [name])
        case _:
            return None


def _signs(clue: Clue, values: Iterable[str], header: str = "") -> frozenset[Sign]:
    return frozenset(Sign(clue, value, header) for value in values)


def _are_small(patterns: Iterable[str]) -> bool:
    return all(in_any_case(pattern, "pattern").size <= _LARGEST_PATTERN for pattern in patterns)


@dataclass(frozen=True, slots=True)
class _Texts:
    """Texts and patterns that are looked for in one place of a message, with the rules that each leads to."""

    patterns: PatternSet | None
    rules_of_patterns: Sequence[int]
    texts: PatternSet | None
    rules_of_texts: Sequence[int]

    def rules(self, folded: str, text: bytes) -> int:
        found = 0
        if self.texts is not None:
            for number in self.texts.found_in(folded.encode("utf-8", "replace")):
                found |= self.rules_of_texts[number]
        if self.patterns is not None:
            for number in self.patterns.found_in(text):
                found |= self.rules_of_patterns[number]
        return found


class RuleIndex:
    def __init__(self, of_rules: Sequence[conditions.RuleCondition]) -> None:
        """`candidates` answers with numbers of this sequence, as bits."""
        self._always = 0
        found: dict[Clue, dict[tuple[str, str], int]] = {clue: defaultdict(int) for clue in Clue}
        for number, condition in enumerate(of_rules):
            signs = signs_of(condition)
            if signs is None:
                self._always |= 1 << number
            for sign in signs or ():
                found[sign.clue][sign.header, sign.value] |= 1 << number
        self._senders = _by_value(found[Clue.SENDER])
        self._domains = _by_value(found[Clue.DOMAIN])
        self._trees = _by_value(found[Clue.DOMAIN_TREE])
        self._lists = _by_value(found[Clue.LIST])
        self._labels = _by_value(found[Clue.LABEL])
        self._recipients = _by_value(found[Clue.RECIPIENT])
        self._accounts = _by_value(found[Clue.ACCOUNT])
        self._headers = _by_value(found[Clue.HEADER])
        self._subject = _texts(found[Clue.SUBJECT_PATTERN], found[Clue.SUBJECT_TEXT], "")
        named = {name for clue in (Clue.HEADER_PATTERN, Clue.HEADER_TEXT) for name, _ in found[clue]}
        self._in_headers = {
            name: _texts(found[Clue.HEADER_PATTERN], found[Clue.HEADER_TEXT], name) for name in sorted(named)
        }

    def candidates(self, facts: MessageFacts) -> int:
        """The rules that may match; every other one does not."""
        found = self._always | self._of_sender(facts)
        if self._subject is not None:
            found |= self._subject.rules(facts.folded_subject, facts.subject_bytes)
        if self._labels:
            found |= _union(self._labels, facts.labels)
        if self._recipients:
            found |= _union(self._recipients, facts.recipients)
        if self._accounts:
            found |= self._accounts.get(facts.account_id or "", 0)
        if self._lists and facts.list_id is not None:
            found |= self._lists.get(facts.list_id, 0)
        return found | self._of_headers(facts)

    def _of_sender(self, facts: MessageFacts) -> int:
        """All senders have to fit, so that the first one decides who is worth a look."""
        if not facts.senders:
            return 0
        domain = facts.sender_domains[0]
        found = self._senders.get(facts.senders[0], 0) | self._domains.get(domain, 0)
        while self._trees and domain:
            found |= self._trees.get(domain, 0)
            domain = domain.partition(".")[2]
        return found

    def _of_headers(self, facts: MessageFacts) -> int:
        found = 0
        headers = facts.headers
        for name, rules in self._headers.items():
            if name in headers:
                found |= rules
        for name, texts in self._in_headers.items():
            if texts is not None and name in headers:
                found |= texts.rules(facts.folded_header(name), headers[name][:LONGEST_TEXT].encode("utf-8", "replace"))
        return found


def _union(rules: Mapping[str, int], values: Iterable[str]) -> int:
    found = 0
    for value in values:
        if value in rules:
            found |= rules[value]
    return found


def _by_value(rules: Mapping[tuple[str, str], int]) -> dict[str, int]:
    return {value: numbers for (_, value), numbers in rules.items()}


def _texts(patterns: Mapping[tuple[str, str], int], texts: Mapping[tuple[str, str], int], header: str) -> _Texts | None:
    mine = {value: rules for (name, value), rules in patterns.items() if name == header}
    plain = {value: rules for (name, value), rules in texts.items() if name == header}
    if not mine and not plain:
        return None
    return _Texts(
        PatternSet(list(mine), "pattern") if mine else None,
        list(mine.values()),
        PatternSet(list(plain), "text", are_literal=True) if plain else None,
        list(plain.values()),
    )
