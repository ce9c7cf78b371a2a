"""Turns what a rule or the model wants into a decision, with every reason why a person must approve it first. Pure.

The effect of an action counts, not its name: a label named TRASH is the trash.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from postroom.domain.actions import (
    DOING,
    ActionType,
    Consequence,
    LetterParameters,
    Proposal,
    ReviewCause,
    WantedAction,
    consequence_of,
    meaning,
)
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.settings import SafetySettings
from postroom.triage.choices import ModelChoice
from postroom.triage.decision import DecidedBy, Decision
from postroom.triage.prompt import Briefing, EarlierMail, MailToJudge, shown_texts
from postroom.triage.rules.rule import Rule
from postroom.triage.signs import NOTHING_SUSPICIOUS, Suspicion, TextSigns, security_sign, suspicion_of


def reasons_for(
    wanted: WantedAction,
    source: DecidedBy,
    confidence: float | None,
    settings: SafetySettings,
    *,
    suspicion: Suspicion = NOTHING_SUSPICIOUS,
    model_asked: bool = False,
    unattended: bool = False,
    strangers: Sequence[str] = (),
    protected: Sequence[str] = (),
) -> tuple[str, ...]:
    """Why the action needs approval; nothing: it may be done.

    `unattended` frees a rule from the list of dangerous actions and from nothing else. `strangers` are those whom the
    action would reach and whom neither the owner's words nor the contacts name. `protected` says what about the message
    keeps a model from hiding it unasked.
    """
    kinds = {wanted.type, meaning(wanted)}
    reach = consequence_of(wanted)
    found = [*_by_lists(kinds, settings, spared=unattended and source is DecidedBy.RULE)]
    if source is not DecidedBy.RULE:
        found += _by_model(reach, confidence, settings, model_asked=model_asked)
        if suspicion and reach > Consequence.MARKS:
            found.append(f"the message may try to instruct the model: {suspicion}")
        if reach > Consequence.MARKS:
            found += [f"the model alone never hides this: {what}" for what in protected]
        if strangers:
            found.append(f"it would reach {', '.join(strangers)}, whom you have not named")
    return tuple(found)


def acts_alone(actions: Iterable[WantedAction], settings: SafetySettings, *, unattended: bool) -> bool:
    """Whether a rule with these actions sends or destroys, or does what is listed as dangerous, without approval."""
    for wanted in actions:
        kinds = {wanted.type, meaning(wanted)}
        far = consequence_of(wanted) >= Consequence.DESTROYS or kinds & settings.dangerous
        if far and not reasons_for(wanted, DecidedBy.RULE, 1.0, settings, unattended=unattended):
            return True
    return False


def _by_lists(kinds: Iterable[ActionType], settings: SafetySettings, *, spared: bool) -> Iterable[str]:
    for kind in sorted(kinds):
        if kind in settings.always:
            yield f"{DOING[kind]} always needs approval"
        if kind in settings.dangerous and not spared:
            yield f"{DOING[kind]} is a dangerous action"


def _by_model(
    reach: Consequence, confidence: float | None, settings: SafetySettings, *, model_asked: bool
) -> Iterable[str]:
    least = least_confidence(reach, settings)
    sure = 0.0 if confidence is None or math.isnan(confidence) else confidence
    if sure < least:
        yield f"the model is only {sure:.0%} sure, and this needs {least:.0%}"
    if model_asked:
        yield "the model asks for approval"


def least_confidence(reach: Consequence, settings: SafetySettings) -> float:
    """The further an action reaches, the surer a model has to be; never less sure than for what reaches less far."""
    steps = {
        Consequence.MARKS: settings.min_confidence,
        Consequence.HIDES: settings.hiding_confidence,
        Consequence.DESTROYS: settings.destroying_confidence,
        Consequence.SPEAKS: settings.destroying_confidence,
    }
    return max(least for step, least in steps.items() if step <= reach)


def decided_by_rule(rule: Rule, safety: SafetySettings) -> Decision:
    """A rule does what the owner wrote, whatever the message says; what is dangerous waits all the same, unless the
    owner marked the rule as unattended."""
    proposals = tuple(
        Proposal(wanted, reasons_for(wanted, DecidedBy.RULE, 1.0, safety, unattended=rule.unattended))
        for wanted in rule.actions
    )
    reason = f"The rule {rule.name} matches."
    return Decision(DecidedBy.RULE, reason, proposals, 1.0, rule_id=rule.id, rule_name=rule.name)


def signs_of(mail: MailToJudge, thread: Iterable[EarlierMail]) -> TextSigns:
    """Of the message, and of the conversation that a model reads with it."""
    security = security_sign(mail.sender, mail.sender_name, mail.subject, mail.text, mail.headers)
    return TextSigns(suspicion_of(shown_texts(mail, thread)), security)


def decided_by_model(
    choice: ModelChoice,
    mail: MailToJudge,
    briefing: Briefing,
    safety: SafetySettings,
    contacts: Sequence[str] = (),
    *,
    source: DecidedBy = DecidedBy.MODEL,
    signs: TextSigns | None = None,
) -> Decision:
    """`contacts` are those among the senders whom the owner knows; `signs` those of the message, where the caller has
    looked for them. What was learned from a model is held to the same as the model itself."""
    if choice.wanted is None:
        cause = ReviewCause.MODEL_UNSURE if choice.asks_approval else None
        return Decision(source, choice.reason, (), choice.confidence, needs_review=choice.asks_approval, cause=cause)
    only_marks = consequence_of(choice.wanted) <= Consequence.MARKS  # then the texts make no difference
    found = TextSigns() if only_marks else signs or signs_of(mail, briefing.thread)
    reasons = reasons_for(
        choice.wanted,
        source,
        choice.confidence,
        safety,
        suspicion=found.suspicion,
        model_asked=choice.asks_approval,
        strangers=_strangers(choice.wanted, mail, briefing),
        protected=() if only_marks else _protected(found.security, contacts),
    )
    return Decision(source, choice.reason, (Proposal(choice.wanted, reasons),), choice.confidence)


def _protected(sign: str | None, contacts: Sequence[str]) -> tuple[str, ...]:
    """What the model alone never hides, whatever its instructions and confidence."""
    known = [f"{address} is a contact of yours" for address in contacts]
    return (*known, f"it looks like security mail, for {sign}") if sign else tuple(known)


def _strangers(wanted: WantedAction, mail: MailToJudge, briefing: Briefing) -> tuple[str, ...]:
    """Recipients of the action that only the mail itself names."""
    if isinstance(wanted.parameters, LetterParameters):
        named = [*wanted.parameters.to, *wanted.parameters.cc]
        if strangers := tuple(address for address in named if address not in briefing.offer.forward_to):
            return strangers
    if wanted.type is ActionType.AUTO_REPLY:
        reached = parse_addresses(str(mail.headers.get("reply-to") or mail.headers.get("from") or ""))
        sender = canonical_address(mail.sender)
        return tuple(dict.fromkeys(each.canonical for each in reached if each.canonical != sender))
    return ()
