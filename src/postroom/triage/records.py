"""The rows of triage: the message to judge, each model call, the decision; and the deletion of old prompts.

A call is recorded before it is made, at its highest possible cost, and again when it ends. A process that dies in
between leaves a row that says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, update

from postroom.db import Database, Tx
from postroom.db.database import insert
from postroom.db.tables.mail import messages
from postroom.db.tables.triage import decisions, model_calls
from postroom.domain.ids import new_id
from postroom.domain.money import Micros
from postroom.triage.decision import Decision
from postroom.triage.prompt import MailToJudge
from postroom.triage.questions import CallFailed, ModelAnswer
from postroom.triage.rules.facts import MessageFacts, facts_of_message

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
    facts: MessageFacts
    """What rules look at."""
    mail: MailToJudge
    """What the model is shown."""


def load_message(tx: Tx, message_id: str) -> TriageMessage | None:
    row = tx.execute(select(messages).where(messages.c.id == message_id)).one_or_none()
    facts = facts_of_message(tx, message_id)
    if row is None or facts is None:
        return None
    return TriageMessage(
        id=row.id,
        account_id=row.account_id,
        backfill_job_id=row.backfill_job_id,
        gmail_id=row.external_event_id,
        thread_id=row.external_thread_id,
        is_metadata_only=row.ingestion_tier == "metadata",
        is_outbound=row.direction == "outbound",
        is_gone=row.deleted_at_source is not None,
        is_decided=_is_decided(tx, row.id),
        facts=facts,
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


def _is_decided(tx: Tx, message_id: str) -> bool:
    return tx.execute(select(decisions.c.id).where(decisions.c.message_id == message_id)).first() is not None


def begin_call(
    tx: Tx, message: TriageMessage, provider: str, model: str, most: Micros, now: datetime, prompt: str | None = None
) -> str:
    """Record a call before it is made, and close earlier calls without an end. `prompt` is given where prompts are
    kept."""
    open_before = (model_calls.c.message_id == message.id) & (model_calls.c.outcome == STARTED)
    lost = {"outcome": LOST, "error": "the process ended before the answer was written down; counted at its most"}
    tx.execute(update(model_calls).where(open_before).values(**lost))
    return _begun(
        tx, provider, model, most, now, message_id=message.id, backfill_job_id=message.backfill_job_id, prompt=prompt
    )


def begin_trial_call(tx: Tx, provider: str, model: str, most: Micros, now: datetime) -> str:
    """Note a call that is about no message: a person tries the model."""
    return _begun(tx, provider, model, most, now)


def _begun(tx: Tx, provider: str, model: str, most: Micros, now: datetime, **about: str | None) -> str:
    call_id = new_id()
    tx.execute(
        model_calls.insert().values(
            id=call_id,
            provider=provider,
            model=model,
            input_tokens=0,
            output_tokens=0,
            cost_microdollars=most,
            latency_ms=0,
            outcome=STARTED,
            simulated=False,
            created_at=now,
            **about,
        )
    )
    return call_id


def end_call(tx: Tx, call_id: str, answer: ModelAnswer, problem: str | None) -> None:
    """An answer that does not say what it used stays in the books at its most."""
    values: dict[str, object] = {
        "model": answer.model,
        "input_tokens": answer.used.input,
        "output_tokens": answer.used.output,
        "latency_ms": answer.latency_ms,
        "outcome": ANSWERED if problem is None else UNUSABLE,
        "error": problem,
        "simulated": answer.is_simulated,
    }
    if answer.cost is not None:
        values["cost_microdollars"] = answer.cost
    tx.execute(update(model_calls).where(model_calls.c.id == call_id).values(**values))


def fail_call(tx: Tx, call_id: str, failed: CallFailed) -> None:
    """What a failed call may have cost stays in the books at its most; a refusal costs nothing."""
    values: dict[str, object] = {
        "outcome": FAILED,
        "error": failed.error.message[:_LONGEST_ERROR],
        "latency_ms": failed.latency_ms,
    }
    if not failed.may_have_cost:
        values["cost_microdollars"] = 0
    tx.execute(update(model_calls).where(model_calls.c.id == call_id).values(**values))


def spent_on(tx: Tx, message_id: str) -> Micros:
    """All that was, or may have been, spent on a message."""
    total = func.coalesce(func.sum(model_calls.c.cost_microdollars), 0)
    return Micros(int(tx.execute(select(total).where(model_calls.c.message_id == message_id)).scalar_one()))


def record_decision(tx: Tx, message: TriageMessage, decision: Decision, now: datetime) -> str | None:
    """Write the decision, and give its id; None if there is one already, which then stands."""
    row = {
        "id": new_id(),
        "message_id": message.id,
        "account_id": message.account_id,
        "source": decision.source,
        "action": decision.action,
        "parameters": decision.parameters,
        "confidence": decision.confidence,
        "reason": decision.reason,
        "needs_review": decision.needs_review,
        "rule_id": decision.rule_id,
        "rule_name": decision.rule_name,
        "reasons": list(decision.reasons),
        "created_at": now,
    }
    written = insert(tx, decisions).values(row).on_conflict_do_nothing(index_elements=["message_id"])
    found = tx.execute(written.returning(decisions.c.id)).first()
    return None if found is None else str(found.id)


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
