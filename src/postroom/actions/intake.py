"""The way in for actions: what a decision orders, or a person wants, becomes a row and the job that works on it.

Row and job are written in the caller's transaction, so that neither is ever without the other.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from postroom.actions import store
from postroom.actions.store import NewAction
from postroom.db import Tx
from postroom.domain import jobs
from postroom.domain.actions import ActionStatus, Order, Proposal
from postroom.queue import JobQueue, NewJob
from postroom.settings import SafetySettings


def action_job(account_id: str, action_id: str) -> NewJob:
    return _job_about(jobs.ACTION, account_id, action_id)


def question_job(account_id: str, action_id: str) -> NewJob:
    return _job_about(jobs.APPROVAL_NOTIFY, account_id, action_id)


def _job_about(job_type: str, account_id: str, action_id: str) -> NewJob:
    payload = {"account_id": account_id, "action_id": action_id}
    return NewJob(job_type, payload, key=f"{job_type}:{account_id}:{action_id}")


def enqueue_action(tx: Tx, queue: JobQueue, account_id: str, action_id: str, now: datetime) -> str:
    """Put a queued action into the hands of its job; the job's id."""
    job_id = queue.add(tx, action_job(account_id, action_id))[0].job_id
    store.assign_job(tx, action_id, job_id, now)
    return job_id


class Intake:
    """What `triage` knows as its desk for actions."""

    def __init__(self, queue: JobQueue, safety: SafetySettings) -> None:
        self._queue = queue
        self._patience = timedelta(days=safety.approval_days)

    def accept(self, tx: Tx, order: Order) -> list[str]:
        """Take an order: one action for each proposal, in their order; the actions' ids."""
        now = self._queue.clock.now()
        return [self._accept(tx, order, position, each, now) for position, each in enumerate(order.proposals)]

    def _accept(self, tx: Tx, order: Order, position: int, proposal: Proposal, now: datetime) -> str:
        new = NewAction(
            account_id=order.account_id,
            gmail_id=order.gmail_id,
            wanted=proposal.wanted,
            origin=order.origin,
            wanted_by=order.wanted_by,
            message_id=order.message_id,
            thread_id=order.thread_id,
            decision_id=order.decision_id,
            position=position,
            rule_id=order.rule_id,
            rule_name=order.rule_name,
            status=ActionStatus.APPROVED_PENDING if proposal.reasons else ActionStatus.QUEUED,
            reasons=proposal.reasons,
            expires_at=now + self._patience if proposal.reasons else None,
        )
        action_id = store.insert(tx, new, now)
        if proposal.reasons:
            self._queue.add(tx, question_job(order.account_id, action_id))
        else:
            enqueue_action(tx, self._queue, order.account_id, action_id, now)
        return action_id
