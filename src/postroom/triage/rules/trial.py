"""Replays rules over archived mail to show what they would have matched and done. Changes nothing.

Every message is judged as if it arrived now, with its present labels; mail that the owner wrote is skipped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice, takewhile
from types import MappingProxyType

from postroom.accounts.account import list_accounts
from postroom.accounts.mailbox_state import label_ids_by_name
from postroom.archive.backend import MailReader
from postroom.archive.messages import ArchivedMessage, account_name
from postroom.db import Tx
from postroom.domain.errors import BadInput, Fatal, Retryable
from postroom.mail.headers import Headers
from postroom.triage.rules import store
from postroom.triage.rules.engine import Match, RuleSet, compiled
from postroom.triage.rules.facts import MessageFacts, archived_facts, glance_at
from postroom.triage.rules.rows import StoredRule, draft_named
from postroom.triage.rules.rule import Rule, RuleDraft, ScopeKind, rule_of

OWN_MAIL = frozenset({"SENT", "DRAFT"})


@dataclass(frozen=True, slots=True)
class TrialHit:
    message: ArchivedMessage
    rule: Rule


@dataclass(slots=True)
class Trial:
    """What came of it so far."""

    looked_at: int = 0
    own: int = 0
    """Passed over, because the owner wrote them."""
    unreadable: int = 0
    """Passed over, because a rule asked for headers that the archive could not give; `postroom verify` says more."""
    matched: Counter[str] = field(default_factory=Counter)
    """By the rule's name."""
    hits: list[TrialHit] = field(default_factory=list)
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
            found = first_match_in(
                rules, archive, message, now, accounts.get(message.account), label_ids.get(message.account, {})
            )
        except (Fatal, Retryable):
            trial.unreadable += 1
            continue
        trial.looked_at += 1
        if found is not None:
            trial.matched[found.rule.name] += 1
            if len(trial.hits) < keep:
                trial.hits.append(TrialHit(message, found.rule))


def first_match_in(
    rules: RuleSet,
    archive: MailReader,
    message: ArchivedMessage,
    now: datetime,
    account_id: str | None,
    label_ids: Mapping[str, str],
) -> Match | None:
    """The first rule that holds for an archived message, found from columns where its rules ask for no header. Raises
    Fatal or Retryable where the archive cannot give what they ask for."""
    glance = glance_at(message, account_id, label_ids, lambda: archive.headers_of(message))
    if glance is not None and not rules.may_match(glance):
        return None
    if glance is not None and archive.senders_of(message) == glance.senders:
        return rules.first_match(glance, now)
    return rules.first_match(facts_in(archive, message, account_id, label_ids), now)


def facts_in(
    archive: MailReader,
    message: ArchivedMessage,
    account_id: str | None = None,
    label_ids: Mapping[str, str] = MappingProxyType({}),
) -> MessageFacts:
    return archived_facts(
        archive.headers_of(message),
        account_id=account_id,
        subject=message.subject,
        labels=message.labels,
        has_attachment=message.has_attachment,
        size_bytes=message.size,
        received_at=message.date,
        label_ids=label_ids,
    )


def decided_by_rules(
    tx: Tx, account_id: str, now: datetime
) -> Callable[[Headers, Collection[str], datetime, int, bool], bool]:
    """A test whether one of the owner's rules, as they are now, decides a message of the account."""
    rules = compiled([rule for rule in store.list_rules(tx) if rule.enabled])
    label_ids = label_ids_by_name(tx, account_id)

    def is_decided(
        headers: Headers, labels: Collection[str], received: datetime, size: int, has_attachment: bool
    ) -> bool:
        facts = archived_facts(
            headers,
            account_id=account_id,
            subject=headers.text("Subject") or "",
            labels=labels,
            has_attachment=has_attachment,
            size_bytes=size,
            received_at=received,
            label_ids=label_ids,
        )
        return rules.first_match(facts, now) is not None

    return is_decided


UNSAID = ("star",)
"""Stands for the actions of a rule that is tried before its actions are chosen."""


@dataclass(frozen=True)
class TrialSubject:
    """The rules to try, and what the control database knows that the archive does not."""

    rules: Sequence[Rule]
    label_ids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the archive's names of accounts."""


def subject_of(tx: Tx, rule_id: str, draft: RuleDraft) -> TrialSubject:
    accounts = list_accounts(tx)
    labels = {account_name(account.email): label_ids_by_name(tx, account.id) for account in accounts}
    return TrialSubject([rule_of(rule_id, draft_named(draft, {each.id: each.email for each in accounts}))], labels)


def saved_subject(tx: Tx, stored: StoredRule) -> TrialSubject:
    if stored.draft is None:
        raise BadInput(f"rule {stored.name}", stored.problem or "cannot be read")
    return subject_of(tx, stored.id, stored.draft)


def mail_to_try(mail: Iterable[ArchivedMessage]) -> Iterator[ArchivedMessage]:
    """All but spam and trash, as a search does."""
    return (message for message in mail if not {"SPAM", "TRASH"}.intersection(message.labels))


def replay(
    subject: TrialSubject,
    archive: MailReader,
    mail: Iterable[ArchivedMessage],
    now: datetime,
    trial: Trial,
    *,
    keep: int,
    show: Callable[[], None] = lambda: None,
) -> None:
    """Fill the trial; `show` is called for every message."""
    try_rules(
        RuleSet(_with_archive_names(subject.rules)),
        archive,
        mail,
        now,
        trial,
        keep=keep,
        accounts={name: name for name in archive.accounts()},
        label_ids=subject.label_ids,
        show=show,
    )


def replay_newest(
    subject: TrialSubject, archive: MailReader, now: datetime, newest: int, *, keep: int, longest_s: float
) -> tuple[Trial, bool]:
    """A trial on the newest mail that ends in time, and whether time ended it."""
    trial, end = Trial(), time.monotonic() + longest_s
    in_time = takewhile(lambda _: time.monotonic() < end, archive.newest_first())  # spam takes its time too
    replay(subject, archive, islice(mail_to_try(in_time), newest), now, trial, keep=keep)
    return trial, time.monotonic() >= end


def _with_archive_names(rules: Sequence[Rule]) -> list[Rule]:
    return [
        replace(rule, scope=replace(rule.scope, ref=account_name(rule.scope.ref)))
        if rule.scope.kind is ScopeKind.ACCOUNT and "@" in rule.scope.ref
        else rule
        for rule in rules
    ]
