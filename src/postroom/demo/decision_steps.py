"""Steps about new mail: a burst in which urgent mail is served first, then rules, model, approval and undo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import select

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalQuestion, ApprovalVerdict
from postroom.actions.browsing import ActionFilter, Listed, list_actions
from postroom.actions.lifecycle import Action
from postroom.actions.undo import request_undo
from postroom.db import Tx
from postroom.db.tables.mail import messages
from postroom.db.tables.queue import jobs
from postroom.db.tables.triage import decisions
from postroom.demo.demo_session import (
    ARRIVALS,
    CONFIRMATION,
    FOR_RULES,
    MORNING,
    OFFER,
    PRIZE,
    RULES,
    DemoSession,
    SoFar,
)
from postroom.domain.actions import ActionStatus, ActionType, LabelParameters
from postroom.domain.extras import Extra, ExtraMissing, is_installed
from postroom.domain.jobs import CLASSIFY
from postroom.domain.terms import TIERS, Tier
from postroom.triage.decision import DecidedBy
from postroom.triage.rules import store
from postroom.triage.rules.rule import parse_draft


@dataclass(frozen=True)
class Served:
    tier: Tier
    subject: str
    is_full: bool
    """The model was shown its text."""
    waited: float
    started_at: datetime


@dataclass(frozen=True)
class Morning:
    served: tuple[Served, ...]
    """In the order in which their turn came."""

    @property
    def by_tier(self) -> Mapping[Tier, int]:
        return Counter(each.tier for each in self.served)

    @property
    def doctors_place(self) -> int:
        """1 is first; messages whose turn came in the same instant share a place."""
        [doctor] = [each for each in self.served if each.subject == CONFIRMATION.subject]
        return 1 + sum(each.started_at < doctor.started_at for each in self.served)

    @property
    def lines(self) -> tuple[str, ...]:
        spared = sum(not each.is_full for each in self.served)
        return (
            *(f"{tier:<14} {self.by_tier[tier]:>3}, {self._longest(tier)}" for tier in TIERS),
            f"the doctor's came last of {len(self.served)}, and its turn was number {self.doctors_place}",
            f"{spared} newsletters were kept as metadata: no model, no cost",
        )

    def _longest(self, tier: Tier) -> str:
        return f"the longest waited {max((each.waited for each in self.served if each.tier is tier), default=0):.2f} s"


async def a_burst_in_the_morning(scene: DemoSession) -> Morning:
    ids = scene.deliver(*MORNING)

    async def all_decided() -> Morning | SoFar:
        served = await scene.read(lambda tx: _served(tx, ids))
        return Morning(tuple(served)) if len(served) == len(ids) else SoFar(len(served))

    return await scene.until(all_decided, "the morning's mail to be decided")


def _served(tx: Tx, ids: Sequence[str]) -> list[Served]:
    """Those of the messages that are decided, by when their turn came."""
    query = select(messages).join(decisions, decisions.c.message_id == messages.c.id)
    mail = {_key(row): row for row in tx.execute(query.where(messages.c.external_event_id.in_(ids)))}
    turns = select(jobs).where(jobs.c.idempotency_key.in_(mail)).order_by(jobs.c.started_at, jobs.c.id)
    return [_one(mail[row.idempotency_key], row) for row in tx.execute(turns)]


def _key(message: Any) -> str:
    return f"{CLASSIFY.name}:{message.account_id}:{message.id}"


def _one(message: Any, job: Any) -> Served:
    waited = max((job.started_at - job.queued_at).total_seconds(), 0.0)
    is_full = message.ingestion_tier == "full"
    return Served(Tier(message.policy_tier), message.subject, is_full, waited, job.started_at)


_BY = {DecidedBy.RULE: "rule", DecidedBy.MODEL: "model", DecidedBy.LEARNED: "learned", DecidedBy.UNDECIDED: "none"}
_STANDING = {ActionStatus.COMPLETED: "done", ActionStatus.APPROVED_PENDING: "needs approval"}


@dataclass(frozen=True)
class Decided:
    subject: str
    by: str
    action: str
    status: ActionStatus


@dataclass(frozen=True)
class Decisions:
    decided: tuple[Decided, ...]
    left_out: str = ""
    """Why the model was given nothing to decide."""

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(each.subject for each in self.decided if each.status is ActionStatus.APPROVED_PENDING)

    @property
    def lines(self) -> tuple[str, ...]:
        lines = (
            f"{each.subject[:33]:<33}  {each.by:<5}  {each.action:<17}  {_STANDING.get(each.status, each.status)}"
            for each in self.decided
        )
        return (*lines, *([self.left_out] if self.left_out else []))


@dataclass(frozen=True)
class Approved:
    subject: str
    reasons: tuple[str, ...]
    labels_after: frozenset[str]
    still_waiting: tuple[str, ...]

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            f"asked about: {self.subject}",
            *(f"  because {reason}" for reason in self.reasons),
            "approved by the demonstration; the mailbox has it in the trash now",
            *(
                [f"left for you: {len(self.still_waiting)}, among them {self.still_waiting[-1]!r}"]
                if self.still_waiting
                else []
            ),
        )


@dataclass(frozen=True)
class Undone:
    subject: str
    before: frozenset[str]
    after: frozenset[str]

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            f"{self.subject}: a rule had archived it",
            f"  labels before the undo  {_listed(self.before)}",
            f"  labels after            {_listed(self.after)}",
        )


async def rules_and_model(scene: DemoSession) -> Decisions:
    drafts = [parse_draft(rule) for rule in RULES]
    now = scene.app.clock.now()
    await scene.write(lambda tx: [store.add_rule(tx, draft, scene.who, now) for draft in drafts])
    has_model = is_installed(Extra.MODELS)
    ids = scene.deliver(*(ARRIVALS if has_model else FOR_RULES))
    left_out = "" if has_model else ExtraMissing(Extra.MODELS, "skipped: asking a model").message

    async def settled() -> Decisions | SoFar:
        decided = await scene.read(lambda tx: _decided(tx, ids))
        return Decisions(tuple(decided), left_out) if len(decided) == len(ids) else SoFar(len(decided))

    return await scene.until(settled, "the new mail to be decided")


async def approve_what_waits(scene: DemoSession) -> Approved:
    """Answers one of the two questions; the other stays open for the visitor."""
    questions = await scene.read(approvals.list_questions)
    prize = next(question for question in questions if question.subject == PRIZE.subject)
    queue, action = scene.app.queue, prize.action
    await scene.write(lambda tx: approvals.answer(tx, queue, action.id, ApprovalVerdict.APPROVE, scene.who))

    async def is_done() -> frozenset[str] | None:
        labels = scene.labels_at_source(action.gmail_id)
        return labels if "TRASH" in labels and await _status(scene, action.id) is ActionStatus.COMPLETED else None

    labels = await scene.until(is_done, "the approved action")
    waiting = tuple(_subject(question) for question in await scene.read(approvals.list_questions))
    return Approved(PRIZE.subject, action.reasons, labels, waiting)


async def undo_an_action(scene: DemoSession) -> Undone:
    done = await scene.read(lambda tx: list_actions(tx, ActionFilter(status=ActionStatus.COMPLETED)))
    archived = next(each for each in done if each.subject == OFFER.subject)
    gmail_id, before = archived.action.gmail_id, scene.labels_at_source(archived.action.gmail_id)
    undo_id = await scene.write(lambda tx: request_undo(tx, scene.app.queue, archived.action.id, scene.who))

    async def is_back() -> frozenset[str] | None:
        labels = scene.labels_at_source(gmail_id)
        return labels if "INBOX" in labels and await _status(scene, undo_id) is ActionStatus.COMPLETED else None

    return Undone(OFFER.subject, before, await scene.until(is_back, "the undo"))


def _decided(tx: Tx, ids: Sequence[str]) -> list[Decided]:
    """Those whose action has come as far as it comes by itself."""
    columns = (messages.c.id, messages.c.external_event_id, messages.c.subject, decisions.c.source)
    query = select(*columns).join(decisions, decisions.c.message_id == messages.c.id)
    found = tx.execute(query.where(messages.c.external_event_id.in_(ids))).all()
    rows = sorted(found, key=lambda row: ids.index(row.external_event_id))
    actions = {each.action.message_id: each for each in list_actions(tx, ActionFilter(limit=200))}
    return [
        Decided(row.subject, _BY[DecidedBy(row.source)], _word(actions[row.id].action), actions[row.id].action.status)
        for row in rows
        if _is_settled(actions, row.id)
    ]


def _is_settled(actions: Mapping[str | None, Listed], message_id: str) -> bool:
    return message_id in actions and actions[message_id].action.status in (*_STANDING, ActionStatus.FAILED)


async def _status(scene: DemoSession, action_id: str) -> ActionStatus:
    question = await scene.read(lambda tx: approvals.get_question(tx, action_id))
    return question.action.status


def _word(action: Action) -> str:
    parameters = action.wanted.parameters
    if isinstance(parameters, LabelParameters) and action.type is ActionType.APPLY_LABEL:
        return f"Label “{parameters.label}”"
    return action.type.replace("_", " ").capitalize()


def _subject(question: ApprovalQuestion) -> str:
    return question.subject or question.action.gmail_id


def _listed(labels: frozenset[str]) -> str:
    return ", ".join(sorted(labels))
