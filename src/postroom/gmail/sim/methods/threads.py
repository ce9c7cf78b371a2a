"""users.threads: the same mail, by conversation."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.errors import not_found
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.methods import messages
from postroom.gmail.sim.methods.listing import Found, Selection, page, start_of
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.snippet import snippet


def list_(box: MailboxState, call: Call) -> Json:
    selection = Selection(box, call)
    newest = _newest_of_thread(box, selection, selection.after(start_of(box, call, selection)))
    found = page(box, call, selection, newest)
    answer: Json = {"resultSizeEstimate": found.estimate}
    if found.found:
        answer["threads"] = [_shown(box, box.store.thread(mail.thread_id)) for mail in found.found]
    if found.next_token:
        answer["nextPageToken"] = found.next_token
    return answer


def _newest_of_thread(box: MailboxState, selection: Selection, found: Iterator[Found]) -> Iterator[Found]:
    """A thread is listed where its newest matching message stands, so that no page repeats it."""
    for place, mail in found:
        if mail is None:
            yield place, None
            return
        matching = [other for other in box.store.thread(mail.thread_id) if selection.accepts(other)]
        if max(matching, key=lambda other: (other.internal_date, other.id)).id == mail.id:
            yield place, mail


def get(box: MailboxState, call: Call) -> Json:
    form, only = messages.readable_format(call), call.many("metadataHeaders")
    mails = _thread(box, call)
    answer = {key: value for key, value in _shown(box, mails).items() if key != "snippet"}
    return answer | {"messages": [box.renderer.message(mail, form, only) for mail in mails]}


def modify(box: MailboxState, call: Call) -> Json:
    add, remove = messages.label_changes(box, call)
    return _each(box, call, lambda mail: box.store.relabel(mail, add, remove))


def trash(box: MailboxState, call: Call) -> Json:
    return _each(box, call, lambda mail: messages.to_trash(box, mail))


def untrash(box: MailboxState, call: Call) -> Json:
    return _each(box, call, lambda mail: messages.out_of_trash(box, mail))


def delete(box: MailboxState, call: Call) -> None:
    for mail in _thread(box, call):
        messages.erase(box, mail)


def _each(box: MailboxState, call: Call, change: Callable[[MailSummary], MailSummary]) -> Json:
    changed = [change(mail) for mail in _thread(box, call)]
    return {"id": call.message_id, "messages": [messages.short(mail) for mail in changed]}


def _thread(box: MailboxState, call: Call) -> list[MailSummary]:
    mails = box.store.thread(call.message_id)
    if not mails:
        raise not_found()
    return mails


def _shown(box: MailboxState, mails: list[MailSummary]) -> Json:
    return {
        "id": mails[0].thread_id,
        "snippet": snippet(box.store.raw(mails[-1].id)),
        "historyId": str(max(box.store.history_id(mail.id) for mail in mails)),
    }
