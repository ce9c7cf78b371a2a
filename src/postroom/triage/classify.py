"""The job `classify`: one message, judged once: by rules, then by what was learned, and then by the model.

Decision, ordered actions and the job's end are one transaction. The model is asked only if the message is here in
full, local triage does not decide it, a model is configured and switched on, and the budget has room; the money of a
call is settled as soon as it ends. Mail of a backfill job waits for room without a worker; live mail that may not wait
is left to a person.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from postroom import kill_switch
from postroom.db import Tx
from postroom.domain.actions import ActionOrder, Origin, ReviewCause
from postroom.domain.errors import BadInput, Fatal, PostroomError
from postroom.domain.ids import parse_id
from postroom.domain.money import Denial, Denied, Micros, NewCall
from postroom.queue import JobContext, PutOff
from postroom.queue.job import Json
from postroom.settings import ModelSettings, SafetySettings
from postroom.telemetry.metrics import meter
from postroom.triage import records
from postroom.triage.briefing import briefing_for, contacts_among
from postroom.triage.choices import ModelChoice, UnusableAnswer, read_answer, read_call
from postroom.triage.decision import DecidedBy, Decision, for_review, left_alone
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.questions import CallBudget, CallFailed, ModelAnswer, ModelQuestion, ModelRefused, ToolCall
from postroom.triage.records import EarlierAnswers, TriageMessage
from postroom.triage.rules.engine import Match
from postroom.triage.rules.facts import MessageFacts
from postroom.triage.rules.store import Version
from postroom.triage.safety import decided_by_model, decided_by_rule
from postroom.triage.signs import TextSigns

if TYPE_CHECKING:
    from postroom.triage.learning.service import Consideration, LearnedTriage
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


_SPENDING = "spending"
"""Calls are reserved and settled in shared transactions: each of them locks the row of the day."""
_MOST_CALLS = 2
"""An answer that cannot be used is asked for once more."""
_NO_MODEL = "No rule decides it, and no model is set up to be asked."
_SWITCHED_OFF = "No rule decides it, and the model is switched off."
_UNUSABLE = "No rule decides it, and the model cannot be asked."
_RULES_ALONE = "No rule decides it, and its backfill job runs on rules alone."
_NOT_OURS = "its mailbox is no account of this installation, so nothing is done there"


class Rules(Protocol):
    """The owner's rules, as they stand now."""

    def version(self, tx: Tx) -> Version:
        """Which rules are in force."""

    async def match(self, facts: MessageFacts, version: Version) -> Match | None:
        """The first of that version or a later one that matches; one that fails matches nothing and harms no other."""


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
    """The model may not be asked."""

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision.reason)
        self.decision = decision


@dataclass(frozen=True, slots=True)
class _Briefed:
    """What was read about a message before the model is asked."""

    briefing: Briefing
    contacts: Sequence[str]
    signs: TextSigns | None = None
    """Where they were looked for already."""


class Classifier:
    def __init__(
        self,
        rules: Rules,
        model: ModelClient | None,
        budget: CallBudget,
        sink: ActionSink,
        ways: ClassifierOptions,
        learned: LearnedTriage | None = None,
    ) -> None:
        self._learned = learned
        self._rules = rules
        self._model = model
        self._budget = budget
        self._sink = sink
        self._ways = ways

    async def __call__(self, context: JobContext) -> Json:
        message_id, started_at = _message_id(context), context.queue.clock.now()
        message, rules = await context.queue.database.read(
            lambda tx: (records.load_message(tx, message_id), self._rules.version(tx))
        )
        if message is None:
            return {"outcome": "gone"}
        if message.is_decided:
            return {"outcome": "decided before"}
        decision, considered = await self._decide(context, message, rules)
        if decision.actions and message.account_id is None:
            decision = replace(decision, needs_review=True, obstacle=_NOT_OURS, cause=ReviewCause.NO_ACCOUNT)

        def finish(tx: Tx) -> Json:
            context.record_step(tx, "decide", started_at, {"by": decision.source, "action": decision.action})
            return self._finish(tx, context, message, decision, considered)

        await context.complete(finish)
        count_decision(decision)
        return None

    async def _decide(
        self, context: JobContext, message: TriageMessage, rules: Version
    ) -> tuple[Decision, Consideration | None]:
        """Also what local triage makes of it, where it came to that."""
        if message.is_outbound:
            return left_alone("You sent it yourself."), None
        if message.is_gone:
            return left_alone("It is no longer in the mailbox."), None
        if (match := await self._rules.match(message.facts, rules)) is not None:
            return decided_by_rule(match.rule, self._ways.safety), None
        if message.is_metadata_only:
            return left_alone("No rule decides it, and only its envelope was taken in."), None
        database, learned = context.queue.database, self._learned
        uses_model, news, earlier = await database.read(
            lambda tx: (
                self._uses_model(tx, message),
                None if learned is None else learned.news(tx, message),
                records.earlier_answers(tx, message.id),
            )
        )
        if not uses_model:
            return left_alone(_RULES_ALONE), None
        if learned is None or news is None:
            return await self._by_model(context, message, None, earlier), None
        considered = await learned.consider(database, message, news, self._ways.model.thread_messages)
        known = considered.decision
        if known is not None and not considered.is_check:
            return known, considered
        briefed = _Briefed(considered.briefing, considered.about.contacts, considered.about.signs)
        decision = await self._by_model(context, message, briefed, earlier)
        # A check that could not be made, for example for want of money, is none: what was learned decides.
        return (known if known is not None and decision.source is DecidedBy.UNDECIDED else decision), considered

    def _uses_model(self, tx: Tx, message: TriageMessage) -> bool:
        return message.backfill_job_id is None or self._budget.uses_model(tx, message.backfill_job_id)

    def _briefed(self, tx: Tx, message: TriageMessage) -> _Briefed:
        briefing = briefing_for(tx, message, self._ways.model.thread_messages)
        return _Briefed(briefing, contacts_among(tx, message))

    async def _by_model(
        self, context: JobContext, message: TriageMessage, briefed: _Briefed | None, earlier: EarlierAnswers
    ) -> Decision:
        try:
            if (model := self._model) is None:
                why = for_review(self._ways.no_model, ReviewCause.NO_MODEL)
                return await context.write_or_postpone(lambda tx: self._hold(tx, context, message, why))
            context.take_slot()
            return await self._ask_twice(model, context, message, briefed, earlier)
        except _NotAsked as unasked:
            return unasked.decision
        except ModelRefused as error:
            return for_review(error.message, ReviewCause.MODEL_REFUSED)

    async def _ask_twice(
        self,
        model: ModelClient,
        context: JobContext,
        message: TriageMessage,
        briefed: _Briefed | None,
        earlier: EarlierAnswers,
    ) -> Decision:
        """What the model wants. An answer that was paid for before counts, also one that could not be used."""
        if briefed is None:
            briefed = await context.queue.database.read(lambda tx: self._briefed(tx, message))
        briefing = briefed.briefing
        choice = None if earlier.usable is None else _read(earlier.usable, briefing)
        problem = choice if isinstance(choice, str) else next(reversed(earlier.problems), None)
        for _ in range(_MOST_CALLS - len(earlier.problems)):
            if not isinstance(choice, ModelChoice):
                question = question_about(message.mail, briefing, problem)
                choice = await self._ask(model, context, message, question, briefing, earlier)
            if isinstance(choice, ModelChoice):
                safety, known = self._ways.safety, briefed.contacts
                return decided_by_model(choice, message.mail, briefing, safety, known, signs=briefed.signs)
            problem = choice
        return for_review(f"The model's answer could not be used, twice: {problem}.", ReviewCause.UNUSABLE_ANSWER)

    async def _ask(
        self,
        model: ModelClient,
        context: JobContext,
        message: TriageMessage,
        question: ModelQuestion,
        briefing: Briefing,
        earlier: EarlierAnswers,
    ) -> ModelChoice | str:
        """What the model chose, or what is wrong with its answer."""
        write = context.queue.database.write
        begun: str | Decision = await context.write_or_postpone(
            lambda tx: self._begin(tx, model, context, message, question, earlier), together=_SPENDING
        )
        if isinstance(begun, Decision):
            raise _NotAsked(begun)
        outcome = await model.ask(question)
        count_call(model.provider, outcome)
        # From here on without a look at the job's lease: what was paid for is booked, also when another worker has
        # the job by now.
        if isinstance(outcome, CallFailed):
            await write(lambda tx: self._fail(tx, begun, outcome), together=_SPENDING)
            raise outcome.error
        found = _read_answer(outcome, briefing)
        problem = None if isinstance(found, ModelChoice) else found
        await write(lambda tx: self._end(tx, begun, outcome, problem), together=_SPENDING)
        return found

    def _begin(
        self,
        tx: Tx,
        model: ModelClient,
        context: JobContext,
        message: TriageMessage,
        question: ModelQuestion,
        earlier: EarlierAnswers,
    ) -> str | Decision | PutOff:
        """Reserve the call and record it: its id, or what becomes of the message where the model is not asked."""
        if not kill_switch.model_switch(tx).on:
            return self._hold(tx, context, message, for_review(_SWITCHED_OFF, ReviewCause.MODEL_OFF))
        now, job_id, most = context.queue.clock.now(), message.backfill_job_id, model.most_for(question)
        given = self._budget.reserve(tx, NewCall(most, now + model.answer_limit, message.id, job_id, context.job.id))
        if isinstance(given, Denied):
            return _not_asked(given)
        prompt = question.text if self._ways.model.keep_prompts_days > 0 else None
        call = (given.call_id, model.provider, model.name, most)
        records.begin_call(tx, records.NewModelCall(*call, message.id, job_id, prompt, earlier.has_open), now)
        return given.call_id

    def _hold(self, tx: Tx, context: JobContext, message: TriageMessage, review: Decision) -> Decision | PutOff:
        """The model cannot be asked: a person is, or mail of a backfill job waits until it can be."""
        job_id = message.backfill_job_id
        if job_id is None:
            return review
        call = NewCall(Micros(0), context.queue.clock.now(), message.id, job_id, context.job.id)
        return _not_asked(self._budget.hold(tx, call, review.reason))

    def _end(self, tx: Tx, call_id: str, answer: ModelAnswer, problem: str | None) -> None:
        records.end_call(tx, call_id, answer, problem)
        self._budget.settle(tx, call_id, answer.cost)

    def _fail(self, tx: Tx, call_id: str, failed: CallFailed) -> None:
        records.fail_call(tx, call_id, failed)
        self._budget.settle(tx, call_id, None if failed.may_have_cost else Micros(0))

    def _finish(
        self,
        tx: Tx,
        context: JobContext,
        message: TriageMessage,
        decision: Decision,
        considered: Consideration | None,
    ) -> Json:
        if decision.source in (DecidedBy.MODEL, DecidedBy.LEARNED):
            switch = kill_switch.model_switch(tx)
            if not switch.on:
                decision = decision.asking(f"the model was {switch.reason} while it was asked")
        decision_id = records.record_decision(tx, message, decision, context.queue.clock.now())
        records.forget_answers(tx, message.id)
        if message.is_listed:
            self._budget.decided(tx, message.id, message.backfill_job_id)
        if decision_id is None:
            return {"outcome": "decided before"}
        if self._learned is not None and considered is not None:
            self._learned.record(tx, context.queue, message, considered, decision)
        if decision.actions and decision.obstacle is None:
            self._sink.accept(tx, self._order(message, decision, decision_id))
        return {"outcome": "review" if decision.needs_review else "decided", "action": decision.action}

    def _order(self, message: TriageMessage, decision: Decision, decision_id: str) -> ActionOrder:
        by_rule = decision.source is DecidedBy.RULE
        by_model = "local triage" if decision.source is DecidedBy.LEARNED else f"model {self._name}"
        return ActionOrder(
            account_id=str(message.account_id),
            message_id=message.id,
            gmail_id=message.gmail_id,
            thread_id=message.thread_id,
            decision_id=decision_id,
            origin=Origin.RULE if by_rule else Origin.MODEL,
            wanted_by=f"rule {decision.rule_name}" if by_rule else by_model,
            proposals=decision.actions,
            rule_id=decision.rule_id,
            rule_name=decision.rule_name,
        )

    @property
    def _name(self) -> str:
        return self._model.name if self._model else ""


def _not_asked(denied: Denied) -> Decision | PutOff:
    match denied.denial:
        case Denial.WAIT:
            return PutOff(denied.until, denied.reason)
        case Denial.RULES_ONLY:
            return left_alone(f"No rule decides it, and {denied.reason}.")
        case Denial.NOT_ASKED:
            return for_review(f"No rule decides it, and {denied.reason}.", ReviewCause.BUDGET)


def _read_answer(answer: ModelAnswer, briefing: Briefing) -> ModelChoice | str:
    try:
        return read_answer(answer, briefing.offer)
    except UnusableAnswer as unusable:
        return str(unusable)


def _read(call: ToolCall, briefing: Briefing) -> ModelChoice | str:
    try:
        return read_call(call, briefing.offer)
    except UnusableAnswer as unusable:
        return str(unusable)


def _message_id(context: JobContext) -> str:
    try:
        return parse_id(str(context.job.payload.get("message_id")), "message_id")
    except (PostroomError, AttributeError, ValueError) as error:
        reason = error.message if isinstance(error, BadInput) else "it is no object"
        raise Fatal(f"The job's payload cannot be used: {reason}") from None
