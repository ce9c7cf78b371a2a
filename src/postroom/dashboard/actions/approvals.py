"""Approvals: actions of rules or the model that need a person's answer first, as rows that are answered one by one or
many at once. What cannot be undone is shown in full once more before it is approved; the rest is undone afterwards.

*Always allow* leads from such an action to the rule that does the same with all such mail. The rule, and what it would
have done with past mail, are shown before it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pydantic import BaseModel, Field
from starlette.responses import Response

from postroom.actions import approvals, wording
from postroom.actions.approvals import ApprovalQuestion, ApprovalVerdict
from postroom.actions.lifecycle import Action
from postroom.actions.undo import WAITS_AGAIN
from postroom.actions.wording import LetterPreview
from postroom.contract import actions as contract
from postroom.contract.rules import ADD, EDIT
from postroom.contract.tool import Id
from postroom.dashboard.actions.routes import mailbox_of_path
from postroom.dashboard.context import Here, RequestContext, Undo, api_router, pages_router, permits
from postroom.dashboard.display.formatting import plural
from postroom.dashboard.forms import FilterChoice, Form
from postroom.dashboard.mail.routes import message_path
from postroom.dashboard.rules.queries import TRIAL_SIZES, RuleEffect, effects_of, rule_names, run_trial, stored_rule
from postroom.dashboard.security.login import call_with_proof
from postroom.db import Tx
from postroom.domain.actions import FOR_GOOD, ActionType
from postroom.domain.errors import BadInput, NotFound
from postroom.domain.roles import Permission
from postroom.mail.addresses import canonical_address
from postroom.settings import SafetySettings
from postroom.triage.rules.facts import facts_of_message
from postroom.triage.rules.files import as_written
from postroom.triage.rules.rule import RuleDraft
from postroom.triage.rules.suggesting import KindOf, MailKind, can_repeat, kinds_of, rule_about
from postroom.triage.rules.wording import in_words

MOST_SHOWN = contract.MOST_AT_ONCE
_PREVIEW = 160
"""Characters of a message, and of a letter, that a row shows."""


@dataclass(frozen=True, slots=True)
class QuestionRow:
    id: str
    type: ActionType
    summary: str
    """What would be done, in words."""
    can_undo: bool
    """Whether it can be undone once it was done."""
    can_repeat: bool
    """Whether a rule could do the same with other mail."""
    wanted_by: str
    reasons: tuple[str, ...]
    account: str
    sender: str | None
    address: str | None
    """Of the sender, without the name."""
    subject: str | None
    message: str
    """The mailbox's own id."""
    answers_go_to: str | None
    letter: LetterPreview | None
    """The mail that would be sent, in full."""
    why: str | None
    """Why the rule or the model wants it."""
    confidence: float | None
    text: str | None
    """The beginning of the message that it is about."""
    received_at: datetime | None
    asked_at: datetime
    expires_at: datetime | None
    is_open: bool
    state: str
    """In words, with who answered."""

    @property
    def kind(self) -> str:
        """What would be done; every reply is of one kind, whatever it says."""
        return "Reply" if self.type is ActionType.AUTO_REPLY else self.summary

    @property
    def preview(self) -> str:
        """The first words of the message."""
        return first_words(self.text)

    @property
    def letter_preview(self) -> str:
        """The first words of the mail that would be sent."""
        return "" if self.letter is None else first_words(self.letter.text or self.letter.html)


def first_words(text: str | None) -> str:
    """On one line."""
    words = " ".join((text or "").split())
    return words if len(words) <= _PREVIEW else words[:_PREVIEW].rsplit(" ", 1)[0] + "\N{HORIZONTAL ELLIPSIS}"


@dataclass(frozen=True, slots=True)
class QuestionGroup:
    """The same action for mail of the same sender."""

    summary: str
    sender: str | None
    questions: Sequence[QuestionRow]

    @property
    def ids(self) -> str:
        return " ".join(question.id for question in self.questions)


def grouped(questions: Iterable[QuestionRow]) -> list[QuestionGroup]:
    """By action and sender; the group with the oldest question first."""
    found: dict[tuple[str, str | None], list[QuestionRow]] = {}
    for question in questions:
        found.setdefault((question.kind, question.address), []).append(question)
    return [QuestionGroup(kind, rows[0].sender, rows) for (kind, _), rows in found.items()]


def open_questions(tx: Tx) -> list[QuestionRow]:
    """The oldest first."""
    return [_row(question) for question in approvals.list_questions(tx, MOST_SHOWN)]


def question(tx: Tx, action_id: str) -> QuestionRow:
    return _row(approvals.get_question(tx, action_id))


def questions_of(tx: Tx, action_ids: Sequence[str]) -> list[QuestionRow]:
    """Open or answered; those that do not exist are passed over."""
    return [_row(question) for question in approvals.get_questions(tx, action_ids)]


def _row(question: ApprovalQuestion) -> QuestionRow:
    action = question.action
    summary = wording.deed(action)
    return QuestionRow(
        id=action.id,
        type=action.type,
        summary=summary[:1].upper() + summary[1:],
        can_undo=action.type not in FOR_GOOD,
        can_repeat=_can_repeat(action),
        wanted_by=action.wanted_by,
        reasons=action.reasons,
        account=question.account,
        sender=question.sender,
        address=question.address,
        subject=question.subject,
        message=action.gmail_id,
        answers_go_to=question.answers_go_to,
        letter=question.letter,
        why=question.why,
        confidence=question.confidence,
        text=question.text,
        received_at=question.received_at,
        asked_at=action.created_at,
        expires_at=action.expires_at,
        is_open=question.is_open,
        state=approvals.standing(action),
    )


def _can_repeat(action: Action) -> bool:
    try:
        return can_repeat(action.wanted)
    except BadInput:
        return False


pages = pages_router()
api = api_router("approvals")

SECTION = "approvals"


class ApprovalResult(BaseModel):
    counted: bool = Field(description="false: it was already answered, or had expired")
    question: QuestionRow


@pages.get("/approvals")
async def approvals_page(here: Here) -> Response:
    return await _page(here)


@api.get("")
@permits(Permission.READ)
async def show_questions(here: Here) -> list[QuestionRow]:
    """Open questions, the oldest first."""
    return await here.read(open_questions)


@api.post("")
@permits(Permission.APPROVE, keeps_to_mailbox=True)
async def give_many(here: Here, given: contract.AnswerManyArguments) -> contract.AnsweredManyReply:
    """Answer several questions. One that was answered meanwhile does not keep the others from it."""
    return await here.call(contract.ANSWER_MANY, given)


@api.get("/{action_id}")
@permits(Permission.READ, mailbox_of_path)
async def show_question(here: Here, action_id: Id) -> QuestionRow:
    """A question, open or answered."""
    return await here.read(lambda tx: question(tx, action_id))


@api.post("/{action_id}")
@permits(Permission.APPROVE, keeps_to_mailbox=True)
async def give(here: Here, action_id: Id, given: contract.VerdictArguments) -> ApprovalResult:
    """Answer a question; each is answered once."""
    done = await here.call(contract.ANSWER, {**given.model_dump(), "action": action_id})
    return ApprovalResult(counted=done.counted, question=await show_question(here, action_id))


@pages.post("/approvals")
async def submit_answers(here: Here) -> Response:
    form = await here.form()
    try:
        verdict = ApprovalVerdict(form.one_of("verdict", list(ApprovalVerdict)))
        if not (ids := chosen_ids(form)):
            return await here.go("/approvals", "Select one or more actions first.", "warn")
        return await _answered(here, form, ids, verdict)
    except BadInput as error:
        return await _page(here, form.refused(error), 422)


@pages.post("/approvals/undo")
async def submit_take_back(here: Here) -> Response:
    taken = await here.call(contract.TAKE_BACK, {"actions": list((await here.form()).all("action"))})
    done = [each for each in taken.answers if each.counted]
    reopened = sum(each.standing == WAITS_AGAIN for each in done)
    said = [
        f"{plural(reopened, 'action waits', 'actions wait')} for approval again." if reopened else "",
        f"{plural(len(done) - reopened, 'action is', 'actions are')} being undone." if len(done) > reopened else "",
        _left(taken.answers, "could not be taken back"),
    ]
    return await here.go("/approvals", " ".join(filter(None, said)), "done" if done else "warn")


def chosen_ids(form: Form) -> list[str]:
    """Of single rows, of whole groups, or of all that the page showed: a box of several holds their ids."""
    boxes = [*form.all("action"), *form.all("group"), *form.all("all")]
    return list(dict.fromkeys(each for box in boxes for each in box.split()))


async def _answered(here: RequestContext, form: Form, ids: Sequence[str], verdict: ApprovalVerdict) -> Response:
    back = form["back"] or "/approvals"
    if not back.startswith(("/approvals", "/mail/")):
        raise BadInput("back", "is not a page that has this button")
    if verdict is ApprovalVerdict.APPROVE:
        unseen = await _to_confirm(here, ids, form.all("confirmed"))
        if unseen:
            return await here.page("approvals/confirm.html", SECTION, ids=ids, questions=unseen, back=back)
    given = await here.call(
        contract.ANSWER_MANY, {"actions": list(ids), "verdict": verdict, "note": form.optional("note")}
    )
    counted = [each.action for each in given.answers if each.counted]
    undo = await _undo_of(here, counted, verdict)
    return await here.go(back, _said(given.answers, verdict), "done" if counted else "warn", undo)


async def _to_confirm(here: RequestContext, ids: Sequence[str], seen: Sequence[str]) -> list[QuestionRow]:
    """Open questions about what cannot be undone, which were not shown for confirmation yet."""

    def read(tx: Tx) -> list[QuestionRow]:
        rows = questions_of(tx, [each for each in ids if each not in seen])
        return [row for row in rows if row.is_open and not row.can_undo]

    return await here.read(read)


async def _undo_of(here: RequestContext, ids: Sequence[str], verdict: ApprovalVerdict) -> Undo | None:
    """A rejection can always be taken back."""
    if verdict is ApprovalVerdict.REJECT:
        return Undo("/approvals/undo", {"action": list(ids)}) if ids else None
    can_undo = await here.read(lambda tx: [each.id for each in questions_of(tx, ids) if each.can_undo])
    return Undo("/approvals/undo", {"action": can_undo}) if can_undo else None


def _said(answers: Sequence[contract.OneAnswerReply], verdict: ApprovalVerdict) -> str:
    counted = sum(each.counted for each in answers)
    done = "Approved" if verdict is ApprovalVerdict.APPROVE else "Rejected"
    if len(answers) == 1:
        return f"{done}." if counted else f"Your answer came too late: it is {answers[0].standing}."
    said = f"{plural(counted, 'action')} {done.lower()}." if counted else ""
    return f"{said} {_left(answers, 'came too late')}".strip()


def _left(answers: Sequence[contract.OneAnswerReply], what: str) -> str:
    left = [each for each in answers if not each.counted]
    return f"{len(left)} {what}: {left[0].standing}." if left else ""


async def _page(here: RequestContext, form: Form | None = None, status: int = 200) -> Response:
    found = await show_questions(here)
    return await here.page(
        "approvals/list.html", SECTION, status, form=form or Form(), groups=grouped(found), found=found, most=MOST_SHOWN
    )


always_pages = pages_router()

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


@always_pages.get("/approvals/{action_id:uuid}/always")
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


@always_pages.post("/approvals/{action_id:uuid}/always")
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
    given = await here.call(contract.ANSWER_MANY, {"actions": can_undo, "verdict": "approve"})
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


# After the routes of the same form, such as `always`: the first that fits is taken.
@pages.get("/approvals/{action_id}/{verdict}")
async def return_to_questions(here: Here, action_id: Id, verdict: ApprovalVerdict) -> Response:
    """For a reload of what a button led to."""
    return await here.go(f"/approvals#q-{action_id}")


@pages.post("/approvals/{action_id}/{verdict}")
async def submit_answer(here: Here, action_id: Id, verdict: ApprovalVerdict) -> Response:
    return await _answered(here, await here.form(), [action_id], verdict)
