"""The job `outbound.send`, as the executor of an action enqueues it."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum

from postroom.domain.actions import ActionType
from postroom.domain.errors import Fatal
from postroom.queue import JobType, KeyUse, NewJob, RetryPolicy

# Repeatable, so that an action retried by hand takes up its sending where it stood; what was sent is never sent again.
SEND = JobType(
    "outbound.send", KeyUse.REPEATABLE, RetryPolicy(max_attempts=6), timedelta(minutes=10), keep_completed=1_000
)


class MessageType(StrEnum):
    REPLY = "reply"
    FORWARD = "forward"


_TYPES = {ActionType.AUTO_REPLY: MessageType.REPLY, ActionType.FORWARD: MessageType.FORWARD}


def outbound_job(
    *, account_id: str, action_id: str, action_type: ActionType, message_id: str | None, thread_id: str | None
) -> NewJob:
    """The job that sends what an action wants sent, and then ends the action.

    To be enqueued in the transaction that marks the action as executing. It names things and holds no mail: recipients
    and text are those of the action's parameters, and the original is read when it is sent.
    """
    if action_type not in _TYPES:
        raise Fatal(f"{action_type} sends nothing.")
    payload = {
        "account_id": account_id,
        "action_id": action_id,
        "message_type": _TYPES[action_type],
        "original_message_id": message_id,
        "thread_id": thread_id,
    }
    return NewJob(SEND.name, payload, key=f"{SEND.name}:{account_id}:{action_id}")
