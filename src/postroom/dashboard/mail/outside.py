"""Pages and API of what reaches outside from a message: its remote pictures, and leaving the list that sent it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.app.remote_pictures import PictureSender, list_senders
from postroom.contract import actions as contract
from postroom.contract.actions import DO, ActionReply
from postroom.dashboard.context import Here, api_router, named_by, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.mailing_lists import GRACE, WINDOW, MailingLists, SendersBy, mailing_lists
from postroom.dashboard.mail.routes import MESSAGE, MESSAGE_PAGE, SECTION, Account, Key, message_path
from postroom.dashboard.mail.search import mail_accounts, require_account
from postroom.domain.errors import BadInput, NotAllowed
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("mail")
senders_api = api_router("pictures")
lists_api = api_router("unsubscribe")

_Sender = Annotated[str, Path(min_length=3, max_length=320, description="an e-mail address")]


@pages.post(f"{MESSAGE_PAGE}/pictures")
async def submit_pictures(here: Here, account: Account, key: Key) -> Response:
    """The buttons above a message: load once, or always for its sender."""
    form = await here.form()
    back, named = _back(form, account, key), {"endpoint_identity": account, "key": key}
    try:
        if form.one_of("intent", ("once", "always")) == "always":
            sender = (await here.call(contract.ALLOW_PICTURES, named)).address
            return await here.go(back, f"Pictures in authenticated mail from {sender} are loaded from now on.")
        found = await here.call(contract.LOAD_PICTURES, named)
    except BadInput as error:
        return await here.go(back, f"Nothing was loaded: {error.problem}.", "bad")
    return await here.go(back, _loaded(found), "done" if found.loaded else "warn")


def _loaded(found: contract.PicturesReply) -> str:
    said = [f"{plural(found.loaded, 'picture')} loaded"]
    if found.failed:
        said.append(f"{plural(found.failed, 'picture')} could not be downloaded")
    if found.left_out:
        said.append(f"{plural(found.left_out, 'tracking picture')} left out")
    return f"{', '.join(said)}."


@api.post(f"{MESSAGE}/pictures")
@permits(Permission.ACT, named_by("account"))
async def load_pictures(here: Here, account: Account, key: Key) -> contract.PicturesReply:
    """Load the remote pictures of a message, for the page that shows it. Its sender may learn that it was opened."""
    return await here.call(contract.LOAD_PICTURES, {"endpoint_identity": account, "key": key})


@pages.get("/mail/pictures")
async def picture_senders_page(here: Here) -> Response:
    return await here.page("mail/pictures.html", SECTION, senders=await list_picture_senders(here))


@pages.post("/mail/pictures/forget")
async def submit_forget_sender(here: Here) -> Response:
    form = await here.form()
    gone = await here.call(contract.FORGET_PICTURES, {"sender": form["sender"]})
    back = form["back"] if form["back"].startswith("/mail/") else "/mail/pictures"
    return await here.go(back, f"Pictures from {gone.address} are no longer loaded automatically.")


@senders_api.get("/senders")
@permits(Permission.READ)
async def list_picture_senders(here: Here) -> list[PictureSender]:
    """Senders whose remote pictures are loaded whenever their mail is opened."""
    return await here.read(list_senders)


@senders_api.post("/senders")
@permits(Permission.SETTINGS)
async def allow_picture_sender(here: Here, wanted: contract.ArchivedMailArguments) -> contract.PictureSenderReply:
    """Always load the remote pictures of the sender of this message. Only if the message is authenticated."""
    return await here.call(contract.ALLOW_PICTURES, wanted)


@senders_api.delete("/senders/{sender}")
@permits(Permission.SETTINGS)
async def forget_picture_sender(here: Here, sender: _Sender) -> contract.PictureSenderReply:
    """Stop loading the remote pictures of a sender automatically."""
    return await here.call(contract.FORGET_PICTURES, {"sender": sender})


class ListsQuery(BaseModel, frozen=True):
    account: str | None = Field(None, max_length=320, description="one mailbox; default: all")
    by: SendersBy = Field(SendersBy.MESSAGES, description="most messages first, or most unread messages")
    limit: int = Field(25, ge=1, le=100, description="how many senders at most")


ListsWanted = Annotated[ListsQuery, Query()]


@pages.get("/unsubscribe")
async def unsubscribe_page(here: Here, wanted: ListsWanted) -> Response:
    account = wanted.account or None
    tabs = [
        (f"/unsubscribe?{urlencode({'by': by, **({'account': account} if account else {})})}", title, by is wanted.by)
        for by, title in ((SendersBy.MESSAGES, "Most mail"), (SendersBy.UNREAD, "Most unread"))
    ]
    return await here.page(
        "mail/unsubscribe.html",
        "unsubscribe",
        found=await show_lists(here, wanted.model_copy(update={"account": account})),
        accounts=await mail_accounts(here.services.shared),
        wanted=wanted,
        tabs=tabs,
        days=WINDOW.days,
        grace=GRACE.days,
        address_of=message_path,
        can_ask=here.visitor.caller.may(Permission.APPROVE),
    )


@lists_api.get("")
@permits(Permission.READ, named_by("account"))
async def show_lists(here: Here, wanted: ListsWanted) -> MailingLists:
    """Senders of list mail with how much of it is unread, and the lists that were left with what came since."""
    shared = here.services.shared
    mailbox = None if wanted.account is None else require_account(wanted.account, await mail_accounts(shared))
    return await mailing_lists(shared, mailbox, wanted.by, wanted.limit, here.now)


@pages.post(f"{MESSAGE_PAGE}/unsubscribe")
async def submit_unsubscribe(here: Here, account: Account, key: Key) -> Response:
    """One click: an action of the owner's, which a worker carries out."""
    form = await here.form()
    try:
        made = await unsubscribe(here, account, key)
    except (BadInput, NotAllowed) as error:
        reason = error.problem if isinstance(error, BadInput) else error.message
        return await here.go(_back(form, account, key), f"Nothing was sent: {reason}.", "bad")
    return await here.go(f"/actions/{made.action}", "A worker unsubscribes you now; this page shows how it went.")


@api.post(f"{MESSAGE}/unsubscribe")
@permits(Permission.ACT, named_by("account"))
async def unsubscribe(here: Here, account: Account, key: Key) -> ActionReply:
    """Let a worker unsubscribe you with one click, as your own order. A token also needs `approve`."""
    return await here.call(DO, {"message": key, "type": "unsubscribe"})


@pages.post(f"{MESSAGE_PAGE}/unsubscribed")
async def submit_unsubscribed(here: Here, account: Account, key: Key) -> Response:
    """The owner opened the list's own page."""
    left = await note_unsubscribed(
        here, contract.NoteUnsubscribedArguments(endpoint_identity=account, key=key, way="link", action=None)
    )
    return await here.go("/unsubscribe", f"Postroom watches whether mail still comes from {left.sender}.")


@pages.post("/unsubscribe/forget")
async def submit_forget_unsubscribed(here: Here) -> Response:
    form = await here.form()
    named = {"endpoint_identity": form["mailbox"], "sender": form["sender"]}
    gone = await here.call(contract.FORGET_UNSUBSCRIBED, named)
    return await here.go("/unsubscribe", f"{gone.sender} is listed as a sender again.")


@lists_api.post("/left")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def note_unsubscribed(here: Here, wanted: contract.NoteUnsubscribedArguments) -> contract.UnsubscribedReply:
    """Record that a list was left by mail or on its web page. One click is the action `unsubscribe`."""
    return await here.call(contract.NOTE_UNSUBSCRIBED, wanted)


@lists_api.post("/forget")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def forget_unsubscribed(here: Here, wanted: contract.UnsubscribedArguments) -> contract.UnsubscribedReply:
    """No longer watch whether mail still comes from a sender. Nothing is sent."""
    return await here.call(contract.FORGET_UNSUBSCRIBED, wanted)


def _back(form: Form, account: str, key: str) -> str:
    """The message, as it was opened."""
    path = message_path(account, key)
    return f"{path}?{urlencode({'list': form['list']})}" if form["list"] else path
