"""Local triage that learns: who decided lately, what was saved, and its right to each answer."""

from __future__ import annotations

from starlette.responses import Response

from postroom.contract import learning as contract
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.domain.roles import Permission

pages = pages_router()
api = api_router("learning")

SECTION = "rules"
ADDRESS = "/rules/learned"


@pages.get(ADDRESS)
async def learning_page(here: Here) -> Response:
    return await here.page("rules/learned.html", SECTION, found=await show_learning(here))


@api.get("")
@permits(Permission.READ)
async def show_learning(here: Here) -> contract.LearningReply:
    """How local triage stands: shares of the last 30 days, money saved, and for each answer its right and how often it
    differed from the model."""
    return await here.call(contract.STATUS, {})


@pages.post(f"{ADDRESS}/switch")
async def submit_learning_switch(here: Here) -> Response:
    on = (await here.form()).checked("on")
    await here.call(contract.SWITCH, {"enabled": on})
    return await here.go(ADDRESS, f"Local triage is {'on' if on else 'off'}.")


@api.put("")
@permits(Permission.SETTINGS)
async def switch_learning(here: Here, wanted: contract.LearningSwitchArguments) -> contract.LearningSwitchReply:
    """Switch it off, or on again. What it has learned stays."""
    return await here.call(contract.SWITCH, wanted)


@pages.post(f"{ADDRESS}/correct")
async def submit_correction(here: Here) -> Response:
    form = await here.form()
    made = await here.call(contract.CORRECT, {"message": form["message"]})
    said = "Learned: such mail stays as it is." if made.learned else "Nothing is learned from this message."
    return await here.go(form["back"] or ADDRESS, f"{said}{' What was done is undone.' if made.undone else ''}")


@api.post("/correct")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def correct_decision(here: Here, given: contract.CorrectionArguments) -> contract.CorrectionReply:
    """Say that a message was decided wrongly: what was done is undone, and the right answer is learned at once."""
    return await here.call(contract.CORRECT, given)
