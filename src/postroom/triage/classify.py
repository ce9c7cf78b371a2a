"""The job `classify`: one message, judged once. Rules come first; what none decides is shown to the model. Decision,
what it orders, its cost and the job's end are one transaction.

A model is asked only where the message is here in full, a model is configured and switched on, and the budget of the
message's backfill job has room. The switch is read in the transaction that begins each call, and again in the one that
orders what came of it: so it stops queued mail at once, and of a call that was under way nothing is done unasked. Each
call is in the books before it is made (`records.py`), so a process that dies between the call and its record may pay
twice, and the books then say so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from postroom import kill_switch
from postroom.db import Tx
from postroom.domain.actions import Order, Origin
from postroom.domain.errors import BadInput, Fatal, PostroomError
from postroom.domain.ids import parse_id
from postroom.domain.money import Micros
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.settings import ModelSettings, SafetySettings
from postroom.triage import instruments, records
from postroom.triage.asking import Answer, CallFailed, ModelRefused, Question
from postroom.triage.context import briefing_for, contacts_among
from postroom.triage.decision import Decision, Source, for_review, left_alone
from postroom.triage.judging import decided_by_model, decided_by_rule
from postroom.triage.prompt import Briefing, question_about
from postroom.triage.reading import Choice, UnusableAnswer, read_answer
from postroom.triage.records import Message
from postroom.triage.rules.engine import Match
from postroom.triage.rules.facts import MailFacts

if TYPE_CHECKING:  # its library is slow to load, and only needed where a model is configured
    from postroom.triage.model_client import ModelClient

_MOST_CALLS = 2
"""An answer that cannot be used is asked for once more."""
_NO_MODEL = "No rule decides it, and no model is set up to be asked."
_SWITCHED_OFF = "No rule decides it, and the model is switched off."
_UNUSABLE = "No rule decides it, and the model cannot be asked."
_NO_ROOM = "No rule decides it, and the day's budget of its backfill job has no room for the model."
_NOT_OURS = "its mailbox is no account of this installation, so nothing is done there"


class Rules(Protocol):
    """The owner's rules, as they stand now."""

    async def match(self, facts: MailFacts) -> Match | None:
        """The first that matches; one that fails matches nothing and harms no other."""


class Spending(Protocol):
    """The budget of backfill jobs. A message's money is set aside when it is taken in, and settled here."""

    def afford(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> bool:
        """See to it that so much in all is set aside for the message; False, and nothing done, if there is no room."""

    def settle(self, tx: Tx, job_id: str, message_ref: str, total: Micros) -> None:
        """So much in all was spent on the message; what was set aside beyond it is free again."""


class ActionDesk(Protocol):
    """Takes orders for what is to be done with mail, within the transaction that decides it."""

    def accept(self, tx: Tx, order: Order) -> list[str]:
        """Write down an action for each proposal, with the job that does it or asks a person; the actions' ids."""


@dataclass(frozen=True, slots=True)
class Ways:
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
        self, rules: Rules, model: ModelClient | None, spending: Spending, desk: ActionDesk, ways: Ways
    ) -> None:
        self._rules = rules
        self._model = model
        self._spending = spending
        self._desk = desk
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
        instruments.count_decision(decision)
        return None

    async def _decide(self, context: JobContext, message: Message) -> Decision:
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

    async def _ask_twice(self, model: ModelClient, context: JobContext, message: Message) -> Decision:
        wanted = self._ways.model.thread_messages
        read = context.queue.database.read
        briefing, known = await read(lambda tx: (briefing_for(tx, message, wanted), contacts_among(tx, message)))
        problem: str | None = None
        for _ in range(_MOST_CALLS):
            question = question_about(message.mail, briefing, problem)
            choice = await self._ask(model, context, message, question, briefing)
            if isinstance(choice, Choice):
                return decided_by_model(choice, message.mail, briefing, self._ways.safety, known)
            problem = choice
        return for_review(f"The model's answer could not be used, twice: {problem}.")

    async def _ask(
        self, model: ModelClient, context: JobContext, message: Message, question: Question, briefing: Briefing
    ) -> Choice | str:
        """What the model chose, or what is wrong with its answer."""
        most = model.meter.most(message.mail.text)
        if most is None:
            raise Fatal("What a call of the model costs is not known, so none is made.")
        call_id = await context.write(lambda tx: self._begin(tx, context, message, model, most, question))
        outcome = await model.ask(question)
        instruments.count_call(model.provider, outcome)
        if isinstance(outcome, CallFailed):
            await context.write(lambda tx: self._fail(tx, context, message, call_id, outcome))
            raise outcome.error
        found = _read(outcome, briefing)
        problem = None if isinstance(found, Choice) else found
        await context.write(lambda tx: records.end_call(tx, call_id, outcome, problem))
        return found

    def _begin(
        self, tx: Tx, context: JobContext, message: Message, model: ModelClient, most: Micros, question: Question
    ) -> str:
        if not kill_switch.model_switch(tx).on:
            raise _NotAsked(_SWITCHED_OFF)
        prompt = question.text if self._ways.model.keep_prompts_days > 0 else None
        call_id = records.begin_call(tx, message, model.provider, model.name, most, context.queue.clock.now(), prompt)
        job_id, total = message.backfill_job_id, records.spent_on(tx, message.id)
        if job_id is not None and not self._spending.afford(tx, job_id, message.id, total):
            raise _NotAsked(_NO_ROOM)
        return call_id

    def _fail(self, tx: Tx, context: JobContext, message: Message, call_id: str, failed: CallFailed) -> None:
        records.fail_call(tx, call_id, failed)
        gives_up = context.job.is_last_attempt or isinstance(failed.error, Fatal)
        if gives_up and not isinstance(failed.error, ModelRefused):
            self._settle(tx, message)

    def _finish(self, tx: Tx, context: JobContext, message: Message, decision: Decision) -> Json:
        switch = kill_switch.model_switch(tx)
        if decision.source is Source.MODEL and not switch.on:
            decision = decision.asking(f"the model was {switch.reason} while it was asked")
        decision_id = records.record_decision(tx, message, decision, context.queue.clock.now())
        self._settle(tx, message)
        if decision_id is None:
            return {"outcome": "decided before"}
        if decision.actions and decision.obstacle is None:
            self._desk.accept(tx, self._order(message, decision, decision_id))
        return {"outcome": "review" if decision.needs_review else "decided", "action": decision.action}

    def _order(self, message: Message, decision: Decision, decision_id: str) -> Order:
        by_rule = decision.source is Source.RULE
        return Order(
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

    def _settle(self, tx: Tx, message: Message) -> None:
        if message.backfill_job_id is not None:
            spent = records.spent_on(tx, message.id)
            self._spending.settle(tx, message.backfill_job_id, message.id, spent)


def _read(answer: Answer, briefing: Briefing) -> Choice | str:
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
