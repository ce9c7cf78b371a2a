"""Review: mail that nothing decided, or that the model left to a person; worked off one by one or many at once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field
from starlette.responses import Response

from postroom.accounts.account import list_accounts
from postroom.contract import actions as acting
from postroom.contract import actions as contract
from postroom.dashboard.context import Here, RequestContext, Undo, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import Form
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.paging import ListQuery
from postroom.dashboard.rules.queries import name_suggestions
from postroom.domain.actions import ActionType, ReviewCause
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission
from postroom.triage import review
from postroom.triage.review import CAUSES

pages = pages_router()
api = api_router("review")

SECTION = "review"
ACTIONS = {
    ActionType.ARCHIVE: "Archive",
    ActionType.MARK_READ: "Mark as read",
    ActionType.STAR: "Star",
    ActionType.APPLY_LABEL: "Apply a label",
    ActionType.TRASH: "Move to the trash",
}
"""At hand for the chosen messages; the page of a message has all of them."""


class ReviewQuery(ListQuery):
    account: str | None = Field(None, max_length=320, description="only this mailbox")
    cause: ReviewCause | None = None


ReviewWanted = Annotated[ReviewQuery, Query()]


@pages.get("/review")
async def review_page(here: Here, wanted: ReviewWanted) -> Response:
    return await _page(here, wanted)


@api.get("")
@permits(Permission.READ, keeps_to_mailbox=True)
async def show_review(here: Here, wanted: ReviewWanted) -> contract.ReviewReply:
    """Mail that needs review, newest first."""
    filters = {"cause": wanted.cause, "endpoint_identity": wanted.account, "after": wanted.after}
    given = {name: value for name, value in filters.items() if value is not None}
    return await here.call(contract.LIST_REVIEW, {**given, "limit": wanted.limit})


@api.post("/done")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def mark_done(here: Here, which: contract.ReviewSelection) -> contract.ReviewDoneReply:
    """Mark mail as reviewed. Nothing is done to the mail itself."""
    return await here.call(contract.REVIEW_DONE, which)


@api.post("/reopen")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def reopen(here: Here, which: contract.ReviewItems) -> contract.ReviewReopenedReply:
    """Put mail back on the list that was marked as reviewed."""
    return await here.call(contract.REVIEW_REOPEN, which)


@api.post("/ask")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def ask(here: Here, which: contract.ReviewSelection) -> contract.ReviewAskedReply:
    """Run rules and the model again on mail that nothing has decided."""
    return await here.call(contract.REVIEW_ASK, which)


@pages.post("/review")
async def submit_review(here: Here) -> Response:
    form = await here.form()
    try:
        said, undo = await _carried_out(here, form)
        return await here.go("/review", said, undo=undo)
    except BadInput as error:
        return await _page(here, ReviewQuery(), form.refused(error), 422)


@pages.post("/review/undo")
async def submit_undo(here: Here) -> Response:
    """Put items back on the list, and take back what was ordered for them."""
    form = await here.form()
    items, actions = list(form.all("item")), list(form.all("action"))
    taken = (await here.call(acting.TAKE_BACK, {"actions": actions})).answers if actions else []
    back = await here.call(contract.REVIEW_REOPEN, {"items": items}) if items else None
    said = [
        f"{plural(back.reopened, 'message is', 'messages are')} back on the list." if back else "",
        f"{plural(sum(each.counted for each in taken), 'action')} taken back." if taken else "",
        *(f"Not taken back: {each.standing}." for each in taken if not each.counted),
    ]
    return await here.go("/review", " ".join(filter(None, said[:3])))


async def _carried_out(here: RequestContext, form: Form) -> tuple[str, Undo | None]:
    """What was done, in words, and what undoes it."""
    match form.one_of("intent", ["done", "ask", "act", "done-all", "ask-all"]):
        case "act":
            return await _act(here, form)
        case "done-all":
            done = await here.call(contract.REVIEW_DONE, _all(form))
            return f"{plural(done.done, 'message')} marked as reviewed.", None
        case "done":
            items, gone = await _chosen(here, form)
            done = await here.call(contract.REVIEW_DONE, {"items": items})
            return f"{plural(done.done, 'message')} marked as reviewed.{gone}", Undo("/review/undo", {"item": items})
        case _ as intent:
            which, gone = (_all(form), "") if intent == "ask-all" else await _chosen_to_ask(here, form)
            asked = await here.call(contract.REVIEW_ASK, which)
            left = f" {plural(asked.left, 'message')} stay: the model has answered about them." if asked.left else ""
            return f"{plural(asked.asked, 'message')} will be judged again.{left}{gone}", None


def _all(form: Form) -> dict[str, Any]:
    return {"all": True, "cause": form.optional("cause")} if form["cause"] else {"all": True}


async def _chosen(here: RequestContext, form: Form) -> tuple[list[str], str]:
    """The items that still need review, and what to say of the others: they were dealt with meanwhile."""
    boxes = [*form.all("item"), *form.all("all")]
    ids = list(dict.fromkeys(each for box in boxes for each in box.split()))
    if not ids:
        raise BadInput("item", "choose at least one message")
    still = await here.read(lambda tx: review.still_open(tx, ids))
    if not still:
        raise BadInput("item", "was dealt with meanwhile")
    gone = len(ids) - len(still)
    return still, f" {plural(gone, 'message')} had been dealt with meanwhile." if gone else ""


async def _chosen_to_ask(here: RequestContext, form: Form) -> tuple[dict[str, Any], str]:
    items, gone = await _chosen(here, form)
    return {"items": items}, gone


async def _act(here: RequestContext, form: Form) -> tuple[str, Undo | None]:
    kind = ActionType(form.one_of("action", [str(each) for each in ACTIONS]))
    if kind is ActionType.APPLY_LABEL and not form["label"]:
        raise BadInput("label", "is needed to apply a label")
    parameters = {"label": form["label"]} if kind is ActionType.APPLY_LABEL else {}
    ids, gone = await _chosen(here, form)
    items = await here.read(lambda tx: review.find_items(tx, ids))
    ordered: dict[str, str] = {}
    refused: list[str] = []
    for item in items:
        try:
            wanted = {"message": item.message_id, "type": kind, "parameters": parameters}
            ordered[item.id] = (await here.call(acting.DO, wanted)).action
        except BadInput as error:
            refused.append(error.problem)
    failed = f" {plural(len(refused), 'message')} could not be changed: {refused[0]}." if refused else ""
    undo = Undo("/review/undo", {"item": [*ordered], "action": [*ordered.values()]}) if ordered else None
    return f"{ACTIONS[kind]}: {plural(len(ordered), 'message')}.{failed}{gone}", undo


async def _page(here: RequestContext, wanted: ReviewQuery, form: Form | None = None, status: int = 200) -> Response:
    known = await here.read(name_suggestions)
    return await here.page(
        "review.html",
        SECTION,
        status,
        form=form or Form(),
        found=await show_review(here, wanted),
        wanted=wanted,
        causes=CAUSES,
        actions=ACTIONS,
        labels=known.labels,
        accounts=await here.read(lambda tx: sorted(each.email for each in list_accounts(tx))),
        address_of=message_path,
    )
