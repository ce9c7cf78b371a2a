"""*Always allow*: from an action that needs approval to the rule that does the same with all such mail. The rule, and
what it would have done with past mail, are shown before it is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from starlette.responses import Response

from postroom.actions import approvals
from postroom.actions.approvals import ApprovalQuestion
from postroom.contract.actions import ANSWER_MANY
from postroom.contract.fields import Id
from postroom.contract.rules import ADD, EDIT
from postroom.dashboard.actions.approvals import SECTION, QuestionRow, grouped, open_questions, question, questions_of
from postroom.dashboard.context import Here, RequestContext, Undo, pages_router
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import FilterChoice
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.rules.queries import (
    TRIAL_SIZES,
    RuleEffect,
    effects_of,
    rule_names,
    run_trial,
    stored_rule,
)
from postroom.dashboard.security.proof import call_with_proof
from postroom.db import Tx
from postroom.domain.actions import FOR_GOOD
from postroom.domain.errors import BadInput, NotFound
from postroom.mail.addresses import canonical_address
from postroom.settings import SafetySettings
from postroom.triage.rules.about import KindOf, MailKind, can_repeat, kinds_of, rule_about
from postroom.triage.rules.facts import facts_of_message
from postroom.triage.rules.files import as_written
from postroom.triage.rules.rule import RuleDraft
from postroom.triage.rules.wording import in_words

pages = pages_router()

_CALLED = {KindOf.SENDER: "this sender", KindOf.LIST: "this mailing list", KindOf.DOMAIN: "this domain"}


@dataclass(frozen=True, slots=True)
class KindChoice:
    of: KindOf
    called: str
    value: str


@dataclass(frozen=True, slots=True)
class RuleOffer:
    """The rule that would make approval needless."""

    draft: RuleDraft
    effects: Sequence[RuleEffect]
    in_words: str
    chosen: KindOf | None
    choices: Sequence[KindChoice]
    """Whose mail it can be about; none for a rule that exists."""
    rule_id: str | None
    """Of the rule that wants the action: it would be changed, and no other made."""
    stamp: str | None
    alike: Sequence[QuestionRow]
    """Open questions of the same kind, which can be approved with it; none about what cannot be undone."""

    @property
    def still_asks(self) -> Sequence[str]:
        """Why it would need approval all the same."""
        return [reason for effect in self.effects for reason in effect.waits_because]


@pages.get("/approvals/{action_id:uuid}/always")
async def always_page(here: Here, action_id: Id, of: FilterChoice = "") -> Response:
    offer = await here.read(lambda tx: offered(tx, here.app.settings.safety, action_id, of))
    trial = await run_trial(here, offer.draft, TRIAL_SIZES[0])
    return await here.page(
        "approvals/always.html",
        SECTION,
        question=await here.read(lambda tx: question(tx, action_id)),
        offer=offer,
        trial=trial,
        address_of=message_path,
    )


@pages.post("/approvals/{action_id:uuid}/always")
async def submit_always(here: Here, action_id: Id) -> Response:
    form = await here.form()
    offer = await here.read(lambda tx: offered(tx, here.app.settings.safety, action_id, form["of"]))
    rule = as_written(offer.draft)
    if offer.rule_id is None:
        made = await call_with_proof(here, ADD, rule, form)
    else:
        made = await call_with_proof(here, EDIT, {**rule, "rule": offer.rule_id, "stamp": form["stamp"] or None}, form)
    said = f"The rule {made.name} needs no approval from now on."
    return await _approve_alike(here, form.all("action"), said)


async def _approve_alike(here: RequestContext, ids: Sequence[str], said: str) -> Response:
    """Those that the page showed and that the person left ticked."""
    can_undo = await here.read(lambda tx: [each.id for each in questions_of(tx, ids) if each.can_undo])
    if not can_undo:
        return await here.go("/approvals", said)
    given = await here.call(ANSWER_MANY, {"actions": can_undo, "verdict": "approve"})
    counted = [each.action for each in given.answers if each.counted]
    undo = Undo("/approvals/undo", {"action": counted}) if counted else None
    return await here.go("/approvals", f"{said} {plural(len(counted), 'action')} approved.", undo=undo)


def offered(tx: Tx, safety: SafetySettings, action_id: str, of: str) -> RuleOffer:
    """BadInput where no rule can stand in for the answer."""
    asked = approvals.get_question(tx, action_id)
    alike = _alike(tx, asked)
    if asked.action.rule_id is not None and (found := _existing(tx, safety, asked.action.rule_id, alike)) is not None:
        return found
    wanted = asked.action.wanted
    if not can_repeat(wanted):
        raise BadInput("action", "answers one message, so no rule can do the same with others")
    kinds = _kinds(tx, asked)
    if not kinds:
        raise BadInput("action", "is about mail without a single sender, which no rule can name")
    kind = next((each for each in kinds if each.of == of), kinds[0])
    draft = rule_about(kind, wanted, safety, rule_names(tx).values())
    choices = [KindChoice(each.of, _CALLED[each.of], each.value) for each in kinds]
    return _offer(draft, safety, alike, chosen=kind.of, choices=choices)


def _existing(tx: Tx, safety: SafetySettings, rule_id: str, alike: Sequence[QuestionRow]) -> RuleOffer | None:
    """A rule wants it: that rule, without approval."""
    try:
        stored = stored_rule(tx, rule_id)
    except NotFound:
        return None
    if stored.draft is None:
        return None
    draft = replace(stored.draft, unattended=True)
    return _offer(draft, safety, alike, rule_id=stored.id, stamp=stored.stamp)


def _offer(
    draft: RuleDraft,
    safety: SafetySettings,
    alike: Sequence[QuestionRow],
    *,
    chosen: KindOf | None = None,
    choices: Sequence[KindChoice] = (),
    rule_id: str | None = None,
    stamp: str | None = None,
) -> RuleOffer:
    effects = effects_of(draft, safety)
    return RuleOffer(draft, effects, in_words(draft.condition), chosen, choices, rule_id, stamp, alike)


def _alike(tx: Tx, asked: ApprovalQuestion) -> Sequence[QuestionRow]:
    if asked.action.type in FOR_GOOD:
        return ()
    groups = (group.questions for group in grouped(open_questions(tx)))
    return next((rows for rows in groups if any(row.id == asked.action.id for row in rows)), ())


def _kinds(tx: Tx, asked: ApprovalQuestion) -> list[MailKind]:
    facts = None if asked.action.message_id is None else facts_of_message(tx, asked.action.message_id)
    if facts is not None:
        return kinds_of(facts.senders, facts.list_id)
    return kinds_of([canonical_address(asked.address)] if asked.address else [], None)
