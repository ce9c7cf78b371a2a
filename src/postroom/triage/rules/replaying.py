"""Rules and archived mail brought together for a trial: the archive knows accounts by address, not by id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from postroom.accounts.store import list_accounts
from postroom.archive.layout import account_name
from postroom.archive.model import ArchivedMessage
from postroom.archive.place import MailReader
from postroom.db import Tx
from postroom.domain.errors import BadInput
from postroom.triage.rules.engine import RuleSet
from postroom.triage.rules.messages import label_ids_of
from postroom.triage.rules.model import Rule, RuleDraft, ScopeKind, rule_of
from postroom.triage.rules.rows import StoredRule
from postroom.triage.rules.trying import Trial, try_rules
from postroom.triage.scopes import draft_named

UNSAID = ("star",)
"""Stands for the actions of a rule that is tried before anybody has decided what it does."""


@dataclass(frozen=True)
class Subject:
    """The rules to try, and what the control database knows that the archive does not."""

    rules: Sequence[Rule]
    label_ids: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By the archive's names of accounts."""


def subject_of(tx: Tx, rule_id: str, draft: RuleDraft) -> Subject:
    accounts = list_accounts(tx)
    labels = {account_name(account.email): label_ids_of(tx, account.id) for account in accounts}
    return Subject([rule_of(rule_id, draft_named(draft, {each.id: each.email for each in accounts}))], labels)


def saved_subject(tx: Tx, stored: StoredRule) -> Subject:
    if stored.draft is None:
        raise BadInput(f"rule {stored.name}", stored.problem or "cannot be read")
    return subject_of(tx, stored.id, stored.draft)


def mail_to_try(mail: Iterable[ArchivedMessage]) -> Iterator[ArchivedMessage]:
    """All but spam and trash, as a search does."""
    return (message for message in mail if not {"SPAM", "TRASH"}.intersection(message.labels))


def replay(
    subject: Subject,
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


def _with_archive_names(rules: Sequence[Rule]) -> list[Rule]:
    return [
        replace(rule, scope=replace(rule.scope, ref=account_name(rule.scope.ref)))
        if rule.scope.kind is ScopeKind.ACCOUNT and "@" in rule.scope.ref
        else rule
        for rule in rules
    ]
