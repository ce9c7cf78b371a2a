"""The states of a job, and the names of jobs that one part enqueues and another runs."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELED = "canceled"


CLASSIFY = "classify"
"""Decide what a message is and what to do about it. Payload: {"account_id", "message_id"}."""
ON_DEMAND = "ondemand.gmail"
"""Search a mailbox and take in what is found. Payload: {"account_id", "query", "max_results"}."""
ACTION = "action.gmail"
"""Do one action. Payload: {"account_id", "action_id"}."""
APPROVAL_NOTIFY = "approval.notify"
"""Ask a person about one action. Payload: {"account_id", "action_id"}."""
LABELS_SYNC = "labels.sync.gmail"
"""Bring the list of a mailbox's labels up to date. Payload: {"account_id"}."""
UNSNOOZE = "unsnooze.gmail"
"""Bring a snoozed message back. Payload: {"account_id", "message_id", "action_id", "snooze_label_id"}."""
UNDO = "undo.action"
"""Take an action back. Payload: {"account_id", "original_action_id"}."""
UNDO_MANY = "undo.span"
"""Take back all that the model or a rule did in a stretch of time. Payload: {"by", "since", "until", "who"}."""
SNOOZE_CHECK = "snooze.check.gmail"
"""See whether the owner brought a snoozed message back himself. Payload: {"account_id", "action_id"}."""
