"""How well the shipped categories find what a generated mailbox truly holds: recall and precision for each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from postroom.gmail.sim.mailbox import Category as Truth
from postroom.gmail.sim.mailbox import GeneratedMailbox
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.search.match import Candidate, Matcher
from postroom.mail.categories import Categories, Category, facts_of
from postroom.mail.headers import Headers, split_headers
from postroom.mail.query import parse

NOT_ELIGIBLE = frozenset({"SENT", "DRAFT", "SPAM", "TRASH"})
TRUTH_OF = {
    "finance": frozenset({Truth.FINANCE}),
    "health": frozenset({Truth.HEALTH}),
    "relationship": frozenset({Truth.RELATIONSHIP}),
    "travel": frozenset({Truth.TRAVEL}),
    "newsletters": frozenset({Truth.NEWSLETTER, Truth.PROMOTION}),
}


@dataclass(slots=True)
class Score:
    found: int = 0
    """Selected, and rightly so."""
    missed: int = 0
    mistaken: int = 0
    listed: int = 0
    """What the source's query let through to the rules."""

    @property
    def recall(self) -> float:
        return self.found / max(self.found + self.missed, 1)

    @property
    def precision(self) -> float:
        return self.found / max(self.found + self.mistaken, 1)

    def add(self, *, is_it: bool, is_selected: bool, is_listed: bool) -> None:
        self.listed += is_listed
        self.found += is_it and is_selected
        self.missed += is_it and not is_selected
        self.mistaken += is_selected and not is_it


@dataclass(frozen=True, slots=True)
class Verdict:
    summary: MailSummary
    category: str
    is_it: bool
    is_selected: bool
    is_listed: bool


def verdicts(box: GeneratedMailbox, categories: Categories) -> Iterator[Verdict]:
    """Every eligible message against every category: the query of the source first, then the rules on headers."""
    matchers = {category.name: _matcher(category) for category in categories}
    contacts = frozenset(box.contacts)
    for index in range(box.count()):
        summary = box.summary(index)
        if summary.label_ids & NOT_ELIGIBLE:
            continue
        facts = facts_of(_headers(box.raw(index)), is_known=False)
        if facts.address in contacts:
            facts = facts_of(facts.headers, is_known=True)
        candidate = Candidate(summary, body=lambda: "", filenames=list)
        for category in categories:
            is_listed = matchers[category.name](candidate)
            yield Verdict(
                summary,
                category.name,
                summary.category in TRUTH_OF[category.name],
                is_listed and category.matches(facts),
                is_listed,
            )


def scores(box: GeneratedMailbox, categories: Categories) -> dict[str, Score]:
    found = {category.name: Score() for category in categories}
    for one in verdicts(box, categories):
        found[one.category].add(is_it=one.is_it, is_selected=one.is_selected, is_listed=one.is_listed)
    return found


def _matcher(category: Category) -> Matcher:
    return Matcher(parse(category.query, now=0), lambda label: label)


def _headers(raw: bytes) -> Headers:
    return split_headers(raw, [])[0]
