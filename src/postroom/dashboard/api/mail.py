"""`/api/mail`: the same as the Mail page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Path, Query
from starlette.responses import Response

from postroom.dashboard.api import api_router
from postroom.dashboard.api.files import file_answer
from postroom.dashboard.paging import PAGE, Limit
from postroom.dashboard.reading.judgements import Judgement, judgement_of
from postroom.dashboard.reading.letters import (
    Conversation,
    Letter,
    read_attachment,
    read_conversation,
    read_letter,
    read_raw,
)
from postroom.dashboard.reading.mail import LONGEST_QUERY, MailList, MailWanted, list_mail
from postroom.dashboard.security.permits import named_by, permits
from postroom.dashboard.showing.downloads import ANYTHING, download
from postroom.dashboard.visit import Here
from postroom.domain.roles import Permission

router = api_router("mail")

MESSAGE = "/{account}/{key}"
Account = Annotated[str, Path(max_length=320, description="whose mail it is: an address")]
Key = Annotated[str, Path(max_length=200, description="`key` of the list")]
Number = Annotated[int, Path(ge=0, le=100_000, description="`number` of the message's attachments")]
Before = Annotated[int | None, Query(ge=0, lt=1 << 63, description="`before` of the answer with newer messages")]


@dataclass(frozen=True, slots=True)
class Read:
    """A message, and what became of it; null where only the archive knows it."""

    message: Letter
    judgement: Judgement | None


@router.get("")
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


@router.get(MESSAGE)
@permits(Permission.READ, named_by("account"))
async def message(here: Here, account: Account, key: Key) -> Read:
    """One message: headers, text, sanitised HTML, attachments, what was decided about it and what was done."""
    letter = await read_letter(here.desk.house, account, key)
    return Read(letter, await here.read(lambda tx: judgement_of(tx, letter.account, letter.key)))


@router.get(f"{MESSAGE}/thread")
@permits(Permission.READ, named_by("account"))
async def thread(here: Here, account: Account, key: Key, before: Before = None) -> Conversation:
    """All archived messages of its conversation, oldest first; of a very long one the newest."""
    return await read_conversation(here.desk.house, account, key, before)


@router.get(f"{MESSAGE}/raw", response_class=Response, responses=file_answer("message/rfc822", "the exact bytes"))
@permits(Permission.READ, named_by("account"))
async def raw(here: Here, account: Account, key: Key) -> Response:
    """The message as it came, to be saved."""
    return download(await read_raw(here.desk.house, account, key), f"{key}.eml", "message/rfc822")


@router.get(
    f"{MESSAGE}/attachments/{{number}}", response_class=Response, responses=file_answer(ANYTHING, "the decoded content")
)
@permits(Permission.READ, named_by("account"))
async def attachment(here: Here, account: Account, key: Key, number: Number) -> Response:
    """A file that came with it, to be saved. Whatever it says it is, it is served as bytes."""
    name, content = await read_attachment(here.desk.house, account, key, number)
    return download(content, name)
