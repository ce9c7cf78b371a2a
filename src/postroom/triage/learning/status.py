"""How local triage stands, for pages, programs and the command line: who decided lately, what was saved, and for each
answer how often it agreed with the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from postroom import kill_switch
from postroom.accounts.account import list_accounts
from postroom.db import Tx
from postroom.db.tables.learning import learned_rights
from postroom.db.tables.triage import decisions
from postroom.domain.money import Micros
from postroom.settings import LearningSettings
from postroom.triage.decision import DecidedBy
from postroom.triage.learning import store
from postroom.triage.learning.rights import RightState

PERIOD = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class AnswerStanding:
    """One answer of one account."""

    answer: str
    state: RightState
    since: datetime
    compared: int
    """Sure guesses in shadow that were compared with the model."""
    differed: int
    checked: int
    """Sure decisions that still went to the model."""
    check_differed: int
    decided: int
    saved_microdollars: Micros

    @property
    def disagreement(self) -> float | None:
        """The share of all held-out comparisons on which it differed; None before the first."""
        total = self.compared + self.checked
        return (self.differed + self.check_differed) / total if total else None


@dataclass(frozen=True, slots=True)
class AccountLearning:
    account: str
    labels: int
    """That have come so far."""
    fitted_at: datetime | None
    answers: Sequence[AnswerStanding]


@dataclass(frozen=True, slots=True)
class DecidedShares:
    """How many messages were decided by whom in the last 30 days."""

    by_rules: int
    learned: int
    by_model: int
    undecided: int

    @property
    def without_model(self) -> float | None:
        """The share of what would otherwise have gone to the model."""
        total = self.learned + self.by_model
        return self.learned / total if total else None


@dataclass(frozen=True, slots=True)
class LearningStatus:
    on: bool
    why_off: str | None
    sure: float
    check_share: float
    least_seen: int
    decided: DecidedShares
    saved_microdollars: Micros
    """Ever, estimated by what the model's decisions cost on average."""
    accounts: Sequence[AccountLearning]


def learning_status(tx: Tx, settings: LearningSettings, now: datetime) -> LearningStatus:
    accounts = _accounts(tx)
    why_off = _why_off(tx, settings)
    return LearningStatus(
        on=why_off is None,
        why_off=why_off,
        sure=settings.sure,
        check_share=settings.check_share,
        least_seen=settings.least_seen,
        decided=_shares(tx, now),
        saved_microdollars=Micros(sum(each.saved_microdollars for one in accounts for each in one.answers)),
        accounts=accounts,
    )


def _why_off(tx: Tx, settings: LearningSettings) -> str | None:
    if not settings.enabled:
        return "the settings switch it off (learning.enabled)"
    for what, switch in (("it", kill_switch.learning_switch(tx)), ("the model", kill_switch.model_switch(tx))):
        if not switch.on:
            return f"{what} was {switch.reason}"
    return None


def _shares(tx: Tx, now: datetime) -> DecidedShares:
    lately = decisions.c.created_at > now - PERIOD
    query = select(decisions.c.source, func.count()).where(lately).group_by(decisions.c.source)
    found = {source: int(count) for source, count in tx.execute(query)}
    return DecidedShares(
        by_rules=found.get(DecidedBy.RULE, 0),
        learned=found.get(DecidedBy.LEARNED, 0),
        by_model=found.get(DecidedBy.MODEL, 0),
        undecided=found.get(DecidedBy.UNDECIDED, 0),
    )


def _accounts(tx: Tx) -> list[AccountLearning]:
    emails = {account.id: account.email for account in list_accounts(tx)}
    standings: dict[str, list[AnswerStanding]] = {}
    for row in tx.execute(select(learned_rights).order_by(learned_rights.c.decided.desc(), learned_rights.c.answer)):
        standing = AnswerStanding(
            row.answer,
            RightState(row.state),
            row.since,
            row.compared,
            row.differed,
            row.checked,
            row.check_differed,
            row.decided,
            Micros(row.saved_microdollars),
        )
        standings.setdefault(row.account_id, []).append(standing)
    return [
        AccountLearning(emails[account_id], state.last_seq, state.fitted_at, standings.get(account_id, []))
        for account_id, state in store.all_learners(tx).items()
        if account_id in emails
    ]
