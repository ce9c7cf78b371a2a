"""Categories on the labelled header records, with the time that one message takes; and how right the estimates of a
backfill are, on generated mailboxes.

    python -m benchmarks.categories [--messages N] [--seed 101] [--json FILE]

The shipped model knows the senders of the records. `python -m tools.train_categories --score` and `--cross` say how it
does on senders that it does not know. Generated mail proves nothing about categories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.report import machine_facts
from postroom.archive.messages import IncomingMail, Provenance
from postroom.archive.shards.file_archive import FileArchive
from postroom.archive.shards.writer import FileArchiveWriter
from postroom.domain.clock import SystemClock
from postroom.domain.model_costs import CostMeter, FixedTariff, TokenCounts
from postroom.mail.categories import facts_of, shipped
from postroom.mail.categories.records import Scores, read_records
from postroom.mail.headers import Headers
from postroom.mailboxes.gmail.client import GmailClient, connected
from postroom.mailboxes.gmail.mailbox import GmailMailbox
from postroom.mailboxes.gmail.transport import TransportConfig
from postroom.mailboxes.limiter import limiter_for
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.sim.gmail.server import running_sim
from postroom.switchboard.backfill.counting import (
    FULL,
    UNMEASURED,
    BackfillTally,
    Counts,
    count_archive,
    count_at_source,
)
from postroom.switchboard.backfill.terms import NewBackfill

NOT_ELIGIBLE = frozenset({"SENT", "DRAFT", "SPAM", "TRASH"})
RECORDS = Path(__file__).parent.parent / "data" / "categories" / "dev.jsonl"
ROUNDS = 10


def record_rows() -> tuple[list[dict[str, Any]], float]:
    """Precision and recall by category, and messages a second on one core."""
    records = list(read_records(RECORDS.read_text("utf-8").splitlines()))
    scores, categories = Scores(), shipped()
    for each in records:
        facts = facts_of(each.headers, is_known=each.known, labels=each.labels)
        scores.add(each.category or "none", categories.matching(facts), each.lang)
    fresh = [(Headers(each.headers.pairs), each.known, each.labels) for each in records for _ in range(ROUNDS)]
    begun = time.process_time()
    for headers, known, labels in fresh:
        categories.matching(facts_of(headers, is_known=known, labels=labels))
    rate = len(fresh) / (time.process_time() - begun)
    return [{"category": name, **score} for name, score in scores.to_json()["categories"].items()], rate


def new_senders_rate() -> tuple[float, int]:
    """Messages a second where none repeats a sender or a subject and nothing is remembered, and of how many senders.

    Each sender of the training lines once, with its subject, in the other headers of the records."""
    records = list(read_records(RECORDS.read_text("utf-8").splitlines()))
    text = "\n".join(file.read_text("utf-8") for file in sorted(RECORDS.parent.glob("*.tsv")))
    lines = [line.split("\t") for line in text.splitlines() if line.strip()]
    subjects = {line[2]: line[3] for line in lines}
    fresh = []
    for (sender, subject), record in zip(subjects.items(), cycle(records), strict=False):
        own = {"from": sender, "subject": subject}
        pairs = tuple((name, own.get(name.lower(), value)) for name, value in record.headers.pairs)
        fresh.append((Headers(pairs), record.known, record.labels))
    categories = shipped()
    begun = time.process_time()
    for headers, known, labels in fresh:
        categories.matching(facts_of(headers, is_known=known, labels=labels))
    return len(fresh) / (time.process_time() - begun), len(fresh)


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
    text = statistics.fmean(each.tokens for each in counts.texts) if counts.texts else UNMEASURED.typical_text
    assert PRICE.tariff is not None
    tokens = TokenCounts(round(UNMEASURED.input_tokens(text)), round(UNMEASURED.output))
    return counts.full * PRICE.tariff.cost(tokens)


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
    parser.add_argument("--seed", type=int, default=101)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    new_rate, senders = new_senders_rate()  # first, while nothing is remembered
    rows, rate = record_rows()
    found: dict[str, Any] = {
        "machine": machine_facts("not used"),
        "categories": rows,
        "messages_a_second": round(rate),
        "messages_a_second_of_new_senders": round(new_rate),
        "estimates": asyncio.run(estimate_rows(options.seed, options.messages)),
    }
    print_rows(f"Categories on {RECORDS.name}, {rate:,.0f} messages a second", found["categories"])
    print(f"{new_rate:,.0f} messages a second of {senders:,} senders and subjects that were never seen before")
    print_rows("Estimates: asked of the source beforehand, beside what a job then takes in", found["estimates"])
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
