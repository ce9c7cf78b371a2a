"""users.drafts: a draft that is sent is a draft no more."""

from __future__ import annotations

from postroom.gmail.sim.call import Call, Json
from postroom.gmail.sim.errors import invalid
from postroom.gmail.sim.mailbox_state import MailboxState
from postroom.gmail.sim.methods import messages
from postroom.gmail.sim.methods.listing import Selection


def list_(box: MailboxState, call: Call) -> Json:
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


def get(box: MailboxState, call: Call) -> Json:
    form = messages.readable_format(call)
    return {"id": call.id, "message": box.renderer.message(box.drafts.get(call.id), form)}


def create(box: MailboxState, call: Call) -> Json:
    resource, raw = call.mail(inside="message")
    draft_id, mail = box.drafts.create(raw, messages.chosen_thread(box, resource.get("threadId")))
    return {"id": draft_id, "message": messages.short(mail)}


def update(box: MailboxState, call: Call) -> Json:
    resource, raw = call.mail(inside="message")
    mail = box.drafts.update(call.id, raw, messages.chosen_thread(box, resource.get("threadId")))
    return {"id": call.id, "message": messages.short(mail)}


def send(box: MailboxState, call: Call) -> Json:
    """By its id as it stands, or with a message in the request that replaces what it held."""
    draft_id = call.json.get("id") if not call.is_upload else None
    if not isinstance(draft_id, str):
        raise invalid("Invalid draft: an id is needed")
    draft = box.drafts.get(draft_id)
    raw = call.mail(inside="message")[1] if call.json.get("message") else box.store.raw(draft.id)
    sent = messages.deliver(box, raw, draft.thread_id)
    box.drafts.remove(draft_id)
    return messages.short(sent)


def delete(box: MailboxState, call: Call) -> None:
    box.drafts.remove(call.id)


def _start(box: MailboxState, call: Call, selection: Selection) -> int:
    text = call.text("pageToken")
    start = box.sealer.open(f"drafts|{selection.fingerprint}", text) if text else 0
    if not isinstance(start, int):
        raise invalid("Invalid pageToken")
    return start


def _short(message_id: str, thread_id: str) -> Json:
    return {"id": message_id, "threadId": thread_id}
