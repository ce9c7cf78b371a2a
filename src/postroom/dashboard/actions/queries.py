"""Actions on mail and the decisions behind them: lists, one action with its whole history, snoozed mail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pydantic import Field
from sqlalchemy import ColumnElement, select

from postroom.accounts.account import list_accounts
from postroom.accounts.mailbox_state import labels_of
from postroom.actions import approvals, browsing, lifecycle, scheduling, snoozes, undo, wording
from postroom.actions.browsing import ActionFilter, Listed
from postroom.actions.lifecycle import Action
from postroom.actions.snoozes import Snooze, SnoozeState
from postroom.actions.wording import LetterPreview
from postroom.contract.tool import Id
from postroom.dashboard.paging import ListQuery, Paged
from postroom.db import Tx
from postroom.db.tables.triage import decisions, rules
from postroom.domain.actions import ActionStatus, ActionType, Origin
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.ids import parse_id
from postroom.queue.inspection import StepRecord, show_job


@dataclass(frozen=True, slots=True)
class DecisionMade:
    source: str
    """deterministic: a rule; learned: local triage; llm: the model; none: no action was wanted."""
    action: str
    parameters: Mapping[str, Any]
    reason: str
    confidence: float | None
    rule_id: str | None
    """The rule that decided; null also if it was removed since."""
    rule_name: str | None
    needs_review: bool
    reasons: Sequence[Any]
    """Why what it wants needs approval."""
    created_at: datetime


def decision_about(tx: Tx, message_id: str) -> DecisionMade | None:
    return _decision(tx, decisions.c.message_id == message_id)


def decision_with_id(tx: Tx, decision_id: str) -> DecisionMade | None:
    return _decision(tx, decisions.c.id == decision_id)


def _decision(tx: Tx, which: ColumnElement[bool]) -> DecisionMade | None:
    query = select(decisions, rules.c.id.label("known_rule")).join(
        rules, rules.c.id == decisions.c.rule_id, isouter=True
    )
    row = tx.execute(query.where(which)).one_or_none()
    if row is None:
        return None
    return DecisionMade(
        source=row.source,
        action=row.action,
        parameters=row.parameters,
        reason=row.reason,
        confidence=row.confidence,
        rule_id=row.known_rule,
        rule_name=row.rule_name,
        needs_review=row.needs_review,
        reasons=row.reasons,
        created_at=row.created_at,
    )


MOST_SNOOZES = 200


@dataclass(frozen=True, slots=True)
class ActionRow:
    id: str
    summary: str
    """What is done, in words."""
    type: ActionType
    status: ActionStatus
    is_undone: bool
    origin: Origin
    wanted_by: str
    rule_id: str | None
    account: str
    """The mailbox's address."""
    message: str
    """The mailbox's own id of the message."""
    subject: str | None
    """Null where the message is no longer known here."""
    sender: str | None
    error: str | None
    created_at: datetime
    finished_at: datetime | None


class ActionsQuery(ListQuery):
    account: str | None = Field(None, max_length=320, description="only this mailbox")
    status: ActionStatus | None = None
    type: ActionType | None = None
    by: Origin | None = Field(None, description="who asked for it")
    rule: Id | None = Field(None, description="only actions of the rule with this id")
    text: str | None = Field(None, max_length=200, description="in the subject or sender of the message")


@dataclass(frozen=True, slots=True)
class ActionLabels:
    """Of the message, by name, around the change."""

    before: Sequence[str]
    after: Sequence[str] | None
    """Null where it was not recorded."""
    added: Sequence[str]
    removed: Sequence[str]


@dataclass(frozen=True, slots=True)
class ApprovalState:
    reasons: Sequence[str]
    """Why approval was needed."""
    answered_by: str | None
    answered_at: datetime | None
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class SnoozeRow:
    id: str
    """The id of the action that snoozed it."""
    account: str
    message: str
    subject: str | None
    until: datetime
    label: str
    """The label that it has while snoozed."""
    state: SnoozeState


@dataclass(frozen=True, slots=True)
class ActionDetail:
    action: ActionRow
    parameters: Mapping[str, Any]
    letter: LetterPreview | None
    """The mail that is sent in the owner's name."""
    decision: DecisionMade | None
    """Null if a person asked for it, or if the decision is no longer on record."""
    rule_exists: bool
    labels: ActionLabels | None
    approval: ApprovalState | None
    snooze: SnoozeRow | None
    job_id: str | None
    steps: Sequence[StepRecord]
    can_undo: bool
    why_not: str | None
    """Why it cannot be undone."""
    undo: ActionRow | None
    """The action that undoes it, or has undone it."""
    original: ActionRow | None
    """The action that this undoes."""
    can_retry: bool
    can_dismiss: bool
    can_cancel: bool


def list_actions(tx: Tx, wanted: ActionsQuery) -> Paged[ActionRow]:
    """Newest first. If few of very many match, a page may be short and still have a next one."""
    emails = addresses(tx)
    which = ActionFilter(
        status=wanted.status,
        type=wanted.type,
        origin=wanted.by,
        rule=wanted.rule,
        account_id=None if wanted.account is None else _account_id(emails, wanted.account),
        text=wanted.text,
        before_id=None if wanted.after is None else parse_id(wanted.after, "after"),
        limit=wanted.limit,
    )
    page = browsing.look_back(tx, which)
    return Paged([row_of(each, emails) for each in page.found], page.next)


def action_row(tx: Tx, action_id: str) -> ActionRow:
    return row_of(browsing.show(tx, action_id), addresses(tx))


def action_detail(tx: Tx, action_id: str) -> ActionDetail:
    emails, listed = addresses(tx), browsing.show(tx, action_id)
    action = listed.action
    obstacle = undo.why_not_now(tx, action)
    steps = _steps(tx, action.job_id)
    snooze = snoozes.find_snooze(tx, action.id)
    return ActionDetail(
        action=row_of(listed, emails),
        parameters=action.parameters,
        letter=approvals.get_question(tx, action.id).letter,
        decision=None if action.decision_id is None else decision_with_id(tx, action.decision_id),
        rule_exists=_rule_exists(tx, action.rule_id),
        labels=_labels(tx, action, steps),
        approval=_approval(action),
        snooze=None if snooze is None else snooze_row(snooze, emails),
        job_id=action.job_id if steps else None,
        steps=steps,
        can_undo=obstacle is None,
        why_not=obstacle,
        undo=_undo(tx, action, emails),
        original=_original(tx, action, emails),
        can_retry=action.status in lifecycle.RETRYABLE,
        can_dismiss=action.status is ActionStatus.FAILED,
        can_cancel=action.status in (ActionStatus.QUEUED, ActionStatus.APPROVED_PENDING),
    )


def snoozed_mail(tx: Tx) -> list[SnoozeRow]:
    """By the time of its return."""
    emails = addresses(tx)
    return [snooze_row(each, emails) for each in snoozes.waiting_snoozes(tx, most=MOST_SNOOZES)]


def snooze_of(tx: Tx, action_id: str) -> SnoozeRow:
    found = snoozes.find_snooze(tx, action_id)
    if found is None:
        raise NotFound("action", f"{action_id} is not a snooze")
    return snooze_row(found, addresses(tx))


def addresses(tx: Tx) -> dict[str, str]:
    """The addresses of all mailboxes by account id, also of removed ones: their actions stay on record."""
    return {account.id: account.email for account in list_accounts(tx, with_removed=True)}


def row_of(listed: Listed, emails: Mapping[str, str]) -> ActionRow:
    action = listed.action
    title = wording.title(action)
    return ActionRow(
        id=action.id,
        summary=title[:1].upper() + title[1:],
        type=action.type,
        status=action.status,
        is_undone=listed.is_undone,
        origin=action.origin,
        wanted_by=action.wanted_by,
        rule_id=action.rule_id,
        account=emails.get(action.account_id, action.account_id),
        message=action.gmail_id,
        subject=listed.subject,
        sender=listed.sender,
        error=action.error,
        created_at=action.created_at,
        finished_at=action.finished_at,
    )


def snooze_row(snooze: Snooze, emails: Mapping[str, str]) -> SnoozeRow:
    return SnoozeRow(
        id=snooze.action_id,
        account=emails.get(snooze.account_id, snooze.account_id),
        message=snooze.gmail_id,
        subject=snooze.subject,
        until=snooze.until,
        label=snooze.label_name,
        state=snooze.state,
    )


def _account_id(emails: Mapping[str, str], email: str) -> str:
    for account_id, known in emails.items():
        if known == email:
            return account_id
    raise BadInput("account", f"there is no mailbox {email}")


def _steps(tx: Tx, job_id: str | None) -> list[StepRecord]:
    """Empty once the job is no longer kept."""
    if job_id is None:
        return []
    try:
        return show_job(tx, job_id)[1]
    except NotFound:
        return []


def _labels(tx: Tx, action: Action, steps: Sequence[StepRecord]) -> ActionLabels | None:
    if action.pre_image is None or "labels" not in action.pre_image:
        return None
    names = {label.label_id: label.name for label in labels_of(tx, action.account_id)}
    before = frozenset(map(str, action.pre_image["labels"] or ()))
    change = next((_change(step) for step in reversed(steps) if _change(step) is not None), None)
    added, removed = change or (frozenset[str](), frozenset[str]())

    def named(ids: frozenset[str]) -> list[str]:
        return sorted(names.get(label_id, label_id) for label_id in ids)

    after = None if change is None else named((before | added) - removed)
    return ActionLabels(named(before), after, named(added), named(removed))


def _change(step: StepRecord) -> tuple[frozenset[str], frozenset[str]] | None:
    """The labels that a step added and removed."""
    if not isinstance(step.result, dict) or not {"added", "removed"} <= step.result.keys():
        return None
    return frozenset(map(str, step.result["added"])), frozenset(map(str, step.result["removed"]))


def _approval(action: Action) -> ApprovalState | None:
    if not action.reasons and action.answered_by is None:
        return None
    return ApprovalState(action.reasons, action.answered_by, action.answered_at, action.expires_at)


def _undo(tx: Tx, action: Action, emails: Mapping[str, str]) -> ActionRow | None:
    found = scheduling.undo_of(tx, action.id)
    return None if found is None else row_of(browsing.show(tx, found.id), emails)


def _original(tx: Tx, action: Action, emails: Mapping[str, str]) -> ActionRow | None:
    found = scheduling.find_original(tx, action.id)
    return None if found is None else row_of(browsing.show(tx, found), emails)


def _rule_exists(tx: Tx, rule_id: str | None) -> bool:
    return rule_id is not None and tx.execute(select(rules.c.id).where(rules.c.id == rule_id)).first() is not None
