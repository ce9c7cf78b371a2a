"""users.messages: reading, labelling, trashing, erasing and adding mail."""

from __future__ import annotations

from collections.abc import Mapping

from postroom.gmail.sim import scopes
from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.errors import ApiError, invalid
from postroom.gmail.sim.labels import NOT_BY_HAND
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.methods.listing import Selection, page, start_of
from postroom.gmail.sim.mime import date_ms, headers_of
from postroom.gmail.sim.model import MailSummary
from postroom.gmail.sim.outgoing import recipients, stamped
from postroom.gmail.sim.render import Format, format_named, labels_shown

MOST_IN_A_BATCH = 1000
MOST_LABELS = 100


def list_(box: MailboxState, call: Call) -> Json:
    selection = Selection(box, call)
    found = page(box, call, selection, selection.after(start_of(box, call, selection)))
    answer: Json = {"resultSizeEstimate": found.estimate}
    if found.found:
        answer["messages"] = [{"id": mail.id, "threadId": mail.thread_id} for mail in found.found]
    if found.next_token:
        answer["nextPageToken"] = found.next_token
    return answer


def get(box: MailboxState, call: Call) -> Json:
    form = readable_format(call)
    mail = box.store.get(call.message_id)
    return box.renderer.message(mail, form, call.many("metadataHeaders"))


def readable_format(call: Call) -> Format:
    """The format asked for, if the grant goes that far."""
    form = format_named(call.text("format", Format.FULL))
    if form in (Format.FULL, Format.RAW) and not call.scopes & (scopes.TO_READ_BODIES | {scopes.COMPOSE}):
        raise ApiError(403, "forbidden", f"Metadata scope doesn't allow format {form.upper()}")
    return form


def get_attachment(box: MailboxState, call: Call) -> Json:
    box.store.get(call.message_id)
    return box.renderer.attachment(call.message_id, call.id)


def insert(box: MailboxState, call: Call) -> Json:
    return _added(box, call, default_date="receivedTime")


def import_(box: MailboxState, call: Call) -> Json:
    return _added(box, call, default_date="dateHeader")


def _added(box: MailboxState, call: Call, default_date: str) -> Json:
    resource, raw = call.mail()
    label_ids = _label_ids(resource)
    box.store.labels.require(label_ids)
    if "DRAFT" in label_ids:
        raise invalid("Invalid label: DRAFT")
    source = call.text("internalDateSource", default_date)
    if source not in ("receivedTime", "dateHeader"):
        raise invalid(f"Invalid value for internalDateSource: {source[:40]}")
    date = date_ms(headers_of(raw)) if source == "dateHeader" else None
    mail = box.store.insert(
        raw, frozenset(label_ids), internal_date=date, thread_id=chosen_thread(box, resource.get("threadId"))
    )
    return short(mail)


def send(box: MailboxState, call: Call) -> Json:
    resource, raw = call.mail()
    return short(deliver(box, raw, chosen_thread(box, resource.get("threadId"))))


def deliver(box: MailboxState, raw: bytes, thread_id: str | None) -> MailSummary:
    """Send a message: it gets a Message-ID of the service, and comes back to an owner who wrote to himself."""
    addressed = recipients(raw)
    if not addressed:
        raise invalid("Recipient address required")
    number = box.store.history.current * 7_919 + box.store.count
    sent = stamped(raw, f"<CA+sim{number:x}@mail.gmail.com>", box.store.email, box.clock.now())
    label_ids = {"SENT"} | ({"INBOX", "UNREAD"} if box.store.email.lower() in addressed else set())
    return box.store.insert(sent, frozenset(label_ids), thread_id=thread_id)


def chosen_thread(box: MailboxState, thread_id: object) -> str | None:
    if thread_id is None or thread_id == "":
        return None
    if not isinstance(thread_id, str) or not box.store.thread(thread_id):
        raise ApiError(404, "notFound", "Requested entity was not found.")
    return thread_id


def modify(box: MailboxState, call: Call) -> Json:
    add, remove = label_changes(box, call)
    return short(box.store.relabel(box.store.get(call.message_id), add, remove))


def label_changes(box: MailboxState, call: Call) -> tuple[frozenset[str], frozenset[str]]:
    add, remove = call.names("addLabelIds", MOST_LABELS), call.names("removeLabelIds", MOST_LABELS)
    box.store.labels.require(add + remove)
    for label_id in add + remove:
        if label_id in NOT_BY_HAND:
            raise invalid(f"Invalid label: {label_id}")
    if not add and not remove:
        raise invalid("No label add or removes specified")
    return frozenset(add), frozenset(remove)


def batch_modify(box: MailboxState, call: Call) -> None:
    """Checked before anything is changed; ids that do not exist are passed over."""
    add, remove = label_changes(box, call)
    for mail in _named(box, call):
        box.store.relabel(mail, add, remove)


def batch_delete(box: MailboxState, call: Call) -> None:
    for mail in _named(box, call):
        erase(box, mail)


def _named(box: MailboxState, call: Call) -> list[MailSummary]:
    ids = call.names("ids", MOST_IN_A_BATCH)
    if not ids:
        raise invalid("No message ids specified")
    found = (box.store.find(message_id) for message_id in dict.fromkeys(ids))
    return [mail for mail in found if mail is not None]


def trash(box: MailboxState, call: Call) -> Json:
    return short(to_trash(box, box.store.get(call.message_id)))


def untrash(box: MailboxState, call: Call) -> Json:
    return short(out_of_trash(box, box.store.get(call.message_id)))


def to_trash(box: MailboxState, mail: MailSummary) -> MailSummary:
    return box.store.relabel(mail, frozenset({"TRASH"}), frozenset({"INBOX"}))


def out_of_trash(box: MailboxState, mail: MailSummary) -> MailSummary:
    return box.store.relabel(mail, frozenset(), frozenset({"TRASH"}))


def delete(box: MailboxState, call: Call) -> None:
    erase(box, box.store.get(call.message_id))


def erase(box: MailboxState, mail: MailSummary) -> None:
    box.store.delete(mail)
    box.drafts.forget(mail.id)


def short(mail: MailSummary) -> Json:
    return {"id": mail.id, "threadId": mail.thread_id} | labels_shown(mail.label_ids)


def _label_ids(resource: Mapping[str, object]) -> list[str]:
    value = resource.get("labelIds", [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise invalid("Invalid value for labelIds: a list of strings is needed")
    return value
