"""users.labels."""

from __future__ import annotations

from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.mailbox_state import MailboxState


def list_(box: MailboxState, call: Call) -> Json:
    return {"labels": [label.as_json() for label in box.store.labels.all()]}


def get(box: MailboxState, call: Call) -> Json:
    """The only answer with counts: they are exact, and cost a walk through the whole mailbox."""
    shown = box.store.labels.get(call.id).as_json()
    total = unread = 0
    threads: set[str] = set()
    unread_threads: set[str] = set()
    for _, mail in box.store.walk(None, None, None):
        if call.id in mail.label_ids:
            total += 1
            threads.add(mail.thread_id)
            if "UNREAD" in mail.label_ids:
                unread += 1
                unread_threads.add(mail.thread_id)
    counts = {"messagesTotal": total, "messagesUnread": unread}
    return shown | counts | {"threadsTotal": len(threads), "threadsUnread": len(unread_threads)}


def create(box: MailboxState, call: Call) -> Json:
    return box.store.labels.create(call.json).as_json()


def update(box: MailboxState, call: Call) -> Json:
    return box.store.labels.change(call.id, call.json, whole=True).as_json()


def patch(box: MailboxState, call: Call) -> Json:
    return box.store.labels.change(call.id, call.json, whole=False).as_json()


def delete(box: MailboxState, call: Call) -> None:
    box.store.delete_label(call.id)
