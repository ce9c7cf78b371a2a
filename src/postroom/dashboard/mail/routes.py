"""Pages and API of mail: search the archive, read a message and its conversation, download what came with it.

A message was written by a stranger: its HTML is shown only in a frame without script, form or origin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query
from starlette.responses import HTMLResponse, Response

from postroom.dashboard.context import Here
from postroom.dashboard.display.foreign_content import (
    FRAME_POLICY,
    OCTET_STREAM,
    SANDBOX,
    download,
    frame_document,
    linked,
)
from postroom.dashboard.display.formatting import clean
from postroom.dashboard.forms import FilterChoice, Form, mistake_in, query_of
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
from postroom.dashboard.mail.search import LONGEST_QUERY, MailList, MailWanted, list_mail, mail_accounts
from postroom.dashboard.paging import PAGE, Limit
from postroom.dashboard.routing import api_router, file_reply, named_by, pages_router, permits
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission

pages = pages_router()

SECTION = "mail"
MESSAGE_PAGE = "/mail/{account}/{key}"
MailQuery = Annotated[str, Query(max_length=LONGEST_QUERY)]
MailAfter = Annotated[str, Query(max_length=600)]
PageAttachmentNumber = Annotated[int, Path(ge=0, le=100_000)]
PageThreadBefore = Annotated[int | None, Query(ge=0, lt=1 << 63)]


@pages.get("/mail")
async def mail_page(here: Here, query: MailQuery = "", account: FilterChoice = "", after: MailAfter = "") -> Response:
    query = clean(query).replace("\N{REPLACEMENT CHARACTER}", "")
    asked = Form.filled(query=query, account=account)
    try:
        found = await list_mail(here.desk.house, MailWanted(query, account or None, after or None))
    except BadInput as error:
        if error.field not in ("query", "account"):
            raise
        accounts = await mail_accounts(here.desk.house)
        shown = {"found": MailList([], None, (), accounts), "mistake": mistake_in(query, error)}
        return await _list_page(here, asked.refused(error), query, account, status=422, **shown)
    return await _list_page(here, asked, query, account, found=found, mistake=None, is_first=not after)


@pages.get(MESSAGE_PAGE)
async def message_page(here: Here, account: str, key: str, view: FilterChoice = "") -> Response:
    house = here.desk.house
    letter = await read_message(house, account, key)
    thread = await thread_of(house, letter)
    judgement = await here.read(lambda tx: judgement_of(tx, letter.account, letter.key))
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
        thread=thread,
        judgement=judgement,
        address_of=message_path,
    )


@pages.get(f"{MESSAGE_PAGE}/body")
async def message_body_page(here: Here, account: str, key: str) -> Response:
    """The document in the frame."""
    safe = await read_html(here.desk.house, account, key)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@pages.get(f"{MESSAGE_PAGE}/raw")
async def raw_message_page(here: Here, account: str, key: str) -> Response:
    content = await read_raw(here.desk.house, account, key)
    return download(content, f"{key}.eml", "message/rfc822")


@pages.get(f"{MESSAGE_PAGE}/attachments/{{number}}")
async def attachment_page(here: Here, account: str, key: str, number: PageAttachmentNumber) -> Response:
    name, content = await read_attachment(here.desk.house, account, key, number)
    return download(content, name)


@pages.get(f"{MESSAGE_PAGE}/thread")
async def thread_page(here: Here, account: str, key: str, before: PageThreadBefore = None) -> Response:
    conversation = await read_conversation(here.desk.house, account, key, before)
    if not conversation.entries:
        raise NotFound("before", "the conversation has nothing before this place")
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


def message_path(account: str, key: str) -> str:
    return f"/mail/{quote(account, safe='@')}/{quote(key, safe='')}"


async def _list_page(here: Here, asked: Form, query: str, account: str, status: int = 200, **shown: object) -> Response:
    return await here.page(
        "mail/list.html",
        SECTION,
        status,
        asked=asked,
        query=query,
        account=account,
        filter=query_of(query=query, account=account),
        everywhere=query_of(query=f"in:anywhere {query}".strip(), account=account),
        address_of=message_path,
        **{"is_first": True, **shown},
    )


def _height(letter: MessageDetail) -> str:
    """Of the frame: nobody outside can measure what is in it, so it is guessed from how much there is to read."""
    lines = sum(1 + len(line) // 90 for line in letter.text.splitlines())
    blocks = sum(letter.html.html.count(end) for end in ("</p>", "</tr>", "</li>")) if letter.html else 0
    return "short" if lines + blocks <= 6 else "middling" if lines + blocks <= 30 else "tall"


api = api_router("mail")

MESSAGE = "/{account}/{key}"
Account = Annotated[str, Path(max_length=320, description="whose mail it is: an address")]
Key = Annotated[str, Path(max_length=200, description="`key` of the list")]
AttachmentNumber = Annotated[int, Path(ge=0, le=100_000, description="`number` of the message's attachments")]
ThreadBefore = Annotated[int | None, Query(ge=0, lt=1 << 63, description="`before` of the answer with newer messages")]


@dataclass(frozen=True, slots=True)
class MessageReply:
    """A message, and what became of it; null where only the archive knows it."""

    message: MessageDetail
    judgement: Judgement | None


@api.get("")
@permits(Permission.READ, named_by("account"))
async def search(
    here: Here,
    query: Annotated[
        str,
        Query(
            max_length=LONGEST_QUERY,
            description="as in Gmail: words, from:, to:, subject:, after:2026/01/31, has:attachment, OR, -; empty: all",
        ),
    ] = "",
    account: Annotated[str | None, Query(max_length=320, description="only this mailbox")] = None,
    after: Annotated[str | None, Query(max_length=600, description="`next` of the page before")] = None,
    limit: Limit = PAGE,
) -> MailList:
    """Archived mail, newest first. Spam and trash only where the query asks for them, for example `in:anywhere`."""
    return await list_mail(here.desk.house, MailWanted(query, account, after, limit))


@api.get(MESSAGE)
@permits(Permission.READ, named_by("account"))
async def message(here: Here, account: Account, key: Key) -> MessageReply:
    """One message: headers, text, sanitised HTML, attachments, what was decided about it and what was done."""
    letter = await read_message(here.desk.house, account, key)
    return MessageReply(letter, await here.read(lambda tx: judgement_of(tx, letter.account, letter.key)))


@api.get(f"{MESSAGE}/thread")
@permits(Permission.READ, named_by("account"))
async def thread(here: Here, account: Account, key: Key, before: ThreadBefore = None) -> MailConversation:
    """All archived messages of its conversation, oldest first; of a very long one the newest."""
    return await read_conversation(here.desk.house, account, key, before)


@api.get(f"{MESSAGE}/raw", response_class=Response, responses=file_reply("message/rfc822", "the exact bytes"))
@permits(Permission.READ, named_by("account"))
async def raw(here: Here, account: Account, key: Key) -> Response:
    """The message as it came, to be saved."""
    return download(await read_raw(here.desk.house, account, key), f"{key}.eml", "message/rfc822")


@api.get(
    f"{MESSAGE}/attachments/{{number}}",
    response_class=Response,
    responses=file_reply(OCTET_STREAM, "the decoded content"),
)
@permits(Permission.READ, named_by("account"))
async def attachment(here: Here, account: Account, key: Key, number: AttachmentNumber) -> Response:
    """A file that came with it, to be saved. Whatever it says it is, it is served as bytes."""
    name, content = await read_attachment(here.desk.house, account, key, number)
    return download(content, name)
