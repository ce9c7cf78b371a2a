"""The rows of triage: the message to judge, each model call, the decision; and the deletion of old prompts.

A call is recorded before it is made, at its highest possible cost, and again when it ends. A process that dies in
between leaves a row that says so. An answer is kept until its message is decided, so that none is bought twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import Row, bindparam, func, insert, or_, select, update

from postroom.db import Database, Dialect, Prepared, Tx
from postroom.db.database import insert_for
from postroom.db.tables.mail import messages, sent_messages, undecided_mail
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.ids import new_id
from postroom.domain.money import Micros
from postroom.domain.terms import AssignmentRule
from postroom.triage.decision import Decision
from postroom.triage.prompt import MailToJudge
from postroom.triage.questions import CallFailed, ModelAnswer, ToolCall
from postroom.triage.rules.facts import MessageFacts, facts_of_row

STARTED, ANSWERED, UNUSABLE, FAILED, LOST = "started", "answered", "unusable", "failed", "lost"
_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True)
class TriageMessage:
    id: str
    account_id: str | None
    backfill_job_id: str | None
    gmail_id: str
    thread_id: str | None
    is_metadata_only: bool
    is_outbound: bool
    is_gone: bool
    """The mailbox no longer has it."""
    is_decided: bool
    is_listed: bool
    """As mail that is still to be decided: it is of a backfill job, or waited for money."""
    answers_owner: bool
    """It answers mail that the owner sent."""
    facts: MessageFacts
    """What rules look at."""
    mail: MailToJudge
    """What the model is shown."""


# Made once: to build a statement takes longer than to run it.
_MESSAGE = Prepared(
    select(messages, decisions.c.id.label("decision_id"), undecided_mail.c.state.label("undecided"))
    .join(decisions, decisions.c.message_id == messages.c.id, isouter=True)
    .join(undecided_mail, undecided_mail.c.message_id == messages.c.id, isouter=True)
    .where(messages.c.id == bindparam("the_message"))
)
_FORGET_ANSWERS = Prepared(
    update(model_calls).where(model_calls.c.message_id == bindparam("the_message"), model_calls.c.answer.is_not(None))
)
_EARLIER_CALLS = Prepared(
    select(model_calls)
    .where(model_calls.c.message_id == bindparam("the_message"))
    .where(or_(model_calls.c.answer.is_not(None), model_calls.c.outcome == STARTED))
    .order_by(model_calls.c.id)
)
_CLOSE_OPEN = Prepared(
    update(model_calls).where(
        model_calls.c.message_id == bindparam("the_message"), model_calls.c.outcome == bindparam("open", STARTED)
    )
)
_BEGIN_CALL = Prepared(insert(model_calls))
_SPENT = Prepared(
    select(func.coalesce(func.sum(model_calls.c.cost_microdollars), 0).label("total")).where(
        model_calls.c.message_id == bindparam("the_message")
    )
)
_SENT = Prepared(
    select(sent_messages.c.added_at).where(
        sent_messages.c.account_id == bindparam("account"), sent_messages.c.message_id_header == bindparam("target")
    )
)
_CHANGE_CALL = Prepared(update(model_calls).where(model_calls.c.id == bindparam("the_call")))


@cache
def _decide_once(dialect: Dialect) -> Prepared:
    first = insert_for(dialect, decisions).on_conflict_do_nothing(index_elements=["message_id"])
    return Prepared(first.returning(decisions.c.id))


def load_message(tx: Tx, message_id: str) -> TriageMessage | None:
    rows = tx.run(_MESSAGE, {"the_message": message_id})
    if not rows:
        return None
    [row] = rows
    return TriageMessage(
        id=row.id,
        account_id=row.account_id,
        backfill_job_id=row.backfill_job_id,
        gmail_id=row.external_event_id,
        thread_id=row.external_thread_id,
        is_metadata_only=row.ingestion_tier == "metadata",
        is_outbound=row.direction == "outbound",
        is_gone=row.deleted_at_source is not None,
        is_decided=row.decision_id is not None,
        is_listed=row.backfill_job_id is not None or row.undecided is not None,
        answers_owner=_answers_owner(tx, row),
        facts=facts_of_row(tx, row),
        mail=_mail(row),
    )


def _mail(row: Row[Any]) -> MailToJudge:
    return MailToJudge(
        sender=row.sender_identity,
        sender_name=row.sender_name,
        subject=row.subject,
        text=row.normalized_text or "",
        received_at=row.received_at,
        headers=dict(row.headers or {}),
        labels=tuple(row.labels or ()),
        attachments=tuple(str(part.get("filename") or "") for part in row.attachments or ()),
    )


def _answers_owner(tx: Tx, row: Row[Any]) -> bool:
    if row.assignment_rule == AssignmentRule.REPLY_TO_OUTBOUND:
        return True
    target = str((row.headers or {}).get("in-reply-to") or "").strip("<> ")
    if not target or row.account_id is None:
        return False
    return bool(tx.run(_SENT, {"account": row.account_id, "target": target}))


@dataclass(frozen=True, slots=True)
class NewModelCall:
    """A call that is about to be made. `id` is that of its reservation."""

    id: str
    provider: str
    model: str
    most: Micros
    message_id: str | None = None
    """None: a person tries the model."""
    backfill_job_id: str | None = None
    prompt: str | None = None
    """Given where prompts are kept."""
    closes_open: bool = False
    """An earlier call about the message has no end."""


def begin_call(tx: Tx, call: NewModelCall, now: datetime) -> None:
    """Record a call before it is made, and close earlier calls about its message that have no end."""
    if call.closes_open:
        lost = {"outcome": LOST, "error": "the process ended before the answer was written down; counted at its most"}
        tx.run(_CLOSE_OPEN, {"the_message": call.message_id, **lost})
    row = {
        "id": call.id,
        "message_id": call.message_id,
        "backfill_job_id": call.backfill_job_id,
        "provider": call.provider,
        "model": call.model,
        "input_tokens": 0,
        "output_tokens": 0,
        "cost_microdollars": call.most,
        "latency_ms": 0,
        "outcome": STARTED,
        "simulated": False,
        "prompt": call.prompt,
        "created_at": now,
    }
    tx.run(_BEGIN_CALL, row)


def end_call(tx: Tx, call_id: str, answer: ModelAnswer, problem: str | None, *, is_kept: bool = True) -> None:
    """Record an answer. One that does not say what it used stays in the books at its most. It counts, and a usable one
    is kept, until its message is decided; an answer about no message that repeats mail is not kept at all."""
    usable = None if problem is not None or not is_kept else answer.calls[0]
    values: dict[str, object] = {
        "model": answer.model,
        "input_tokens": answer.used.input,
        "output_tokens": answer.used.output,
        "latency_ms": answer.latency_ms,
        "outcome": ANSWERED if problem is None else UNUSABLE,
        "error": problem,
        "simulated": answer.is_simulated,
        "answer": {} if usable is None else {"name": usable.name, "arguments": usable.arguments},
    }
    if answer.cost is not None:
        values["cost_microdollars"] = answer.cost
    tx.run(_CHANGE_CALL, {"the_call": call_id, **values})


def fail_call(tx: Tx, call_id: str, failed: CallFailed) -> None:
    """What a failed call may have cost stays in the books at its most; a refusal costs nothing."""
    values: dict[str, object] = {
        "outcome": FAILED,
        "error": failed.error.message[:_LONGEST_ERROR],
        "latency_ms": failed.latency_ms,
    }
    if not failed.may_have_cost:
        values["cost_microdollars"] = 0
    tx.run(_CHANGE_CALL, {"the_call": call_id, **values})


@dataclass(frozen=True, slots=True)
class EarlierAnswers:
    """What the model has answered about a message that is not decided yet."""

    usable: ToolCall | None = None
    problems: tuple[str, ...] = ()
    """What was wrong with each answer that could not be used."""
    has_open: bool = False
    """A call has no end: the process that made it is gone, or has lost the job."""


def earlier_answers(tx: Tx, message_id: str) -> EarlierAnswers:
    rows = tx.run(_EARLIER_CALLS, {"the_message": message_id})
    kept = [ToolCall(row.answer["name"], row.answer["arguments"]) for row in rows if row.answer]
    problems = tuple(row.error for row in rows if row.outcome == UNUSABLE and row.answer is not None)
    return EarlierAnswers(kept[-1] if kept else None, problems, any(row.outcome == STARTED for row in rows))


def forget_answers(tx: Tx, message_id: str) -> None:
    """The message is decided; its answer may hold words of the mail, and has served."""
    tx.run(_FORGET_ANSWERS, {"the_message": message_id, "answer": None})


def spent_on(tx: Tx, message_id: str) -> Micros:
    """All that was, or may have been, spent on a message."""
    [row] = tx.run(_SPENT, {"the_message": message_id})
    return Micros(int(row.total))


def record_decision(tx: Tx, message: TriageMessage, decision: Decision, now: datetime) -> str | None:
    """Write the decision, and give its id; None if there is one already, which then stands."""
    row = {
        "id": new_id(),
        "message_id": message.id,
        "account_id": message.account_id,
        "backfill_job_id": message.backfill_job_id,
        "source": decision.source,
        "action": decision.action,
        "parameters": decision.parameters,
        "confidence": decision.confidence,
        "reason": decision.reason,
        "needs_review": decision.needs_review,
        "review_cause": decision.cause,
        "rule_id": decision.rule_id,
        "rule_name": decision.rule_name,
        "reasons": list(decision.reasons),
        "explanation": decision.explanation,
        "created_at": now,
    }
    found = tx.run(_decide_once(tx.dialect), row)
    return str(found[0].id) if found else None


_AT_ONCE = 1_000


def forgetting_prompts(database: Database, keep: timedelta) -> Callable[[datetime], Awaitable[int]]:
    """What forgets prompts that are older than this; with no time at all, every one."""

    async def forget(now: datetime) -> int:
        total = 0
        while count := await database.write(lambda tx: _forget(tx, now - keep)):
            total += count
        return total

    return forget


def _forget(tx: Tx, before: datetime) -> int:
    kept = model_calls.c.prompt.is_not(None) & (model_calls.c.created_at <= before)
    some = select(model_calls.c.id).where(kept).order_by(model_calls.c.created_at).limit(_AT_ONCE)
    return tx.execute(update(model_calls).where(model_calls.c.id.in_(some)).values(prompt=None)).rowcount
