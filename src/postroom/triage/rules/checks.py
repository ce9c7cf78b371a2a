"""Conditions as functions of a message's facts: what can be worked out beforehand is worked out here."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TypeAlias, assert_never

from postroom.mail.patterns import LONGEST_TEXT, in_any_case
from postroom.triage.rules.conditions import (
    AllOf,
    AnyOf,
    Condition,
    HasAttachment,
    HasLabel,
    HeaderContains,
    HeaderMatches,
    HeaderPresent,
    LargerThan,
    Leaf,
    Not,
    OfAccount,
    OlderThan,
    OnList,
    SenderDomain,
    SenderIs,
    SentTo,
    SmallerThan,
    SubjectContains,
    SubjectMatches,
    YoungerThan,
)
from postroom.triage.rules.facts import MailFacts

Check: TypeAlias = Callable[[MailFacts, datetime], bool]


def compile_check(condition: Condition) -> Check:
    match condition:
        case AllOf(parts):
            return _all(tuple(map(compile_check, parts)))
        case AnyOf(parts):
            return _any(tuple(map(compile_check, parts)))
        case Not(part):
            check = compile_check(part)
            return lambda facts, now: not check(facts, now)
        case _:
            return _leaf(condition)


def _all(checks: tuple[Check, ...]) -> Check:
    def check(facts: MailFacts, now: datetime) -> bool:
        for each in checks:  # noqa: SIM110 (a generator costs more than what it runs)
            if not each(facts, now):
                return False
        return True

    return check


def _any(checks: tuple[Check, ...]) -> Check:
    def check(facts: MailFacts, now: datetime) -> bool:
        for each in checks:  # noqa: SIM110 (as above)
            if each(facts, now):
                return True
        return False

    return check


def _leaf(leaf: Leaf) -> Check:  # noqa: C901 (one line for each kind)
    match leaf:
        case SenderIs(addresses):
            return lambda facts, now: bool(facts.senders) and addresses.issuperset(facts.senders)
        case SenderDomain(domains, subdomains):
            return _sender_domain(domains, subdomains=subdomains)
        case SubjectContains(texts):
            return lambda facts, now: any(text in facts.folded_subject for text in texts)
        case SubjectMatches(patterns):
            return _subject_matches(patterns)
        case HeaderContains(name, texts):
            return lambda facts, now: any(text in facts.folded_header(name) for text in texts)
        case HeaderMatches(name, patterns):
            return _header_matches(name, patterns)
        case HeaderPresent(name, present):
            return lambda facts, now: (name in facts.headers) is present
        case HasLabel(labels):
            return lambda facts, now: not labels.isdisjoint(facts.labels)
        case SentTo(addresses):
            return lambda facts, now: not addresses.isdisjoint(facts.recipients)
        case OnList(ids):
            return lambda facts, now: facts.list_id in ids
        case HasAttachment(wanted):
            return lambda facts, now: facts.has_attachment is wanted
        case LargerThan(size):
            return lambda facts, now: facts.size_bytes is not None and facts.size_bytes > size
        case SmallerThan(size):
            return lambda facts, now: facts.size_bytes is not None and facts.size_bytes < size
        case OlderThan(age):
            return lambda facts, now: now - facts.received_at > age
        case YoungerThan(age):
            return lambda facts, now: now - facts.received_at < age
        case OfAccount(account_id):
            return lambda facts, now: facts.account_id == account_id
        case _:
            assert_never(leaf)


def _sender_domain(domains: frozenset[str], *, subdomains: bool) -> Check:
    if not subdomains:
        return lambda facts, now: bool(facts.senders) and domains.issuperset(facts.sender_domains)
    endings = tuple(f".{domain}" for domain in domains)

    def check(facts: MailFacts, now: datetime) -> bool:
        found = facts.sender_domains
        return bool(found) and all(domain in domains or domain.endswith(endings) for domain in found)

    return check


def _subject_matches(patterns: tuple[str, ...]) -> Check:
    compiled = [in_any_case(pattern, "subject_regex") for pattern in patterns]
    return lambda facts, now: any(pattern.found_in_bytes(facts.subject_bytes) for pattern in compiled)


def _header_matches(name: str, patterns: tuple[str, ...]) -> Check:
    compiled = [in_any_case(pattern, "header.regex") for pattern in patterns]

    def check(facts: MailFacts, now: datetime) -> bool:
        text = facts.headers.get(name)
        return text is not None and any(pattern.found_in(text[:LONGEST_TEXT]) for pattern in compiled)

    return check
