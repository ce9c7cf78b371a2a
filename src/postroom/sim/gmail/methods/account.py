"""users, users.history and users.labels: the profile, push notifications, changes since a history id, and labels."""

from __future__ import annotations

import re

from postroom.sim.gmail.api_errors import invalid
from postroom.sim.gmail.call import ApiCall, Json, MailboxState, SimWatch
from postroom.sim.gmail.mailbox_store import TYPES, HistoryChange

_WATCH_LIFETIME_MS = 7 * 86_400_000
_TOPIC = re.compile(r"projects/[\w.:-]+/topics/[\w.~%+-]+")


def get_profile(box: MailboxState, call: ApiCall) -> Json:
    return {
        "emailAddress": box.store.email,
        "messagesTotal": box.store.count,
        "threadsTotal": box.store.thread_count,
        "historyId": str(box.store.history.current),
    }


def watch(box: MailboxState, call: ApiCall) -> Json:
    topic = call.json.get("topicName")
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise invalid("Invalid topicName does not match projects/*/topics/*")
    label_ids = call.names("labelIds", most=100)
    box.store.labels.require(label_ids)
    box.watch = SimWatch(topic, label_ids, box.store.now_ms() + _WATCH_LIFETIME_MS)
    return {"historyId": str(box.store.history.current), "expiration": str(box.watch.expires_ms)}


def stop(box: MailboxState, call: ApiCall) -> None:
    box.watch = None


def list_history(box: MailboxState, call: ApiCall) -> Json:
    """A page covers so many changes before the filter, so a page may be empty and still not be the last."""
    start, may_be_empty = _start(box, call)
    kinds, label_id = _kinds(call), call.text("labelId")
    most = call.max_results()
    changes, more = box.store.history.since(start, most)
    if may_be_empty and changes and _is_empty_page(start):
        return _answer(box, [], _token(box, call, start, may_be_empty=False))
    wanted = [change for change in changes if change.kind in kinds and (not label_id or change.concerns(label_id))]
    return _answer(box, wanted, _token(box, call, changes[-1].id, may_be_empty=True) if more else None)


def _is_empty_page(start: int) -> bool:
    """Now and then the real service gives a page with nothing but a token; here it is every fourth place."""
    return start % 4 == 0


def _kinds(call: ApiCall) -> set[str]:
    names = call.many("historyTypes")
    for name in names:
        if name not in TYPES:
            raise invalid(f"Invalid value for historyTypes: {name[:40]}")
    return {TYPES[name] for name in names} or set(TYPES.values())


def _start(box: MailboxState, call: ApiCall) -> tuple[int, bool]:
    text = call.text("startHistoryId")
    if not re.fullmatch(r"[0-9]{1,20}", text):
        raise invalid("Invalid startHistoryId" if text else "startHistoryId is required")
    token = call.text("pageToken")
    if not token:
        return int(text), True
    match box.sealer.open(_purpose(call), token):
        case [int(start), bool(may_be_empty)]:
            return start, may_be_empty
        case _:
            raise invalid("Invalid pageToken")


def _token(box: MailboxState, call: ApiCall, start: int, *, may_be_empty: bool) -> str:
    return box.sealer.seal(_purpose(call), [start, may_be_empty])


def _purpose(call: ApiCall) -> str:
    return f"history|{call.text('startHistoryId')}"


def _answer(box: MailboxState, changes: list[HistoryChange], token: str | None) -> Json:
    answer: Json = {"historyId": str(box.store.history.current)}
    if changes:
        answer["history"] = [change.as_json() for change in changes]
    if token:
        answer["nextPageToken"] = token
    return answer


_MOST_COUNTED = 25_000
_SAMPLE = 5_000


def list_labels(box: MailboxState, call: ApiCall) -> Json:
    return {"labels": [label.as_json() for label in box.store.labels.all()]}


def get_label(box: MailboxState, call: ApiCall) -> Json:
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


def create_label(box: MailboxState, call: ApiCall) -> Json:
    return box.store.labels.create(call.json).as_json()


def update_label(box: MailboxState, call: ApiCall) -> Json:
    return box.store.labels.change(call.id, call.json, whole=True).as_json()


def patch_label(box: MailboxState, call: ApiCall) -> Json:
    return box.store.labels.change(call.id, call.json, whole=False).as_json()


def delete_label(box: MailboxState, call: ApiCall) -> None:
    box.store.delete_label(call.id)
