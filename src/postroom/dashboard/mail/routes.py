"""Pages and API of mail: search the archive, read a message and its conversation, download what came with it.

A message was written by a stranger: its HTML is shown only in a frame without script, form or origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query
from starlette.responses import HTMLResponse, Response

from postroom.dashboard.context import Here, api_router, file_reply, named_by, pages_router, permits
from postroom.dashboard.display.foreign_content import (
    FRAME_POLICY,
    OCTET_STREAM,
    SANDBOX,
    download,
    frame_document,
    linked,
)
from postroom.dashboard.display.formatting import clean
from postroom.dashboard.forms import FilterChoice, Form, mistake_in
from postroom.dashboard.mail.message import (
    Judgement,
    MailConversation,
    MessageDetail,
    judgement_of,
    read_attachment,
    read_conversation,
    read_html,
    read_message,
    read_raw,
    thread_of,
)
from postroom.dashboard.mail.search import MailList, MailQuery, list_mail, mail_accounts
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("mail")

SECTION = "mail"
MESSAGE_PAGE = "/mail/{account}/{key}"
MESSAGE = "/{account}/{key}"
MailWanted = Annotated[MailQuery, Query()]
Account = Annotated[str, Path(max_length=320, description="the mailbox, by its address")]
Key = Annotated[str, Path(max_length=200, description="`key` of the list")]
AttachmentNumber = Annotated[int, Path(ge=0, le=100_000, description="`number` of the message's attachments")]
ThreadBefore = Annotated[int | None, Query(ge=0, lt=1 << 63, description="`before` of the reply with newer messages")]


@dataclass(frozen=True, slots=True)
class MessageWithTriage:
    """A message with its triage; null if it was only archived."""

    message: MessageDetail
    judgement: Judgement | None


@pages.get("/mail")
async def mail_page(here: Here, wanted: MailWanted) -> Response:
    wanted = wanted.model_copy(update={"query": clean(wanted.query).replace("\N{REPLACEMENT CHARACTER}", "")})
    asked, mistake, status = Form.filled(query=wanted.query, account=wanted.account), None, 200
    try:
        found = await search(here, wanted)
    except BadInput as error:
        if error.field not in ("query", "account"):
            raise
        asked, mistake, status = asked.refused(error), mistake_in(wanted.query, error), 422
        found = MailList([], None, (), await mail_accounts(here.services.shared))
    return await here.page(
        "mail/list.html",
        SECTION,
        status,
        asked=asked,
        wanted=wanted,
        found=found,
        mistake=mistake,
        everywhere=wanted.model_copy(update={"query": f"in:anywhere {wanted.query}".strip()}).filter,
        address_of=message_path,
    )


@api.get("")
@permits(Permission.READ, named_by("account"))
async def search(here: Here, wanted: MailWanted) -> MailList:
    """Archived mail, newest first. Spam and trash only if the query asks for them, for example with `in:anywhere`."""
    return await list_mail(here.services.shared, wanted)


@pages.get(MESSAGE_PAGE)
async def message_page(here: Here, account: Account, key: Key, view: FilterChoice = "") -> Response:
    reply = await message(here, account, key)
    letter = reply.message
    is_formatted = letter.html is not None and view != "text"
    return await here.page(
        "mail/message.html",
        SECTION,
        letter=letter,
        address=message_path(letter.account, letter.key),
        is_formatted=is_formatted,
        text=None if is_formatted else linked(letter.text),
        height=_height(letter),
        sandbox=SANDBOX,
        thread=await thread_of(here.services.shared, letter),
        judgement=reply.judgement,
        address_of=message_path,
    )


@api.get(MESSAGE)
@permits(Permission.READ, named_by("account"))
async def message(here: Here, account: Account, key: Key) -> MessageWithTriage:
    """One message: headers, text, sanitised HTML, attachments, and what was decided and done."""
    letter = await read_message(here.services.shared, account, key)
    return MessageWithTriage(letter, await here.read(lambda tx: judgement_of(tx, letter.account, letter.key)))


@pages.get(f"{MESSAGE_PAGE}/thread")
async def thread_page(here: Here, account: Account, key: Key, before: ThreadBefore = None) -> Response:
    conversation = await thread(here, account, key, before)
    if not conversation.entries:
        raise NotFound("before", "the conversation has no older messages")
    return await here.page(
        "mail/thread.html",
        SECTION,
        conversation=conversation,
        key=key,
        address=message_path(account, key),
        address_of=message_path,
        linked=linked,
        is_first=before is None,
    )


@api.get(f"{MESSAGE}/thread")
@permits(Permission.READ, named_by("account"))
async def thread(here: Here, account: Account, key: Key, before: ThreadBefore = None) -> MailConversation:
    """The archived messages of its conversation, oldest first; of a very long one the newest."""
    return await read_conversation(here.services.shared, account, key, before)


@pages.get(f"{MESSAGE_PAGE}/body")
async def message_body_page(here: Here, account: Account, key: Key) -> Response:
    """The document in the frame."""
    safe = await read_html(here.services.shared, account, key)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@pages.get(f"{MESSAGE_PAGE}/raw")
@api.get(f"{MESSAGE}/raw", response_class=Response, responses=file_reply("message/rfc822", "the exact bytes"))
@permits(Permission.READ, named_by("account"))
async def raw(here: Here, account: Account, key: Key) -> Response:
    """The original message as a download."""
    return download(await read_raw(here.services.shared, account, key), f"{key}.eml", "message/rfc822")


@pages.get(f"{MESSAGE_PAGE}/attachments/{{number}}")
@api.get(
    f"{MESSAGE}/attachments/{{number}}",
    response_class=Response,
    responses=file_reply(OCTET_STREAM, "the decoded content"),
)
@permits(Permission.READ, named_by("account"))
async def attachment(here: Here, account: Account, key: Key, number: AttachmentNumber) -> Response:
    """An attachment as a download. Whatever its declared type, it is served as bytes."""
    name, content = await read_attachment(here.services.shared, account, key, number)
    return download(content, name)


def message_path(account: str, key: str) -> str:
    return f"/mail/{quote(account, safe='@')}/{quote(key, safe='')}"


def _height(letter: MessageDetail) -> str:
    """Of the frame: its content cannot be measured from outside, so it is estimated from the amount of text."""
    lines = sum(1 + len(line) // 90 for line in letter.text.splitlines())
    blocks = sum(letter.html.html.count(end) for end in ("</p>", "</tr>", "</li>")) if letter.html else 0
    return "short" if lines + blocks <= 6 else "middling" if lines + blocks <= 30 else "tall"
