"""Pages and API of mail: search the archive, save a search, read a message and its conversation, download what came
with it.

A message was written by a stranger: its HTML is shown only in a frame without script, form or origin. How close the
rows of the list are is a cookie, so that every browser has its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from fastapi import Path, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from postroom.archive.search import Sort
from postroom.contract import settings as contract
from postroom.dashboard.actions.routes import SNOOZE_HOURS
from postroom.dashboard.context import Here, api_router, file_reply, named_by, pages_router, permits
from postroom.dashboard.display import foreign_content
from postroom.dashboard.display.formatting import clean
from postroom.dashboard.forms import FilterChoice, Form, mistake_in
from postroom.dashboard.mail.conversations import ConversationList, list_conversations
from postroom.dashboard.mail.mailing_lists import left_list
from postroom.dashboard.mail.message import (
    MailConversation,
    MessageDetail,
    MessageState,
    MessageVerdict,
    around,
    conversation_of,
    judgement_of,
    picture_state,
    read_attachment,
    read_conversation,
    read_html,
    read_message,
    read_raw,
    related_to,
    state_of,
)
from postroom.dashboard.mail.search import (
    MailList,
    MailQuery,
    MailView,
    count_hits,
    find_mail,
    find_tier,
    mail_accounts,
    mail_list,
    require_account,
    suggested_query,
)
from postroom.dashboard.mail.sidebar import MailPlace, MailPlaces, mail_places
from postroom.dashboard.paging import BoundedCount
from postroom.dashboard.rules.queries import name_suggestions
from postroom.db import Tx
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission
from postroom.mail.categories.model import NONE
from postroom.mail.query import parse

pages = pages_router()
api = api_router("mail")

SECTION = "mail"
MESSAGE_PAGE = "/mail/{account}/{key}"
MESSAGE = "/{account}/{key}"
MailWanted = Annotated[MailQuery, Query()]
Account = Annotated[str, Path(max_length=320, description="the mailbox, by its address")]
Key = Annotated[str, Path(max_length=200, description="`key` of the list")]
FilterMailbox = Annotated[str | None, Query(max_length=320, description="only this mailbox")]
ListOpened = Annotated[str, Query(max_length=2_000, description="the query string of the list it was opened from")]
AttachmentNumber = Annotated[int, Path(ge=0, le=100_000, description="`number` of the message's attachments")]
ThreadBefore = Annotated[int | None, Query(ge=0, lt=1 << 63, description="`before` of the reply with newer messages")]


@dataclass(frozen=True, slots=True)
class MessageWithTriage:
    """A message, its triage (null if it was only archived), what can be done with it and what was done."""

    message: MessageDetail
    judgement: MessageVerdict | None
    state: MessageState


@pages.get("/mail")
async def mail_page(here: Here, wanted: MailWanted) -> Response:
    wanted = wanted.model_copy(update={"query": clean(wanted.query).replace("\N{REPLACEMENT CHARACTER}", "")})
    if not wanted.query and wanted.view is None and wanted.tier is None:
        wanted = wanted.model_copy(update={"view": MailView.INBOX})
    asked, mistake, status = Form.filled(query=wanted.query, account=wanted.account, sort=wanted.sort), None, 200
    try:
        found = await conversations(here, wanted)
    except BadInput as error:
        if error.field not in ("query", "account", "sort"):
            raise
        asked, mistake, status = asked.refused(error), mistake_in(wanted.query, error), 422
        found = ConversationList([], None, None, (), await mail_accounts(here.services.shared))
    account = wanted.account if not asked.errors else None
    beside = await mail_places(here.services.shared, here.services.mail_counts, account)
    is_search = bool(wanted.query) and wanted.is_first_page and not asked.errors
    hits = await count_hits(here.services.shared, wanted) if is_search else None
    suggestion = await suggested_query(here.services.shared, wanted, hits)
    return await here.page(
        "mail/list.html",
        SECTION,
        status,
        asked=asked,
        wanted=wanted,
        found=found,
        mistake=mistake,
        title=_title(wanted),
        hits=hits,
        suggestion=suggestion,
        suggested=wanted.model_copy(update={"query": suggestion or "", "view": None}).filter,
        here=_place(wanted),
        places=beside,
        everywhere=wanted.model_copy(update={"query": f"in:anywhere {wanted.query}".strip(), "view": None}).filter,
        hours=SNOOZE_HOURS,
        saved=_saved(wanted, beside) if wanted.query else None,
        density=density_of(here.request),
        densities=list(Density),
        sorts=_SORTS,
        address_of=message_path,
    )


_SORTS = {Sort.DATE: "Newest first", Sort.RANK: "Best words first", Sort.BEST: "Best by words and meaning first"}
_TITLES = {MailView.ALL: "All mail"}


def _title(wanted: MailQuery) -> str:
    if wanted.tier is not None:
        return f"{str(wanted.tier).replace('_', ' ').capitalize()} mail"
    if wanted.query or wanted.view is None:
        return "Search"
    return _TITLES.get(wanted.view, str(wanted.view).capitalize())


def _place(wanted: MailQuery) -> str:
    """Its address among the places beside the list."""
    filters = {"query": wanted.query or None, "view": wanted.view, "tier": wanted.tier, "account": wanted.account}
    if wanted.view is MailView.INBOX and not wanted.query:
        filters["view"] = None
    query = urlencode({name: value for name, value in filters.items() if value is not None})
    return f"/mail?{query}" if query else "/mail"


def _saved(wanted: MailQuery, beside: MailPlaces) -> MailPlace | None:
    """The saved search that this one is, if it is one."""
    here = _place(wanted.model_copy(update={"query": wanted.whole_query, "view": None}))
    return next((each for each in beside.searches if each.href == here), None)


@api.get("")
@permits(Permission.READ, named_by("account"))
async def search(here: Here, wanted: MailWanted) -> MailList:
    """Archived mail, newest first. Spam and trash only if the query asks for them, for example with `in:anywhere`."""
    if wanted.tier is not None:
        return mail_list(await find_tier(here.services.shared, wanted, wanted.tier))
    return mail_list(await find_mail(here.services.shared, wanted))


@api.get("/conversations")
@permits(Permission.READ, named_by("account"))
async def conversations(here: Here, wanted: MailWanted) -> ConversationList:
    """The same mail as conversations, one row each. `keys` are the messages that a row stands for."""
    return await list_conversations(here.services.shared, wanted)


@dataclass(frozen=True, slots=True)
class MailCount:
    count: BoundedCount | None
    """Counted up to a thousand; null if counting takes too long."""


@api.get("/count")
@permits(Permission.READ, named_by("account"))
async def count(here: Here, wanted: MailWanted) -> MailCount:
    """How many messages a search finds."""
    parse(wanted.query, int(here.now.timestamp() * 1_000), strict=True)
    return MailCount(await count_hits(here.services.shared, wanted))


@api.get("/places")
@permits(Permission.READ, named_by("account"))
async def places(here: Here, account: FilterMailbox = None) -> MailPlaces:
    """Mailboxes, views, tiers and labels, with how much is unread; counts end at 99."""
    shared = here.services.shared
    mailbox = None if account is None else require_account(account, await mail_accounts(shared))
    return await mail_places(shared, here.services.mail_counts, mailbox)


@pages.get(MESSAGE_PAGE)
async def message_page(
    here: Here, account: Account, key: Key, view: FilterChoice = "", list: ListOpened = ""
) -> Response:
    reply = await message(here, account, key)
    letter, state = reply.message, reply.state
    is_formatted = letter.html is not None and view != "text"
    opened = _opened_list(list, letter)
    (known, pictures, left), thread, related, neighbours = await asyncio.gather(
        here.read(
            lambda tx: (name_suggestions(tx), picture_state(tx, here.app.pictures, letter), left_list(tx, letter))
        ),
        conversation_of(here.services.shared, letter, here.visitor.caller.endpoint_identity),
        related_to(here.services.shared, letter),
        around(here.services.shared, letter, opened),
    )
    return await here.page(
        "mail/message.html",
        SECTION,
        letter=letter,
        address=message_path(letter.account, letter.key),
        is_formatted=is_formatted,
        text=None if is_formatted else foreign_content.folded(letter.text),
        height=_height(letter),
        sandbox=foreign_content.SANDBOX,
        thread=thread,
        related=related,
        judgement=reply.judgement,
        address_of=message_path,
        category_choices=[*here.app.categories.defined.names, NONE],
        state=state,
        pictures=pictures,
        left=left,
        can_write=state.obstacle is None,
        can_answer=here.visitor.caller.may(Permission.APPROVE),
        around=neighbours,
        opened=opened,
        list=list,
        back=_place(opened),
        labels=known.labels,
        hours=SNOOZE_HOURS,
    )


def _opened_list(text: str, letter: MessageDetail) -> MailQuery:
    """The list that the message was opened from; without one, the inbox if it is there, else all mail."""
    try:
        named = MailQuery.model_validate(dict(parse_qsl(text)))
    except ValidationError:
        named = MailQuery.model_validate({})
    if named.query or named.view is not None:
        return named
    view = MailView.INBOX if "INBOX" in letter.labels else MailView.ALL
    return named.model_copy(update={"view": view, "tier": None})


@api.get(MESSAGE)
@permits(Permission.READ, named_by("account"))
async def message(here: Here, account: Account, key: Key) -> MessageWithTriage:
    """One message: headers, text, sanitised HTML, attachments, and what was decided and done."""
    letter = await read_message(here.services.shared, account, key)

    def read(tx: Tx) -> tuple[MessageVerdict | None, MessageState]:
        judgement = judgement_of(tx, letter.account, letter.key)
        return judgement, state_of(tx, letter, judgement, here.now)

    return MessageWithTriage(letter, *await here.read(read))


@pages.get(f"{MESSAGE_PAGE}/thread")
async def thread_page(here: Here, account: Account, key: Key, before: ThreadBefore = None) -> Response:
    conversation = await thread(here, account, key, before)
    if not conversation.entries:
        raise NotFound("before", "the conversation has no older messages")
    return await here.page(
        "mail/thread.html",
        SECTION,
        conversation=conversation,
        account=account,
        key=key,
        address=message_path(account, key),
        address_of=message_path,
        folded=foreign_content.folded,
        is_first=before is None,
    )


@api.get(f"{MESSAGE}/thread")
@permits(Permission.READ, named_by("account"))
async def thread(here: Here, account: Account, key: Key, before: ThreadBefore = None) -> MailConversation:
    """The archived messages of its conversation in all mailboxes, oldest first; of a very long one the newest."""
    only = here.visitor.caller.endpoint_identity
    return await read_conversation(here.services.shared, account, key, before, only)


@pages.get(f"{MESSAGE_PAGE}/body")
async def message_body_page(here: Here, account: Account, key: Key) -> Response:
    """The document in the frame."""
    pictures = await here.app.pictures.to_show(account, key)
    contents = None if pictures is None else pictures.contents
    safe = await read_html(here.services.shared, account, key, contents)
    policy = foreign_content.PICTURES_POLICY if contents else foreign_content.FRAME_POLICY
    return HTMLResponse(foreign_content.frame_document(safe), headers={"content-security-policy": policy})


@pages.get(f"{MESSAGE_PAGE}/raw")
@api.get(f"{MESSAGE}/raw", response_class=Response, responses=file_reply("message/rfc822", "the exact bytes"))
@permits(Permission.READ, named_by("account"))
async def raw(here: Here, account: Account, key: Key) -> Response:
    """The original message as a download."""
    return foreign_content.download(await read_raw(here.services.shared, account, key), f"{key}.eml", "message/rfc822")


@pages.get(f"{MESSAGE_PAGE}/attachments/{{number}}")
@api.get(
    f"{MESSAGE}/attachments/{{number}}",
    response_class=Response,
    responses=file_reply(foreign_content.OCTET_STREAM, "the decoded content"),
)
@permits(Permission.READ, named_by("account"))
async def attachment(here: Here, account: Account, key: Key, number: AttachmentNumber) -> Response:
    """An attachment as a download. Whatever its declared type, it is served as bytes."""
    name, content = await read_attachment(here.services.shared, account, key, number)
    return foreign_content.download(content, name)


def message_path(account: str, key: str) -> str:
    return f"/mail/{quote(account, safe='@')}/{quote(key, safe='')}"


def _height(letter: MessageDetail) -> str:
    """Of the frame: its content cannot be measured from outside, so it is estimated from the amount of text."""
    lines = sum(1 + len(line) // 90 for line in letter.text.splitlines())
    blocks = sum(letter.html.html.count(end) for end in ("</p>", "</tr>", "</li>")) if letter.html else 0
    most = {"short": 6, "modest": 15, "middling": 30}
    return next((name for name, amount in most.items() if lines + blocks <= amount), "tall")


SearchName = Annotated[str, Path(min_length=1, max_length=contract.LONGEST_NAME, description="the search's name")]
_COOKIE = "postroom_density"
_YEAR_S = 365 * 86_400


class Density(StrEnum):
    COMFORTABLE = "comfortable"
    COMPACT = "compact"


def density_of(request: Request) -> Density:
    """As this browser set it; anything else that the cookie may hold means comfortable."""
    named = request.cookies.get(_COOKIE, "")
    return Density(named) if named in list(Density) else Density.COMFORTABLE


def back_in(form: Form) -> str:
    """The list, or the page of a message, as its own links write it."""
    back = urlsplit(form["back"] or "/mail")
    if back.scheme or back.netloc or not f"{back.path}/".startswith("/mail/"):
        raise BadInput("back", "is not a page of mail")
    query = urlencode(parse_qsl(back.query))
    return f"{back.path}?{query}" if query else back.path


@pages.post("/mail/density")
async def submit_density(here: Here) -> Response:
    form = await here.form()
    density = form.one_of("density", list(Density))
    answer = await here.go(back_in(form))
    secure = here.services.hosts.is_secure
    answer.set_cookie(_COOKIE, density, max_age=_YEAR_S, httponly=True, samesite="lax", secure=secure)
    return answer


@pages.post("/mail/searches")
async def submit_search(here: Here) -> Response:
    form = await here.form()
    back = back_in(form)
    wanted = {"name": form["name"], "query": form["query"], "endpoint_identity": form.optional("account")}
    try:
        saved = await here.call(contract.SAVE_SEARCH, wanted)
    except BadInput as error:
        return await here.go(back, f"The search was not saved: {error.field} {error.problem}.", "bad")
    return await here.go(back, f"Search saved as “{saved.name}”.")


@pages.post("/mail/searches/remove")
async def submit_removal(here: Here) -> Response:
    form = await here.form()
    back = back_in(form)
    removed = await here.call(contract.REMOVE_SEARCH, {"name": form["name"]})
    return await here.go(back, f"Saved search “{removed.name}” removed.")


@api.get("/searches")
@permits(Permission.READ)
async def saved_searches(here: Here) -> contract.SavedSearchesReply:
    """The saved searches, by name."""
    return await here.call(contract.LIST_SEARCHES, {})


@api.post("/searches")
@permits(Permission.SETTINGS, keeps_to_mailbox=True)
async def save_search(here: Here, wanted: contract.SaveSearchArguments) -> contract.SavedSearchReply:
    """Save a search under a name that is not in use."""
    return await here.call(contract.SAVE_SEARCH, wanted)


@api.delete("/searches/{name}")
@permits(Permission.SETTINGS)
async def remove_search(here: Here, name: SearchName) -> contract.SavedSearchReply:
    """Remove a saved search; the reply is what it was."""
    return await here.call(contract.REMOVE_SEARCH, {"name": name})
