"""users.messages, users.drafts and users.threads: reading, labelling, trashing, erasing, adding and sending mail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from postroom.sim.gmail import oauth
from postroom.sim.gmail.api_errors import ApiError, invalid, not_found
from postroom.sim.gmail.call import ApiCall, Json, MailboxState
from postroom.sim.gmail.methods.listing import Found, Selection, page, start_of
from postroom.sim.gmail.raw_mail import date_ms, headers_of, recipients, senders, stamped
from postroom.sim.gmail.rendering import RenderFormat, format_named, labels_shown, snippet
from postroom.sim.gmail.sim_labels import NOT_BY_HAND
from postroom.sim.gmail.sources import MailSummary

MOST_IN_A_BATCH = 1000
MOST_LABELS = 100


def list_messages(box: MailboxState, call: ApiCall) -> Json:
    selection = Selection(box, call)
    found = page(box, call, selection, selection.after(start_of(box, call, selection)))
    answer: Json = {"resultSizeEstimate": found.estimate}
    if found.found:
        answer["messages"] = [{"id": mail.id, "threadId": mail.thread_id} for mail in found.found]
    if found.next_token:
        answer["nextPageToken"] = found.next_token
    return answer


def get_message(box: MailboxState, call: ApiCall) -> Json:
    form = readable_format(call)
    mail = box.store.get(call.message_id)
    return box.renderer.message(mail, form, call.many("metadataHeaders"))


def readable_format(call: ApiCall) -> RenderFormat:
    """The format asked for, if the grant goes that far."""
    form = format_named(call.text("format", RenderFormat.FULL))
    if form in (RenderFormat.FULL, RenderFormat.RAW) and not call.scopes & (oauth.TO_READ_BODIES | {oauth.COMPOSE}):
        raise ApiError(403, "forbidden", f"Metadata scope doesn't allow format {form.upper()}")
    return form


def get_attachment(box: MailboxState, call: ApiCall) -> Json:
    box.store.get(call.message_id)
    return box.renderer.attachment(call.message_id, call.id)


def insert_message(box: MailboxState, call: ApiCall) -> Json:
    return _added(box, call, default_date="receivedTime")


def import_message(box: MailboxState, call: ApiCall) -> Json:
    return _added(box, call, default_date="dateHeader")


def _added(box: MailboxState, call: ApiCall, default_date: str) -> Json:
    resource, raw = call.mail()
    label_ids = _label_ids(resource)
    box.store.labels.require(label_ids)
    for label_id in label_ids:
        if label_id in ("DRAFT", "CHAT"):
            raise invalid(f"Invalid label: {label_id}")
    source = call.text("internalDateSource", default_date)
    if source not in ("receivedTime", "dateHeader"):
        raise invalid(f"Invalid value for internalDateSource: {source[:40]}")
    date = date_ms(headers_of(raw)) if source == "dateHeader" else None
    own = {"SENT"} if box.store.email.lower() in senders(raw) else set()
    mail = box.store.insert(
        raw, frozenset(label_ids) | own, internal_date=date, thread_id=chosen_thread(box, resource.get("threadId"))
    )
    return short(mail)


def send_message(box: MailboxState, call: ApiCall) -> Json:
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


def modify_message(box: MailboxState, call: ApiCall) -> Json:
    add, remove = label_changes(box, call)
    return short(box.store.relabel(box.store.get(call.message_id), add, remove))


def label_changes(box: MailboxState, call: ApiCall) -> tuple[frozenset[str], frozenset[str]]:
    add, remove = call.names("addLabelIds", MOST_LABELS), call.names("removeLabelIds", MOST_LABELS)
    box.store.labels.require(add + remove)
    for label_id in add + remove:
        if label_id in NOT_BY_HAND:
            raise invalid(f"Invalid label: {label_id}")
    if not add and not remove:
        raise invalid("No label add or removes specified")
    return frozenset(add), frozenset(remove)


def batch_modify(box: MailboxState, call: ApiCall) -> None:
    """Checked before anything is changed; ids that do not exist are passed over."""
    add, remove = label_changes(box, call)
    for mail in _named(box, call):
        box.store.relabel(mail, add, remove)


def batch_delete(box: MailboxState, call: ApiCall) -> None:
    for mail in _named(box, call):
        erase(box, mail)


def _named(box: MailboxState, call: ApiCall) -> list[MailSummary]:
    ids = call.names("ids", MOST_IN_A_BATCH)
    if not ids:
        raise invalid("No message ids specified")
    found = (box.store.find(message_id) for message_id in dict.fromkeys(ids))
    return [mail for mail in found if mail is not None]


def trash_message(box: MailboxState, call: ApiCall) -> Json:
    return short(to_trash(box, box.store.get(call.message_id)))


def untrash_message(box: MailboxState, call: ApiCall) -> Json:
    return short(out_of_trash(box, box.store.get(call.message_id)))


def to_trash(box: MailboxState, mail: MailSummary) -> MailSummary:
    return box.store.relabel(mail, frozenset({"TRASH"}), frozenset({"INBOX"}))


def out_of_trash(box: MailboxState, mail: MailSummary) -> MailSummary:
    return box.store.relabel(mail, frozenset(), frozenset({"TRASH"}))


def delete_message(box: MailboxState, call: ApiCall) -> None:
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


def list_drafts(box: MailboxState, call: ApiCall) -> Json:
    selection, most = Selection(box, call), call.max_results()
    start = _start(box, call, selection)
    matching = [(key, mail) for key, mail in box.drafts.all() if selection.accepts(mail)]
    shown = matching[start : start + most]
    answer: Json = {"resultSizeEstimate": len(matching)}
    if shown:
        answer["drafts"] = [{"id": key, "message": _short(mail.id, mail.thread_id)} for key, mail in shown]
    if start + most < len(matching):
        answer["nextPageToken"] = box.sealer.seal(f"drafts|{selection.fingerprint}", start + most)
    return answer


def get_draft(box: MailboxState, call: ApiCall) -> Json:
    form = readable_format(call)
    return {"id": call.id, "message": box.renderer.message(box.drafts.get(call.id), form)}


def create_draft(box: MailboxState, call: ApiCall) -> Json:
    resource, raw = call.mail(inside="message")
    draft_id, mail = box.drafts.create(raw, chosen_thread(box, resource.get("threadId")))
    return {"id": draft_id, "message": short(mail)}


def update_draft(box: MailboxState, call: ApiCall) -> Json:
    resource, raw = call.mail(inside="message")
    mail = box.drafts.update(call.id, raw, chosen_thread(box, resource.get("threadId")))
    return {"id": call.id, "message": short(mail)}


def send_draft(box: MailboxState, call: ApiCall) -> Json:
    """By its id as it stands, or with a message in the request that replaces what it held."""
    draft_id = call.json.get("id") if not call.is_upload else None
    if not isinstance(draft_id, str):
        raise invalid("Invalid draft: an id is needed")
    draft = box.drafts.get(draft_id)
    raw = call.mail(inside="message")[1] if call.json.get("message") else box.store.raw(draft.id)
    sent = deliver(box, raw, draft.thread_id)
    box.drafts.remove(draft_id)
    return short(sent)


def delete_draft(box: MailboxState, call: ApiCall) -> None:
    box.drafts.remove(call.id)


def _start(box: MailboxState, call: ApiCall, selection: Selection) -> int:
    text = call.text("pageToken")
    start = box.sealer.open(f"drafts|{selection.fingerprint}", text) if text else 0
    if not isinstance(start, int):
        raise invalid("Invalid pageToken")
    return start


def _short(message_id: str, thread_id: str) -> Json:
    return {"id": message_id, "threadId": thread_id}


def list_threads(box: MailboxState, call: ApiCall) -> Json:
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


def get_thread(box: MailboxState, call: ApiCall) -> Json:
    form, only = readable_format(call), call.many("metadataHeaders")
    mails = _thread(box, call)
    answer = {key: value for key, value in _shown(box, mails).items() if key != "snippet"}
    return answer | {"messages": [box.renderer.message(mail, form, only) for mail in mails]}


def modify_thread(box: MailboxState, call: ApiCall) -> Json:
    add, remove = label_changes(box, call)
    return _each(box, call, lambda mail: box.store.relabel(mail, add, remove))


def trash_thread(box: MailboxState, call: ApiCall) -> Json:
    return _each(box, call, lambda mail: to_trash(box, mail))


def untrash_thread(box: MailboxState, call: ApiCall) -> Json:
    return _each(box, call, lambda mail: out_of_trash(box, mail))


def delete_thread(box: MailboxState, call: ApiCall) -> None:
    for mail in _thread(box, call):
        erase(box, mail)


def _each(box: MailboxState, call: ApiCall, change: Callable[[MailSummary], MailSummary]) -> Json:
    changed = [change(mail) for mail in _thread(box, call)]
    return {"id": call.message_id, "messages": [short(mail) for mail in changed]}


def _thread(box: MailboxState, call: ApiCall) -> list[MailSummary]:
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
