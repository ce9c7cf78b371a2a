"""Approvals: what rules and the model want to do, and may not without a person."""

from __future__ import annotations

from starlette.responses import Response

from postroom.actions.approvals import Verdict, answer
from postroom.dashboard.pages import pages_router
from postroom.dashboard.reading.approvals import MOST_SHOWN, open_questions
from postroom.dashboard.visit import Here

router = pages_router()

SECTION = "approvals"


@router.get("/approvals")
async def approvals(here: Here) -> Response:
    questions = await here.read(open_questions)
    return await here.page("approvals/list.html", SECTION, questions=questions, most=MOST_SHOWN)


@router.post("/approvals/{action_id}/approve")
async def approve(here: Here, action_id: str) -> Response:
    return await _answer(here, action_id, Verdict.APPROVE)


@router.post("/approvals/{action_id}/reject")
async def reject(here: Here, action_id: str) -> Response:
    return await _answer(here, action_id, Verdict.REJECT)


async def _answer(here: Here, action_id: str, verdict: Verdict) -> Response:
    note = (await here.form())["note"].strip() or None
    given = await here.write(lambda tx: answer(tx, here.app.queue, action_id, verdict, here.actor, note=note))
    told = "Approved; a worker does it now." if verdict is Verdict.APPROVE else "Rejected; nothing is done."
    return await here.go("/approvals", told if given.counted else f"Your answer came too late: it is {given.said}.")
