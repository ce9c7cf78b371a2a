"""How many messages a second rules decide about, beside a loop over the same rules with the standard library's `re`.

    python -m benchmarks.triage [--messages N] [--rules 200] [--runs 5] [--tried 100000] [--json FILE]

The mail is generated, and shared out among the runs. A message's facts are made from its stored row within the measured
time, as `classify` has to. Then rules that ask for what the archive has as columns are tried on so much archived mail.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.archive import import_with_postroom
from benchmarks.archive_mail import Kind as MailKind
from benchmarks.archive_mail import write
from benchmarks.peers.naive_rules import NaiveRules
from benchmarks.report import Verdict, machine_facts, verdict_table
from postroom.archive.backend import MailReader
from postroom.archive.shards.file_archive import FileArchive
from postroom.mail.headers import triage_headers
from postroom.mail.parsing import parse_headers
from postroom.sim.gmail.generated import GeneratedMailbox
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.facts import MessageFacts, stored_facts
from postroom.triage.rules.rule import Rule, parse_draft, rule_of
from postroom.triage.rules.trial import TrialSubject, replay_newest

OWNER = "owner@example.com"
LEAST_PER_SECOND = 20_000
NAIVE_SHARE = 50
"""The naive loop gets a fiftieth of the mail: it would take the rest of the day otherwise."""
_DISTINCT = 5_000
_HOSTILE = ("(a+)+$", "(x+x+)+y", "([a-z]+)*!$")

MOST_TRIAL_S = 5.0
"""For the trial of a rule over 100,000 messages."""
_TRIED: Mapping[str, dict[str, Any]] = {
    "a domain": {"sender_domain": "fastpost.example"},
    "words of the subject": {"subject_contains": "account"},
    "either of two": {"any": [{"subject_contains": "account"}, {"larger_than": "100K"}]},
}
_WITH_SPAM = 1.8
"""So much more mail is archived than is tried: a trial leaves spam and trash out."""

Row = Mapping[str, Any]
Condition = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rate:
    what: str
    rules: int
    messages: int
    per_second: float
    matched: int


@dataclass(frozen=True, slots=True)
class TrialTime:
    rule: str
    messages: int
    seconds: float
    matched: int


def rows_of(count: int, seed: int) -> list[Row]:
    """Messages as the control database has them."""
    box = GeneratedMailbox(count, seed, OWNER)
    rows: list[Row] = []
    for index in range(count):
        raw, mail = box.raw(index), box.summary(index)
        headers = parse_headers(raw)
        rows.append(
            {
                "account_id": "0199a1c2-7e5b-7abc-8def-0123456789ab",
                "sender": "",
                "subject": headers.text("Subject") or "",
                "headers": triage_headers(headers),
                "labels": sorted(mail.label_ids),
                "has_attachment": index % 9 == 0,
                "size_bytes": len(raw),
                "received_at": datetime.fromtimestamp(mail.internal_date / 1_000, UTC),
            }
        )
    return rows


def conditions_for(rows: Sequence[Row], count: int, seed: int) -> list[Condition]:
    """Such rules as people have: mostly senders and domains, then words, patterns, lists, labels and combinations."""
    dice = random.Random(seed)
    facts = [stored_facts(**dice.choice(rows)) for _ in range(count * 2)]
    senders = [each.sender for each in facts if each.sender]
    words = [word for each in facts for word in each.subject.split() if len(word) > 4]

    def one(number: int) -> Condition:
        sender, word, other = dice.choice(senders), dice.choice(words), dice.choice(words)
        domain = sender.partition("@")[2]
        ways: list[Callable[[], Condition]] = [
            lambda: {"sender": f"{number}.{sender}"},
            lambda: {"sender_domain": {"domain": f"mail{number}.{domain}", "subdomains": True}},
            lambda: {"sender_domain": domain, "subject_contains": [f"{word} {number}", f"{other} {number}"]},
            lambda: {"subject_contains": f"{word} {number}"},
            lambda: {"subject_regex": rf"{_letters(word)}\w* #?{number}\b"},
            lambda: {"any": [{"sender": f"{number}x{sender}"}, {"subject_regex": rf"^(re|fwd): .*{number}{{2}}$"}]},
            lambda: {"header": {"name": "X-Mailer", "contains": f"version {number}"}},
            lambda: {
                "all": [{"label": "INBOX"}, {"not": {"has_attachment": False}}, {"larger_than": f"{9 + number % 9}M"}]
            },
            lambda: {"list_id": f"list{number}.{domain}"},
            lambda: {"recipient": f"alias{number}@example.com", "older_than": "30d"},
        ]
        weights = (30, 15, 12, 12, 8, 6, 5, 3, 6, 3)
        return dice.choices(ways, weights)[0]()

    found = [one(number) for number in range(count - len(_HOSTILE) - 5)]
    found += [{"subject_regex": pattern, "label": "STARRED"} for pattern in _HOSTILE]
    found += [{"sender": dice.choice(senders)} for _ in range(count - len(found))]
    dice.shuffle(found)
    return found


def _letters(word: str) -> str:
    return "".join(char for char in word if char.isascii() and char.isalnum())


def measure(what: str, rules: int, rows: Sequence[Row], decide: Callable[[MessageFacts, datetime], object]) -> Rate:
    now = datetime.now(UTC) + timedelta(days=1)
    matched = 0
    started = time.process_time()
    for row in rows:
        if decide(stored_facts(**row), now) is not None:
            matched += 1
    return Rate(what, rules, len(rows), len(rows) / (time.process_time() - started), matched)


def compiled(conditions: Sequence[Condition]) -> list[Rule]:
    drafts = [
        parse_draft({"name": f"{number:05}", "condition": condition, "actions": ["archive"]})
        for number, condition in enumerate(conditions)
    ]
    return [rule_of(draft.name, draft) for draft in drafts]


def run(messages: int, rules: int, runs: int, seed: int = 7) -> list[Rate]:
    each = max(messages // runs, 1)
    distinct = rows_of(min(each, _DISTINCT), seed)
    rows = [distinct[number % len(distinct)] for number in range(each)]
    rates = []
    for count in (rules, 500):
        conditions = conditions_for(distinct, count, seed)
        engine, naive = RuleSet(compiled(conditions)), NaiveRules(conditions)
        few = rows[: max(each // NAIVE_SHARE, 1)]
        agreement = [
            (_name(engine, stored_facts(**row)), naive.first(stored_facts(**row), _now())) for row in few[:500]
        ]
        assert all(ours == theirs for ours, theirs in agreement), (
            "the two do not agree, so that no figure means anything"
        )
        found = [measure("Postroom", count, rows, engine.first_match) for _ in range(runs)]
        rates.append(sorted(found, key=lambda rate: rate.per_second)[runs // 2])
        rates.append(measure("a loop with re", count, few, naive.first))
    return rates


def try_on_archive(messages: int) -> list[TrialTime]:
    """Each rule over the newest of the mail, as `postroom rules try` does it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = write(folder, MailKind.MAILBOX, int(messages * _WITH_SPAM), with_maildir=False)
        import_with_postroom(files, messages, "takeout", folder / "home")
        with FileArchive(folder / "home" / "archive") as archive, archive.reader() as reader:
            return [_try(reader, rule, condition, messages) for rule, condition in _TRIED.items()]


def _try(archive: MailReader, name: str, condition: Condition, messages: int) -> TrialTime:
    subject = TrialSubject(compiled([condition]))
    started = time.perf_counter()
    trial, _ = replay_newest(subject, archive, _now(), messages, keep=20, longest_s=300)
    return TrialTime(name, trial.looked_at, time.perf_counter() - started, trial.matched.total())


def _now() -> datetime:
    return datetime.now(UTC) + timedelta(days=1)


def _name(rules: RuleSet, facts: MessageFacts) -> int | None:
    found = rules.first_match(facts, _now())
    return int(found.rule.name) if found else None


def judged(rates: Sequence[Rate], trials: Sequence[TrialTime]) -> list[Verdict]:
    ours, theirs = rates[0], rates[1]
    goal = f"at least {LEAST_PER_SECOND:,} a second"
    slowest = max(trials, key=lambda trial: trial.seconds)
    what = f"trial of a rule over {slowest.messages:,} archived messages ({slowest.rule})"
    return [
        Verdict(f"messages against {ours.rules} rules, one core", ours.per_second, goal,
                ours.per_second >= LEAST_PER_SECOND, "/s"),
        Verdict("the same, over a loop with re", ours.per_second / theirs.per_second, "none", None),
        Verdict(what, slowest.seconds, f"at most {MOST_TRIAL_S:g} s", slowest.seconds <= MOST_TRIAL_S, " s"),
    ]  # fmt: skip


def rate_table(rates: Sequence[Rate]) -> Table:
    title = "Rules: messages a second of one core's time (median of the runs)"
    table = Table(title=title, title_justify="left")
    table.add_column("contender")
    for column in ("rules", "messages", "matched", "messages a second", "evaluations a second"):
        table.add_column(column, justify="right")
    for rate in rates:
        evaluations = rate.per_second * rate.rules
        numbers = (rate.rules, rate.messages, rate.matched, rate.per_second, evaluations)
        table.add_row(rate.what, *(f"{number:,.0f}" for number in numbers))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rules", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tried", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    facts = machine_facts("not used")
    rates = run(options.messages, options.rules, options.runs)
    trials = try_on_archive(options.tried)
    verdicts = judged(rates, trials)
    console = Console(width=140)
    console.print(rate_table(rates))
    console.print(verdict_table(verdicts))
    if options.json:
        document = {
            "machine": facts,
            "rates": [asdict(rate) for rate in rates],
            "trials": [asdict(trial) for trial in trials],
            "goals": [asdict(verdict) for verdict in verdicts],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
