"""Archived mail put back into a mailbox: what would be put back, how far it is, its certificate, and its undo."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel
from starlette.responses import Response

from postroom.accounts.account import list_accounts
from postroom.actions.restore import runs
from postroom.actions.restore.items import RestoreItem, but_for_line_ends, said_of
from postroom.app.owner_tools.restore_tools import reply_of
from postroom.contract import restores as contract
from postroom.contract.tool import Id, Moment
from postroom.dashboard.context import Here, RequestContext, api_router, pages_router, permits
from postroom.dashboard.forms import Form
from postroom.dashboard.paging import ListQuery, Paged, number_after, paged
from postroom.dashboard.security.login import call_with_proof
from postroom.db import Tx
from postroom.domain.actions import ItemState
from postroom.domain.errors import BadInput
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("archive")

SECTION = "archive"
RUN_PAGE = "/archive/restores/{run_id:uuid}"
RUN = "/restores/{run_id}"
RestoreStep = Literal["approve", "reject", "stop", "resume", "undo"]
_STEPS = {
    "approve": (contract.APPROVE, "A worker puts the mail back; this page shows the progress."),
    "reject": (contract.REJECT, "Rejected. Nothing was put back."),
    "stop": (contract.STOP, "Stopped. What was put back stays, and can be undone."),
    "resume": (contract.RESUME, "It goes on."),
    "undo": (contract.UNDO, "A worker moves what was added to the trash."),
}
Given = Annotated[str, Query(max_length=1_000)]


class RestoreItemsQuery(ListQuery):
    state: ItemState | None = None
    differing: bool = False
    """Only messages that are not in everything as in the archive."""


class RestoredMessage(BaseModel):
    """A message of a restore, as its certificate has it."""

    position: int
    key: str
    sha256: str
    size: int
    date: Moment
    labels: list[str]
    state: ItemState
    target_id: str | None
    detail: str | None
    differences: dict[str, Any] | None
    said: list[str]
    """What is not as it was, for people."""

    @classmethod
    def of(cls, item: RestoreItem) -> RestoredMessage:
        said = [*([item.detail] if item.detail else []), *said_of(item.differences)]
        return cls(
            position=item.position,
            key=item.key,
            sha256=item.sha256,
            size=item.size,
            date=item.date,
            labels=list(item.labels),
            state=item.state,
            target_id=item.target_id,
            detail=item.detail,
            differences=None if item.differences is None else dict(item.differences),
            said=said,
        )


RestoreItemsWanted = Annotated[RestoreItemsQuery, Query()]


@pages.get("/archive/restores")
async def restores_page(here: Here, account: Given = "", query: Given = "") -> Response:
    return await _render(here, Form.filled(account=account, query=query))


@pages.post("/archive/restores")
async def submit_restore(here: Here) -> Response:
    """Count what would be put back, or put it back."""
    form = await here.form()
    wanted = {
        "account": form["account"],
        "query": form["query"],
        "to_account": form.optional("to_account"),
        "folder": form.optional("folder"),
    }
    try:
        if form["intent"] != "start":
            return await _render(here, form, await here.call(contract.PLAN, wanted))
        begun = await call_with_proof(here, contract.START, wanted, form)
    except BadInput as error:
        return await _render(here, form.refused(error), status=422)
    return await here.go(f"/archive/restores/{begun.id}", _STEPS["approve"][1])


async def _render(
    here: RequestContext, form: Form, plan: contract.RestorePlanReply | None = None, status: int = 200
) -> Response:
    found = await here.call(contract.LIST, {})
    targets, held_up = await here.read(lambda tx: ([each.email for each in list_accounts(tx)], runs.may_work(tx)))
    return await here.page(
        "archive/restores.html",
        SECTION,
        status,
        form=form,
        plan=plan,
        restores=found.restores,
        targets=targets,
        held_up=held_up,
    )


@pages.get(RUN_PAGE)
async def restore_page(here: Here, run_id: Id, wanted: RestoreItemsWanted) -> Response:
    found = await show_restored(here, run_id, wanted)
    held_up = await here.read(runs.may_work)
    run = await show_restore(here, run_id)
    return await here.page(
        "archive/restore.html",
        SECTION,
        run=run,
        found=found,
        wanted=wanted,
        held_up=held_up,
        states=list(ItemState),
        rewritten=0 if run.certificate is None else but_for_line_ends(run.certificate),
    )


@pages.post(f"{RUN_PAGE}/{{step}}")
async def submit_step(here: Here, run_id: Id, step: RestoreStep) -> Response:
    tool, said = _STEPS[step]
    form, back = await here.form(), f"/archive/restores/{run_id}"
    try:
        await call_with_proof(here, tool, {"run": run_id}, form)
    except BadInput as error:
        return await here.go(back, f"Not done: {error.problem}.", "bad")
    return await here.go(back, said)


@api.get("/restores")
@permits(Permission.READ)
async def show_restores(here: Here) -> contract.RestoresReply:
    """Restores of archived mail into mailboxes, newest first."""
    return await here.call(contract.LIST, {})


@api.post("/restores/plan")
@permits(Permission.READ)
async def plan_restore(here: Here, wanted: contract.RestoreArguments) -> contract.RestorePlanReply:
    """Count what a restore would put back. Changes nothing."""
    return await here.call(contract.PLAN, wanted)


@api.post("/restores", status_code=201)
@permits(Permission.ACT)
async def start_restore(here: Here, wanted: contract.RestoreArguments) -> contract.RestoreReply:
    """Let a worker put archived mail back into a mailbox."""
    return await here.call(contract.START, wanted)


@api.get(RUN)
@permits(Permission.READ)
async def show_restore(here: Here, run_id: Id) -> contract.RestoreReply:
    """A restore, how far it is, and its certificate."""

    def read(tx: Tx) -> contract.RestoreReply:
        return reply_of(runs.progress_of(tx, runs.get_run(tx, run_id)))

    return await here.read(read)


@api.get(f"{RUN}/messages")
@permits(Permission.READ)
async def show_restored(here: Here, run_id: Id, wanted: RestoreItemsWanted) -> Paged[RestoredMessage]:
    """The messages of a restore, the newest first, with what was read back of each."""

    def read(tx: Tx) -> list[RestoreItem]:
        after = number_after(wanted.after, 10**9)
        return runs.items_page(
            tx,
            runs.get_run(tx, run_id).id,
            state=wanted.state,
            differing=wanted.differing,
            after=-1 if after is None else after,
            limit=wanted.limit + 1,
        )

    found = [RestoredMessage.of(item) for item in await here.read(read)]
    return paged(found, wanted.limit, lambda message: str(message.position))


@api.post(f"{RUN}/approve")
@permits(Permission.APPROVE)
async def approve_restore(here: Here, run_id: Id) -> contract.RestoreReply:
    """Start a restore that an assistant proposed."""
    return await here.call(contract.APPROVE, {"run": run_id})


@api.post(f"{RUN}/reject")
@permits(Permission.APPROVE)
async def reject_restore(here: Here, run_id: Id) -> contract.RestoreReply:
    """Reject a restore that an assistant proposed."""
    return await here.call(contract.REJECT, {"run": run_id})


@api.post(f"{RUN}/{{step}}")
@permits(Permission.ACT)
async def steer_restore(here: Here, run_id: Id, step: Literal["stop", "resume", "undo"]) -> contract.RestoreReply:
    """Stop a restore, go on with it, or move what it added to the trash."""
    return await here.call(_STEPS[step][0], {"run": run_id})
