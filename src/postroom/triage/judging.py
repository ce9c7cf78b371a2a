"""From what a rule or a model wants to a decision, with what speaks against doing it at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from postroom.domain.actions import ActionType, ForwardParameters, Proposal, Wanted
from postroom.mail.addresses import canonical_address, parse_addresses
from postroom.settings import SafetySettings
from postroom.triage.decision import Decision, Source
from postroom.triage.prompt import Briefing, MailToJudge, shown_texts
from postroom.triage.reading import Choice
from postroom.triage.rules.model import Rule
from postroom.triage.safety import reasons_for
from postroom.triage.security_mail import security_sign
from postroom.triage.suspicion import suspicion_of


def decided_by_rule(rule: Rule, safety: SafetySettings) -> Decision:
    """A rule does what the owner wrote, whatever the message says; what is dangerous waits all the same, unless the
    owner marked the rule as one that needs nobody."""
    proposals = tuple(
        Proposal(wanted, reasons_for(wanted, Source.RULE, 1.0, safety, unattended=rule.unattended))
        for wanted in rule.actions
    )
    reason = f"The rule {rule.name} matches."
    return Decision(Source.RULE, reason, proposals, 1.0, rule_id=rule.id, rule_name=rule.name)


def decided_by_model(
    choice: Choice, mail: MailToJudge, briefing: Briefing, safety: SafetySettings, contacts: Sequence[str] = ()
) -> Decision:
    """`contacts` are those among the senders whom the owner knows."""
    if choice.wanted is None:
        return Decision(Source.MODEL, choice.reason, (), choice.confidence, needs_review=choice.asks_approval)
    reasons = reasons_for(
        choice.wanted,
        Source.MODEL,
        choice.confidence,
        safety,
        suspicion=suspicion_of(shown_texts(mail, briefing.thread)),
        model_asked=choice.asks_approval,
        strangers=_strangers(choice.wanted, mail, briefing),
        protected=_protected(mail, contacts),
    )
    return Decision(Source.MODEL, choice.reason, (Proposal(choice.wanted, reasons),), choice.confidence)


def _protected(mail: MailToJudge, contacts: Sequence[str]) -> tuple[str, ...]:
    """What a model alone never hides, whatever it was told and however sure it is."""
    known = [f"{address} is a contact of yours" for address in contacts]
    sign = security_sign(mail.sender, mail.sender_name, mail.subject, mail.text, mail.headers)
    return (*known, f"it looks like security mail, for {sign}") if sign else tuple(known)


def _strangers(wanted: Wanted, mail: MailToJudge, briefing: Briefing) -> tuple[str, ...]:
    """Whom the action would reach though nobody but the mail names them."""
    if isinstance(wanted.parameters, ForwardParameters):
        return tuple(address for address in wanted.parameters.to if address not in briefing.offer.forward_to)
    if wanted.type is ActionType.AUTO_REPLY:
        reached = parse_addresses(str(mail.headers.get("reply-to") or mail.headers.get("from") or ""))
        sender = canonical_address(mail.sender)
        return tuple(dict.fromkeys(each.canonical for each in reached if each.canonical != sender))
    return ()
