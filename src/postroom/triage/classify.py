"""The job `classify`: one message, judged once. Decision, cost and the job's end are one transaction.

A model is asked only where the message is here in full, a model is configured, and the budget of the message's
backfill job has room. Each call is in the books before it is made (`records.py`), so a process that dies between the
call and its record may pay twice, and the books then say so.
"""

from __future__ import annotations

from typing import Protocol

from postroom.db import Tx
from postroom.domain.actions import Order
from postroom.domain.errors import BadInput, Fatal, PostroomError
from postroom.domain.ids import parse_id
from postroom.domain.metering import MOST_CALLS
from postroom.domain.money import Micros
from postroom.queue import JobContext
from postroom.queue.model import Json
from postroom.triage import records
from postroom.triage.decision import Decision, UnusableAnswer, for_review, left_alone, read_answer
from postroom.triage.model import Answer, CallFailed, ModelClient, ModelRefused
from postroom.triage.prompt import question_about
from postroom.triage.records import Message


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


class _NoRoom(Exception):
    """The budget has no room for another call."""


class Classifier:
    def __init__(self, model: ModelClient | None, spending: Spending) -> None:
        self._model = model
        self._spending = spending

    async def __call__(self, context: JobContext) -> Json:
        message_id = _message_id(context)
        message = await context.queue.database.read(lambda tx: records.load_message(tx, message_id))
        if message is None:
            return {"outcome": "gone"}
        if await context.queue.database.read(lambda tx: records.is_decided(tx, message_id)):
            return {"outcome": "decided before"}
        decision = await self._decide(context, message)
        await context.complete(lambda tx: self._finish(tx, context, message, decision))
        return None

    async def _decide(self, context: JobContext, message: Message) -> Decision:
        if message.is_metadata_only:
            return left_alone("only its envelope was taken in")
        if self._model is None:
            return left_alone("no model is configured")
        try:
            return await self._ask_twice(self._model, context, message)
        except _NoRoom:
            return for_review("the day's budget of its backfill job has no room for the model")
        except ModelRefused as error:
            return for_review(error.message)

    async def _ask_twice(self, model: ModelClient, context: JobContext, message: Message) -> Decision:
        problem: str | None = None
        for _ in range(MOST_CALLS):
            answer = await self._ask(model, context, message, problem)
            try:
                return read_answer(answer)
            except UnusableAnswer as unusable:
                problem = str(unusable)
        return for_review(f"the model's answer could not be used, twice: {problem}")

    async def _ask(self, model: ModelClient, context: JobContext, message: Message, problem: str | None) -> Answer:
        most = model.meter.most_of_a_call(message.mail.text)
        if most is None:
            raise Fatal("What a call of the model costs is not known, so none is made.")
        call_id = await context.write(lambda tx: self._begin(tx, context, message, model, most))
        outcome = await model.ask(question_about(message.mail, problem))
        if isinstance(outcome, CallFailed):
            await context.write(lambda tx: self._fail(tx, context, message, call_id, outcome))
            raise outcome.error
        await context.write(lambda tx: records.end_call(tx, call_id, outcome, _problem_of(outcome)))
        return outcome

    def _begin(self, tx: Tx, context: JobContext, message: Message, model: ModelClient, most: Micros) -> str:
        call_id = records.begin_call(tx, message, model.provider, model.name, most, context.queue.clock.now())
        job_id, total = message.backfill_job_id, records.spent_on(tx, message.id)
        if job_id is not None and not self._spending.afford(tx, job_id, message.id, total):
            raise _NoRoom
        return call_id

    def _fail(self, tx: Tx, context: JobContext, message: Message, call_id: str, failed: CallFailed) -> None:
        records.fail_call(tx, call_id, failed)
        gives_up = context.job.is_last_attempt or isinstance(failed.error, Fatal)
        if gives_up and not isinstance(failed.error, ModelRefused):
            self._settle(tx, message)

    def _finish(self, tx: Tx, context: JobContext, message: Message, decision: Decision) -> Json:
        is_first = records.record_decision(tx, message, decision, context.queue.clock.now())
        self._settle(tx, message)
        if not is_first:
            return {"outcome": "decided before"}
        return {"outcome": "review" if decision.needs_review else "decided", "action": decision.action}

    def _settle(self, tx: Tx, message: Message) -> None:
        if message.backfill_job_id is not None:
            spent = records.spent_on(tx, message.id)
            self._spending.settle(tx, message.backfill_job_id, message.id, spent)


def _problem_of(answer: Answer) -> str | None:
    try:
        read_answer(answer)
    except UnusableAnswer as unusable:
        return str(unusable)
    return None


def _message_id(context: JobContext) -> str:
    try:
        return parse_id(str(context.job.payload.get("message_id")), "message_id")
    except (PostroomError, AttributeError, ValueError) as error:
        reason = error.message if isinstance(error, BadInput) else "it is no object"
        raise Fatal(f"The job's payload cannot be used: {reason}") from None
