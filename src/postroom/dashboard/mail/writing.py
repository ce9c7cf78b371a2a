"""The page on which a person answers a message or forwards it. A worker sends what was written."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.responses import Response

from postroom.accounts.account import find_account
from postroom.contract.actions import DO
from postroom.contract.outside import NOTE_UNSUBSCRIBED
from postroom.dashboard.context import Here, RequestContext, pages_router
from postroom.dashboard.forms import FilterChoice, Form
from postroom.dashboard.mail.message import MessageDetail, read_message
from postroom.dashboard.mail.routes import MESSAGE_PAGE, SECTION, Account, Key, message_path
from postroom.domain.actions import OCTET_STREAM, FileParameters
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.addresses import parse_addresses

pages = pages_router()
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
