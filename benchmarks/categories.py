"""How well the categories of a backfill find their mail, and how right its estimates are, on generated mailboxes.

    python -m benchmarks.categories [--messages N] [--seeds 101,202,303] [--json FILE]

The rules were written against seeds below ten, and senders and subjects vary with the seed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.clock import SystemClock
from postroom.domain.model_costs import CostMeter, FixedTariff, TokenCounts
from postroom.mail.categories import Categories, Category, facts_of, shipped
from postroom.mail.headers import Headers, split_headers
from postroom.mail.query import parse
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.sim.gmail.generated import GeneratedCategory as Truth
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.methods.listing import Candidate, Matcher
from postroom.sim.gmail.server import running_sim
from postroom.sim.gmail.sources import MailSummary
from postroom.switchboard.backfill.operations import NewBackfill
from postroom.switchboard.estimate import (
    FULL,
    INSTRUCTION_TOKENS,
    TYPICAL_OUTPUT_TOKENS,
    BackfillTally,
    Counts,
    count_archive,
    count_at_source,
)

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
class CategoryVerdict:
    summary: MailSummary
    category: str
    is_it: bool
    is_selected: bool
    is_listed: bool


def verdicts(box: GeneratedMailbox, categories: Categories) -> Iterator[CategoryVerdict]:
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
            yield CategoryVerdict(
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


OWNER = "owner@example.com"
JOBS = (("finance",), ("health",), ("relationship",), ("travel",), ("finance", "health", "travel"))
DAYS = date(2022, 1, 1), date(2026, 10, 31)
PRICE = CostMeter(FixedTariff(Decimal("0.25"), Decimal(2)), 500)


class _Token:
    def __init__(self, token: str) -> None:
        self._token = token

    async def access_token(self, *, rejected: str | None = None) -> str:
        return self._token


class _Open:
    def __init__(self, client: GmailClient) -> None:
        self._client = client

    def open(self, endpoint_identity: str) -> _Open:
        return self

    async def __aenter__(self) -> GmailMailbox:
        return GmailMailbox(self._client)

    async def __aexit__(self, *error: object) -> None:
        """The client stays open for the next estimate."""


def score_rows(seeds: Sequence[int], messages: int) -> list[dict[str, Any]]:
    rows = []
    for seed in seeds:
        found: dict[str, Score] = scores(GeneratedMailbox(messages, seed, OWNER), shipped())
        rows += [
            {
                "seed": seed,
                "category": name,
                "messages": score.found + score.missed,
                "listed": score.listed,
                "recall": round(score.recall, 3),
                "precision": round(score.precision, 3),
            }
            for name, score in found.items()
        ]
    return rows


async def estimate_rows(seed: int, messages: int) -> list[dict[str, Any]]:
    """What the source's listing and a sample say, beside what counting every archived message says."""
    box, clock = GeneratedMailbox(messages, seed, OWNER), SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "archive"
        with FileArchiveWriter(root) as archive:
            archive.store(OWNER, [_incoming(box, index) for index in range(messages)])
        async with running_sim(box) as sim:
            limiter = limiter_for(None, clock, dice=random.Random(1))
            config = TransportConfig(api_base=sim.url)
            async with connected(_Token(sim.token), limiter, clock, config=config) as client:
                return [await _estimate_row(names, client, root, box) for names in JOBS]


def _all_in_full(headers: Any, labels: Any) -> int:
    return FULL


async def _estimate_row(
    names: tuple[str, ...], client: GmailClient, root: Path, box: GeneratedMailbox
) -> dict[str, Any]:
    wanted = NewBackfill("gmail", OWNER, *DAYS, names)
    known = frozenset(box.contacts)
    actual = count_archive(FileArchive(root), BackfillTally(wanted, shipped(), _all_in_full, known))
    guess = await count_at_source(_Open(client), BackfillTally(wanted, shipped(), _all_in_full, known))
    return {
        "categories": "+".join(names),
        "estimated": guess.messages,
        "actual": actual.messages,
        "error": round((guess.messages - actual.messages) / max(actual.messages, 1), 3),
        "estimated_microdollars": _cost(guess),
        "actual_microdollars": _cost(actual),
    }


def _cost(counts: Counts) -> int:
    text = 900 if counts.text_tokens is None else counts.text_tokens
    assert PRICE.tariff is not None
    return counts.full * PRICE.tariff.cost(TokenCounts(INSTRUCTION_TOKENS + text, TYPICAL_OUTPUT_TOKENS))


def _incoming(box: GeneratedMailbox, index: int) -> IncomingMail:
    mail = box.summary(index)
    received = datetime.fromtimestamp(mail.internal_date / 1_000, UTC)
    return IncomingMail(box.raw(index), Provenance.API, mail.id, mail.thread_id, mail.label_ids, received)


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"\n{title}")
    names = list(rows[0])
    widths = [max(len(name), *(len(str(row[name])) for row in rows)) for name in names]
    print("  ".join(name.rjust(width) for name, width in zip(names, widths, strict=True)))
    for row in rows:
        print("  ".join(str(row[name]).rjust(width) for name, width in zip(names, widths, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4_000)
    parser.add_argument("--seeds", default="101,202,303")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    found = {
        "categories": score_rows(seeds, options.messages),
        "estimates": asyncio.run(estimate_rows(seeds[0], options.messages)),
    }
    print_rows("Categories: what is found of each, and how much of what is found belongs to it", found["categories"])
    print_rows("Estimates: asked of the source beforehand, beside what a job then takes in", found["estimates"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
