"""users.labels."""

from __future__ import annotations

from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.mailbox_state import MailboxState

_MOST_COUNTED = 25_000
_SAMPLE = 5_000


def list_(box: MailboxState, call: Call) -> Json:
    return {"labels": [label.as_json() for label in box.store.labels.all()]}


def get(box: MailboxState, call: Call) -> Json:
    """The only answer with counts: exact in a mailbox of ordinary size, estimated from a sample in a huge one."""
    shown = box.store.labels.get(call.id).as_json()
    total = unread = 0
    threads: dict[str, int] = {}
    unread_threads: dict[str, int] = {}
    for weight, mail in box.store.census(_MOST_COUNTED, _SAMPLE):
        if call.id not in mail.label_ids:
            continue
        total += weight
        threads[mail.thread_id] = weight
        if "UNREAD" in mail.label_ids:
            unread += weight
            unread_threads[mail.thread_id] = weight
    return shown | {
        "messagesTotal": total,
        "messagesUnread": unread,
        "threadsTotal": sum(threads.values()),
        "threadsUnread": sum(unread_threads.values()),
    }


def create(box: MailboxState, call: Call) -> Json:
    return box.store.labels.create(call.json).as_json()


def update(box: MailboxState, call: Call) -> Json:
    return box.store.labels.change(call.id, call.json, whole=True).as_json()


def patch(box: MailboxState, call: Call) -> Json:
    return box.store.labels.change(call.id, call.json, whole=False).as_json()


def delete(box: MailboxState, call: Call) -> None:
    box.store.delete_label(call.id)
