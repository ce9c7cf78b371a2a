"""Acting on mail from its list or its page, and taking that back; answering and forwarding: routes of pages and API, on
one tool each. A worker sends what was written.

A form names the messages of a row as `mailbox key key ..`, and what to do as `intent`; a row's own star is a button of
the same form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from postroom.accounts.account import find_account
from postroom.contract.actions import DO, DO_MANY, NOTE_UNSUBSCRIBED, TAKE_BACK, ActOnManyArguments, ActOnManyReply
from postroom.dashboard.actions.routes import SNOOZE_HOURS
from postroom.dashboard.context import Here, RequestContext, Undo, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import FilterChoice, Form
from postroom.dashboard.mail.message import MessageDetail, read_message
from postroom.dashboard.mail.routes import MESSAGE_PAGE, SECTION, Account, Key, back_in, message_path
from postroom.domain.actions import OCTET_STREAM, ActionType, FileParameters
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission
from postroom.mail.addresses import parse_addresses

pages = pages_router()
api = api_router("mail")

MOVE_TO_INBOX = "inbox"
_PAST: Mapping[ActionType, str] = {
    ActionType.ARCHIVE: "archived",
    ActionType.STAR: "starred",
    ActionType.UNSTAR: "unstarred",
    ActionType.MARK_READ: "marked as read",
    ActionType.MARK_UNREAD: "marked as unread",
    ActionType.TRASH: "moved to the trash",
    ActionType.RESTORE: "taken out of the trash",
}
INTENTS = (*map(str, _PAST), MOVE_TO_INBOX, "apply_label", "remove_label", "snooze")


@dataclass(frozen=True, slots=True)
class Order:
    """What a form asks for."""

    type: ActionType
    past: str
    """As a sentence about the messages goes on."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


def order_in(form: Form) -> Order:
    """BadInput names the field that is missing or wrong."""
    intent = form.one_of("intent", INTENTS)
    match intent:
        case "inbox":
            return Order(ActionType.APPLY_LABEL, "moved to the inbox", {"label": "INBOX"})
        case "apply_label" | "remove_label":
            if not (label := form["label"]):
                raise BadInput("label", "write the name of a label")
            words = f"labelled “{label}”" if intent == "apply_label" else f"no longer labelled “{label}”"
            return Order(ActionType(intent), words, {"label": label})
        case "snooze":
            hours = form.one_of("hours", list(SNOOZE_HOURS))
            parameters = {"amount": int(hours), "units": "hours"}
            return Order(ActionType.SNOOZE, f"snoozed for {SNOOZE_HOURS[hours]}", parameters)
        case _:
            return Order(ActionType(intent), _PAST[ActionType(intent)])


@pages.post("/mail")
async def submit_mail(here: Here) -> Response:
    """The list's form: chosen messages, or the star of one row."""
    form = await here.form()
    back = back_in(form)
    for button in (ActionType.STAR, ActionType.UNSTAR):
        if form[button]:
            return await _act(here, [form[button]], Order(button, _PAST[button]), back)
    if not form.all("message"):
        return await here.go(back, "Select one or more messages first.", "warn")
    try:
        order = order_in(form)
    except BadInput as error:
        return await here.go(back, f"Not done: {error.field} {error.problem}.", "bad")
    return await _act(here, form.all("message"), order, back)


@pages.post(f"{MESSAGE_PAGE}/act")
async def submit_message(here: Here, account: Account, key: Key) -> Response:
    """The toolbar of one message."""
    form = await here.form()
    path = message_path(account, key)
    back = f"{path}?{urlencode({'list': form['list']})}" if form["list"] else path
    try:
        order = order_in(form)
    except BadInput as error:
        return await here.go(back, f"Not done: {error.field} {error.problem}.", "bad")
    return await _act(here, [f"{account} {key}"], order, back)


@pages.post("/mail/undo")
async def submit_undo(here: Here) -> Response:
    """The button of the message that says what was done."""
    form = await here.form()
    answers = (await here.call(TAKE_BACK, {"actions": list(form.all("action"))})).answers
    left = [each for each in answers if not each.counted]
    done = len(answers) - len(left)
    text = f"Undone: {plural(done, 'change')}. " if done or not left else ""
    if left:  # most of them are being done at this moment
        text += f"{plural(len(left), 'change')} not undone: {left[0].standing}."
    back = back_in(form)
    return await here.go(back, text.strip(), "warn" if left else "done", _undo([each.action for each in left], back))


@api.post("/act")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def act_on_many(here: Here, wanted: ActOnManyArguments) -> ActOnManyReply:
    """Do the same to many messages; each gets an action of its own. Those that cannot be acted on are named."""
    return await here.call(DO_MANY, wanted)


async def _act(here: RequestContext, chosen: Sequence[str], order: Order, back: str) -> Response:
    rows = [row.split() for row in chosen]
    names = [{"mailbox": row[0], "key": key} for row in rows for key in row[1:]]
    wanted = {"messages": names, "type": order.type, "parameters": dict(order.parameters)}
    try:
        reply = await here.call(DO_MANY, wanted)
    except BadInput as error:
        return await here.go(back, f"Not done: {error.problem}.", "bad")
    made = [each.action for each in reply.messages if each.action is not None]
    refused = [each for each in reply.messages if each.reason is not None]
    of_rows = f" in {plural(len(chosen), 'conversation')}" if len(names) > len(chosen) else ""
    text = f"{plural(len(made), 'message')}{of_rows} {order.past}."
    if refused:
        text += f" {plural(len(refused), 'message')} left as they were: {refused[0].reason}."
    return await here.go(back, text, "warn" if refused else "done", _undo(made, back))


def _undo(actions: Sequence[str], back: str) -> Undo | None:
    return Undo("/mail/undo", {"action": actions, "back": [back]}) if actions else None


_FIELDS = frozenset({"to", "cc", "subject", "body", "note", "body_html", "attachments"})


class Writing(StrEnum):
    REPLY = "reply"
    FORWARD = "forward"


@pages.get(f"{MESSAGE_PAGE}/write/{{kind}}")
async def writing_page(
    here: Here, account: Account, key: Key, kind: Writing, unsubscribe: FilterChoice = ""
) -> Response:
    """With `unsubscribe`, the mail that the message's list asks for; it is the owner who sends it."""
    letter = await read_message(here.services.shared, account, key)
    return await _show(here, letter, kind, _leaving(letter) if unsubscribe else _begun(letter, kind))


@pages.post(f"{MESSAGE_PAGE}/write/{{kind}}")
async def submit_writing(here: Here, account: Account, key: Key, kind: Writing) -> Response:
    letter = await read_message(here.services.shared, account, key)
    async with here.request.form() as data:
        form = Form.sent(FormData([item for item in data.multi_items() if isinstance(item[1], str)]))
        files = [await _file(each) for _, each in data.multi_items() if isinstance(each, UploadFile) and each.filename]
    try:
        parameters = _parameters(form, kind) | ({"attachments": files} if files else {})
        made = await here.call(DO, {"message": key, "type": _TYPES[kind], "parameters": parameters})
    except BadInput as error:
        field = next((part for part in error.field.split(".") if part in _FIELDS), None)
        if field is None and not error.field.startswith("action"):
            raise
        shown = form.refused(BadInput(field or _TEXT[kind], error.problem))
        return await _show(here, letter, kind, shown, 422)
    if form["unsubscribe"]:
        noted = {"endpoint_identity": account, "key": key, "way": "mail", "action": made.action}
        await here.call(NOTE_UNSUBSCRIBED, noted)
    return await here.go(f"/actions/{made.action}", "A worker sends it now; this page shows when it was sent.")


_TYPES = {Writing.REPLY: "auto_reply", Writing.FORWARD: "forward"}
_TEXT = {Writing.REPLY: "body", Writing.FORWARD: "note"}


async def _show(here: RequestContext, letter: MessageDetail, kind: Writing, form: Form, status: int = 200) -> Response:
    account = await here.read(lambda tx: find_account(tx, letter.account))
    name = None if account is None else account.display_name
    return await here.page(
        "mail/write.html",
        SECTION,
        status,
        letter=letter,
        kind=kind,
        form=form,
        author=f"{name} <{letter.account}>" if name else letter.account,
        text_field=_TEXT[kind],
        address=message_path(letter.account, letter.key),
    )


def _begun(letter: MessageDetail, kind: Writing) -> Form:
    if kind is Writing.FORWARD:
        return Form.filled(subject=f"Fwd: {letter.subject}".strip())
    asked = letter.reply_to.shown or letter.sender.shown
    mark = "" if letter.subject.lower().startswith("re:") else "Re: "
    return Form.filled(to=", ".join(each.address for each in asked), subject=f"{mark}{letter.subject}".strip())


def _leaving(letter: MessageDetail) -> Form:
    offer = letter.unsubscribe
    if offer is None or offer.mail is None:
        raise NotFound("unsubscribe", "this message names no address to unsubscribe by mail")
    mail = offer.mail
    return Form.filled(to=mail.to, subject=mail.subject, body=mail.body, unsubscribe="yes")


def _parameters(form: Form, kind: Writing) -> dict[str, Any]:
    given: dict[str, Any] = {name: _addresses(form[name]) for name in ("to", "cc")}
    given |= {"subject": form.optional("subject"), "body_html": form.optional("body_html")}
    given[_TEXT[kind]] = form[_TEXT[kind]].replace("\r\n", "\n") or None
    return {name: value for name, value in given.items() if value}


def _addresses(text: str) -> list[str]:
    """As a person writes them: separated by commas, with or without names."""
    found = [each.address for each in parse_addresses(text)]
    return found or [text] if text else []


async def _file(upload: UploadFile) -> dict[str, Any]:
    kind = (upload.content_type or OCTET_STREAM).partition(";")[0].strip() or OCTET_STREAM
    content = await upload.read()
    return FileParameters.of(upload.filename or "file", kind, content).model_dump(exclude_none=True)
