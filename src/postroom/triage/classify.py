"""The job `classify`: one message, judged once, by rules first and then by the model.

Decision, ordered actions, cost and the job's end are one transaction. The model is asked only if the message is
here in full, a model is configured and switched on, and the budget has room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from postroom import kill_switch
from postroom.db import Tx
from postroom.domain.actions import ActionOrder, Origin
from postroom.domain.errors import BadInput, Fatal, PostroomError
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros
from postroom.queue import JobContext
from postroom.queue.job import Json
from postroom.settings import ModelSettings, SafetySettings
from postroom.telemetry.metrics import meter
from postroom.triage import records
from postroom.triage.briefing import briefing_for, contacts_among
from postroom.triage.choices import ModelChoice, UnusableAnswer, read_answer
from postroom.triage.decision import DecidedBy, Decision, for_review, left_alone
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.questions import CallFailed, ModelAnswer, ModelQuestion, ModelRefused
from postroom.triage.records import TriageMessage
from postroom.triage.rules.engine import Match
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.safety import decided_by_model, decided_by_rule

if TYPE_CHECKING:
    from postroom.triage.model_client import ModelClient


_decisions = meter.create_counter(
    "postroom.triage.decisions", unit="{decision}", description="what was decided, by whom, and what became of it"
)
_calls = meter.create_counter("postroom.triage.model.calls", unit="{call}", description="questions to the model")
_cost = meter.create_counter("postroom.triage.model.cost", unit="{microdollar}", description="what answers cost")
_latency = meter.create_histogram("postroom.triage.model.latency", unit="s", description="from question to answer")


def count_decision(decision: Decision) -> None:
    outcome = "review" if decision.needs_review else "approval" if decision.reasons else "done"
    _decisions.add(1, {"source": decision.source.value, "outcome": outcome})


def count_call(provider: str, outcome: ModelAnswer | CallFailed) -> None:
    kind = "failed" if isinstance(outcome, CallFailed) else "answered"
    _calls.add(1, {"provider": provider, "outcome": kind})
    _latency.record(outcome.latency_ms / 1_000, {"provider": provider})
    if isinstance(outcome, ModelAnswer) and outcome.cost is not None:
        _cost.add(outcome.cost, {"provider": provider})


_MOST_CALLS = 2
"""An answer that cannot be used is asked for once more."""
_NO_MODEL = "No rule decides it, and no model is set up to be asked."
_SWITCHED_OFF = "No rule decides it, and the model is switched off."
_UNUSABLE = "No rule decides it, and the model cannot be asked."
_NO_ROOM = "No rule decides it, and the day's budget of its backfill job has no room for the model."
_NOT_OURS = "its mailbox is no account of this installation, so nothing is done there"


class Rules(Protocol):
    """The owner's rules, as they stand now."""

    async def match(self, facts: MessageFacts) -> Match | None:
        """The first that matches; one that fails matches nothing and harms no other."""


class BackfillBudget(Protocol):
    """The budget of backfill jobs. A message's money is set aside when it is taken in, and settled here."""

    def afford(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> bool:
        """See to it that so much in all is set aside for the message; False, and nothing done, if there is no room."""

    def settle(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> None:
        """So much in all was spent on the message; what was set aside beyond it is free again."""


class ActionSink(Protocol):
    """Takes orders for what is to be done with mail, within the transaction that decides it."""

    def accept(self, tx: Tx, order: ActionOrder) -> list[str]:
        """Write down an action for each proposal, with the job that does it or asks a person; the actions' ids."""


@dataclass(frozen=True, slots=True)
class ClassifierOptions:
    """How this installation wants its mail judged."""

    model: ModelSettings
    safety: SafetySettings
    model_problem: str | None = None
    """Why the configured model cannot be asked."""

    @property
    def no_model(self) -> str:
        return _NO_MODEL if self.model_problem is None else f"{_UNUSABLE} {self.model_problem}"


class _NotAsked(Exception):
    """The model may not be asked now; the message says why, for the person who reviews it."""


class Classifier:
    def __init__(
        self,
        rules: Rules,
        model: ModelClient | None,
        spending: BackfillBudget,
        sink: ActionSink,
        ways: ClassifierOptions,
    ) -> None:
        self._rules = rules
        self._model = model
        self._spending = spending
        self._sink = sink
        self._ways = ways

    async def __call__(self, context: JobContext) -> Json:
        message_id = _message_id(context)
        message = await context.queue.database.read(lambda tx: records.load_message(tx, message_id))
        if message is None:
            return {"outcome": "gone"}
        if message.is_decided:
            return {"outcome": "decided before"}
        decision = await self._decide(context, message)
        if decision.actions and message.account_id is None:
            decision = replace(decision, needs_review=True, obstacle=_NOT_OURS)
        await context.complete(lambda tx: self._finish(tx, context, message, decision))
        count_decision(decision)
        return None

    async def _decide(self, context: JobContext, message: TriageMessage) -> Decision:
        if message.is_outbound:
            return left_alone("You sent it yourself.")
        if message.is_gone:
            return left_alone("It is no longer in the mailbox.")
        if (match := await self._rules.match(message.facts)) is not None:
            return decided_by_rule(match.rule, self._ways.safety)
        if message.is_metadata_only:
            return left_alone("No rule decides it, and only its envelope was taken in.")
        if self._model is None:
            return for_review(self._ways.no_model)
        try:
            return await self._ask_twice(self._model, context, message)
        except _NotAsked as reason:
            return for_review(str(reason))
        except ModelRefused as error:
            return for_review(error.message)

    async def _ask_twice(self, model: ModelClient, context: JobContext, message: TriageMessage) -> Decision:
        wanted = self._ways.model.thread_messages
        read = context.queue.database.read
        briefing, known = await read(lambda tx: (briefing_for(tx, message, wanted), contacts_among(tx, message)))
        problem: str | None = None
        for _ in range(_MOST_CALLS):
            question = question_about(message.mail, briefing, problem)
            choice = await self._ask(model, context, message, question, briefing)
            if isinstance(choice, ModelChoice):
                return decided_by_model(choice, message.mail, briefing, self._ways.safety, known)
            problem = choice
        return for_review(f"The model's answer could not be used, twice: {problem}.")

    async def _ask(
        self,
        model: ModelClient,
        context: JobContext,
        message: TriageMessage,
        question: ModelQuestion,
        briefing: Briefing,
    ) -> ModelChoice | str:
        """What the model chose, or what is wrong with its answer."""
        most = model.meter.most(message.mail.text)
        if most is None:
            raise Fatal("What a call of the model costs is not known, so none is made.")
        call_id = await context.write(lambda tx: self._begin(tx, context, message, model, most, question))
        outcome = await model.ask(question)
        count_call(model.provider, outcome)
        if isinstance(outcome, CallFailed):
            await context.write(lambda tx: self._fail(tx, context, message, call_id, outcome))
            raise outcome.error
        found = _read(outcome, briefing)
        problem = None if isinstance(found, ModelChoice) else found
        await context.write(lambda tx: records.end_call(tx, call_id, outcome, problem))
        return found

    def _begin(
        self,
        tx: Tx,
        context: JobContext,
        message: TriageMessage,
        model: ModelClient,
        most: Micros,
        question: ModelQuestion,
    ) -> str:
        if not kill_switch.model_switch(tx).on:
            raise _NotAsked(_SWITCHED_OFF)
        prompt = question.text if self._ways.model.keep_prompts_days > 0 else None
        call_id = records.begin_call(tx, message, model.provider, model.name, most, context.queue.clock.now(), prompt)
        job_id, total = message.backfill_job_id, records.spent_on(tx, message.id)
        if job_id is not None and not self._spending.afford(tx, job_id, message.id, total):
            raise _NotAsked(_NO_ROOM)
        return call_id

    def _fail(self, tx: Tx, context: JobContext, message: TriageMessage, call_id: str, failed: CallFailed) -> None:
        records.fail_call(tx, call_id, failed)
        gives_up = context.job.is_last_attempt or isinstance(failed.error, Fatal)
        if gives_up and not isinstance(failed.error, ModelRefused):
            self._settle(tx, message)

    def _finish(self, tx: Tx, context: JobContext, message: TriageMessage, decision: Decision) -> Json:
        switch = kill_switch.model_switch(tx)
        if decision.source is DecidedBy.MODEL and not switch.on:
            decision = decision.asking(f"the model was {switch.reason} while it was asked")
        decision_id = records.record_decision(tx, message, decision, context.queue.clock.now())
        self._settle(tx, message)
        if decision_id is None:
            return {"outcome": "decided before"}
        if decision.actions and decision.obstacle is None:
            self._sink.accept(tx, self._order(message, decision, decision_id))
        return {"outcome": "review" if decision.needs_review else "decided", "action": decision.action}

    def _order(self, message: TriageMessage, decision: Decision, decision_id: str) -> ActionOrder:
        by_rule = decision.source is DecidedBy.RULE
        return ActionOrder(
            account_id=str(message.account_id),
            message_id=message.id,
            gmail_id=message.gmail_id,
            thread_id=message.thread_id,
            decision_id=decision_id,
            origin=Origin.RULE if by_rule else Origin.MODEL,
            wanted_by=f"rule {decision.rule_name}" if by_rule else f"model {self._model.name if self._model else ''}",
            proposals=decision.actions,
            rule_id=decision.rule_id,
            rule_name=decision.rule_name,
        )

    def _settle(self, tx: Tx, message: TriageMessage) -> None:
        if message.backfill_job_id is not None:
            spent = records.spent_on(tx, message.id)
            self._spending.settle(tx, message.backfill_job_id, message.id, spent)


def _read(answer: ModelAnswer, briefing: Briefing) -> ModelChoice | str:
    try:
        return read_answer(answer, briefing.offer)
    except UnusableAnswer as unusable:
        return str(unusable)


def _message_id(context: JobContext) -> str:
    try:
        return parse_id(str(context.job.payload.get("message_id")), "message_id")
    except (PostroomError, AttributeError, ValueError) as error:
        reason = error.message if isinstance(error, BadInput) else "it is no object"
        raise Fatal(f"The job's payload cannot be used: {reason}") from None
