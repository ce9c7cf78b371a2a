"""Replays rules over archived mail: what they would have matched and done. Reads the archive and nothing else.

Every message is judged as if it came in now, with the labels that it has now; mail that the owner wrote is never
judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from postroom.archive.model import ArchivedMessage
from postroom.archive.place import MailReader
from postroom.domain.errors import Fatal, Retryable
from postroom.reading.mail import read_headers
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.facts import MailFacts
from postroom.triage.rules.messages import archived_facts
from postroom.triage.rules.model import Rule

OWN_MAIL = frozenset({"SENT", "DRAFT"})


@dataclass(frozen=True, slots=True)
class Hit:
    message: ArchivedMessage
    rule: Rule


@dataclass(slots=True)
class Trial:
    """What came of it so far."""

    looked_at: int = 0
    own: int = 0
    """Passed over, because the owner wrote them."""
    unreadable: int = 0
    """Passed over, because the archive could not give them; `postroom verify` says more."""
    matched: Counter[str] = field(default_factory=Counter)
    """By the rule's name."""
    hits: list[Hit] = field(default_factory=list)
    """The first ones, in the order in which the mail came."""

    @property
    def total(self) -> int:
        return self.matched.total()


def try_rules(
    rules: RuleSet,
    archive: MailReader,
    mail: Iterable[ArchivedMessage],
    now: datetime,
    trial: Trial,
    *,
    keep: int,
    accounts: Mapping[str, str],
    label_ids: Mapping[str, Mapping[str, str]],
    show: Callable[[], None],
) -> None:
    """Fill the trial, message by message, so that it tells the truth whenever it is broken off.

    `accounts` and `label_ids` are by the archive's names of accounts: an account's id, and its labels' ids by name.
    """
    for message in mail:
        show()
        if OWN_MAIL.intersection(message.labels):
            trial.own += 1
            continue
        try:
            facts = _facts(
                archive.raw_of(message), message, accounts.get(message.account), label_ids.get(message.account, {})
            )
        except (Fatal, Retryable):
            trial.unreadable += 1
            continue
        trial.looked_at += 1
        if (found := rules.first_match(facts, now)) is not None:
            trial.matched[found.rule.name] += 1
            if len(trial.hits) < keep:
                trial.hits.append(Hit(message, found.rule))


def _facts(raw: bytes, message: ArchivedMessage, account_id: str | None, label_ids: Mapping[str, str]) -> MailFacts:
    return archived_facts(
        read_headers(raw),
        account_id=account_id,
        subject=message.subject,
        labels=message.labels,
        has_attachment=message.has_attachment,
        size_bytes=message.size,
        received_at=message.date,
        label_ids=label_ids,
    )
