"""What was learned from the owner: local triage (who decided lately, what was saved, its right to each answer), and
suggested rules, to accept or dismiss, with the past mail that they would have met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Path
from starlette.responses import Response

from postroom.contract import rules as contract
from postroom.contract.rules import ADD, DISMISS_SUGGESTION, SuggestionReply
from postroom.dashboard.context import Here, api_router, pages_router, permits
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.rules.queries import TRIAL_SIZES, RuleEffect, RuleRow, effects_of, rule_row, run_trial
from postroom.dashboard.security.login import call_with_proof
from postroom.db import Tx
from postroom.domain.roles import Permission
from postroom.settings import SafetySettings
from postroom.triage.rules.files import as_written
from postroom.triage.rules.suggesting import SuggestedRule, find_suggestion, read_suggestions
from postroom.triage.rules.wording import in_words

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
    return await here.call(contract.LEARNING_STATUS, {})


@pages.post(f"{ADDRESS}/switch")
async def submit_learning_switch(here: Here) -> Response:
    on = (await here.form()).checked("on")
    await here.call(contract.SWITCH_LEARNING, {"enabled": on})
    return await here.go(ADDRESS, f"Local triage is {'on' if on else 'off'}.")


@api.put("")
@permits(Permission.SETTINGS)
async def switch_learning(here: Here, wanted: contract.LearningSwitchArguments) -> contract.LearningSwitchReply:
    """Switch it off, or on again. What it has learned stays."""
    return await here.call(contract.SWITCH_LEARNING, wanted)


@pages.post(f"{ADDRESS}/correct")
async def submit_correction(here: Here) -> Response:
    form = await here.form()
    made = await here.call(contract.CORRECT_DECISION, {"message": form["message"]})
    said = "Learned: such mail stays as it is." if made.learned else "Nothing is learned from this message."
    return await here.go(form["back"] or ADDRESS, f"{said}{' What was done is undone.' if made.undone else ''}")


@api.post("/correct")
@permits(Permission.ACT, keeps_to_mailbox=True)
async def correct_decision(here: Here, given: contract.CorrectionArguments) -> contract.CorrectionReply:
    """Say that a message was decided wrongly: what was done is undone, and the right answer is learned at once."""
    return await here.call(contract.CORRECT_DECISION, given)


suggestions_api = api_router("suggested-rules")

Key = Annotated[str, Path(min_length=1, max_length=64, pattern="^[0-9a-f]+$")]


@dataclass(frozen=True, slots=True)
class SuggestionRow:
    key: str
    name: str
    condition_text: str
    """The condition in words."""
    rule: Mapping[str, Any]
    """As it would be saved."""
    effects: Sequence[RuleEffect]
    unattended: bool
    times: int
    """Messages that you treated so."""
    subjects: Sequence[str]
    """Of the newest of them."""


def suggestion_rows(tx: Tx, safety: SafetySettings) -> list[SuggestionRow]:
    return [_row(each, safety) for each in read_suggestions(tx, safety)]


def _row(found: SuggestedRule, safety: SafetySettings) -> SuggestionRow:
    draft = found.draft
    return SuggestionRow(
        key=found.key,
        name=draft.name,
        condition_text=in_words(draft.condition),
        rule=as_written(draft),
        effects=effects_of(draft, safety),
        unattended=draft.unattended,
        times=found.times,
        subjects=found.subjects,
    )


@suggestions_api.get("")
@permits(Permission.READ)
async def show_suggestions(here: Here) -> list[SuggestionRow]:
    """Rules that your decisions suggest, the most frequent first; ten at most."""
    return await here.read(lambda tx: suggestion_rows(tx, here.app.settings.safety))


@pages.get("/rules/suggested/{key}")
async def suggestion_page(here: Here, key: Key) -> Response:
    safety = here.app.settings.safety
    found = await here.read(lambda tx: find_suggestion(tx, safety, key))
    trial = await run_trial(here, found.draft, TRIAL_SIZES[0])
    row = _row(found, safety)
    return await here.page("rules/suggested.html", SECTION, suggestion=row, trial=trial, address_of=message_path)


@pages.post("/rules/suggested/{key}/accept")
async def submit_acceptance(here: Here, key: Key) -> Response:
    found = await here.read(lambda tx: find_suggestion(tx, here.app.settings.safety, key))
    made = await call_with_proof(here, ADD, as_written(found.draft), await here.form())
    return await here.go(f"/rules/{made.rule}", "The rule is saved. It applies to mail that arrives from now on.")


@suggestions_api.post("/{key}/accept", status_code=201)
@permits(Permission.RULES)
async def accept(here: Here, key: Key) -> RuleRow:
    """Save a suggested rule."""
    safety = here.app.settings.safety
    found = await here.read(lambda tx: find_suggestion(tx, safety, key))
    made = await here.call(ADD, as_written(found.draft))
    return await here.read(lambda tx: rule_row(tx, made.rule, safety))


@pages.post("/rules/suggested/{key}/dismiss")
async def submit_dismissal(here: Here, key: Key) -> Response:
    gone = await dismiss(here, key)
    return await here.go("/rules", f"“{gone.name}” is not suggested again.")


@suggestions_api.post("/{key}/dismiss")
@permits(Permission.RULES)
async def dismiss(here: Here, key: Key) -> SuggestionReply:
    """Dismiss a suggested rule: it is not suggested again."""
    return await here.call(DISMISS_SUGGESTION, {"suggestion": key})
