"""Mail: search the archive, read a message and its conversation, download what came with it.

What a message holds was written by a stranger. Its HTML is shown only in a frame without script, form and origin.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query
from starlette.responses import HTMLResponse, Response

from postroom.dashboard.choosing import Choice, query_of
from postroom.dashboard.forms import Form
from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.judgements import judgement_of
from postroom.dashboard.reading.letters import (
    Letter,
    read_attachment,
    read_conversation,
    read_html,
    read_letter,
    read_raw,
    thread_of,
)
from postroom.dashboard.reading.mail import LONGEST_QUERY, MailList, MailWanted, list_mail, mail_accounts
from postroom.dashboard.showing.downloads import download
from postroom.dashboard.showing.html import FRAME_POLICY, SANDBOX, frame_document
from postroom.dashboard.showing.mistakes import mistake_in
from postroom.dashboard.showing.text import linked
from postroom.dashboard.visit import Here
from postroom.dashboard.wording import clean
from postroom.domain.errors import BadInput, NotFound

router = pages_router()

SECTION = "mail"
MESSAGE = "/mail/{account}/{key}"
Asked = Annotated[str, Query(max_length=LONGEST_QUERY)]
After = Annotated[str, Query(max_length=600)]
Number = Annotated[int, Path(ge=0, le=100_000)]
Before = Annotated[int | None, Query(ge=0, lt=1 << 63)]


@router.get("/mail")
async def mail(here: Here, query: Asked = "", account: Choice = "", after: After = "") -> Response:
    query = clean(query).replace("\N{REPLACEMENT CHARACTER}", "")
    asked = Form.filled(query=query, account=account)
    try:
        found = await list_mail(here.desk.house, MailWanted(query, account or None, after or None))
    except BadInput as error:
        if error.field not in ("query", "account"):
            raise
        accounts = await mail_accounts(here.desk.house)
        shown = {"found": MailList([], None, (), accounts), "mistake": mistake_in(query, error)}
        return await _list(here, asked.refused(error), query, account, status=422, **shown)
    return await _list(here, asked, query, account, found=found, mistake=None, is_first=not after)


@router.get(MESSAGE)
async def message(here: Here, account: str, key: str, view: Choice = "") -> Response:
    house = here.desk.house
    letter = await read_letter(house, account, key)
    thread = await thread_of(house, letter)
    judgement = await here.read(lambda tx: judgement_of(tx, letter.account, letter.key))
    is_formatted = letter.html is not None and view != "text"
    return await here.page(
        "mail/message.html",
        SECTION,
        letter=letter,
        address=address_of(letter.account, letter.key),
        is_formatted=is_formatted,
        text=None if is_formatted else linked(letter.text),
        height=_height(letter),
        sandbox=SANDBOX,
        thread=thread,
        judgement=judgement,
        address_of=address_of,
    )


@router.get(f"{MESSAGE}/body")
async def body(here: Here, account: str, key: str) -> Response:
    """The document in the frame."""
    safe = await read_html(here.desk.house, account, key)
    return HTMLResponse(frame_document(safe), headers={"content-security-policy": FRAME_POLICY})


@router.get(f"{MESSAGE}/raw")
async def raw(here: Here, account: str, key: str) -> Response:
    content = await read_raw(here.desk.house, account, key)
    return download(content, f"{key}.eml", "message/rfc822")


@router.get(f"{MESSAGE}/attachments/{{number}}")
async def attachment(here: Here, account: str, key: str, number: Number) -> Response:
    name, content = await read_attachment(here.desk.house, account, key, number)
    return download(content, name)


@router.get(f"{MESSAGE}/thread")
async def thread(here: Here, account: str, key: str, before: Before = None) -> Response:
    conversation = await read_conversation(here.desk.house, account, key, before)
    if not conversation.entries:
        raise NotFound("before", "the conversation has nothing before this place")
    return await here.page(
        "mail/thread.html",
        SECTION,
        conversation=conversation,
        key=key,
        address=address_of(account, key),
        address_of=address_of,
        linked=linked,
        is_first=before is None,
    )


def address_of(account: str, key: str) -> str:
    return f"/mail/{quote(account, safe='@')}/{quote(key, safe='')}"


async def _list(here: Here, asked: Form, query: str, account: str, status: int = 200, **shown: object) -> Response:
    return await here.page(
        "mail/list.html",
        SECTION,
        status,
        asked=asked,
        query=query,
        account=account,
        filter=query_of(query=query, account=account),
        everywhere=query_of(query=f"in:anywhere {query}".strip(), account=account),
        address_of=address_of,
        **{"is_first": True, **shown},
    )


def _height(letter: Letter) -> str:
    """Of the frame: nobody outside can measure what is in it, so it is guessed from how much there is to read."""
    lines = sum(1 + len(line) // 90 for line in letter.text.splitlines())
    blocks = sum(letter.html.html.count(end) for end in ("</p>", "</tr>", "</li>")) if letter.html else 0
    return "short" if lines + blocks <= 6 else "middling" if lines + blocks <= 30 else "tall"
