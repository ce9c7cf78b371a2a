"""A rule about mail of one kind, made from what was done or asked with such mail: of a sender, a mailing list or a
domain. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from postroom.domain.actions import ActionType, ForwardParameters, LabelParameters, SnoozeParameters, WantedAction
from postroom.mail.header_features import FREEMAIL, split_domain
from postroom.settings import SafetySettings
from postroom.triage.decision import DecidedBy
from postroom.triage.rules.rule import LONGEST_NAME, RuleDraft, parse_fields
from postroom.triage.safety import reasons_for


class KindOf(StrEnum):
    SENDER = "sender"
    LIST = "list_id"
    DOMAIN = "sender_domain"


@dataclass(frozen=True, slots=True)
class MailKind:
    """Mail that a rule can name."""

    of: KindOf
    value: str
    """An address, the id of a mailing list, or a domain."""

    @property
    def condition(self) -> dict[str, Any]:
        return {str(self.of): self.value}


def kinds_of(senders: Sequence[str], list_id: str | None) -> list[MailKind]:
    """What a message is one of, the narrowest kind first. A domain where anyone can have an address is no kind, and
    mail with several senders is no single sender's."""
    found = [MailKind(KindOf.LIST, list_id)] if list_id else []
    if len(senders) != 1:
        return found
    domain = senders[0].rpartition("@")[2]
    found.insert(0, MailKind(KindOf.SENDER, senders[0]))
    if domain and split_domain(domain)[0] not in FREEMAIL:
        found.append(MailKind(KindOf.DOMAIN, domain))
    return found


def can_repeat(wanted: WantedAction) -> bool:
    """Whether the same action makes sense for other mail: not a reply, whose text answers one message, not leaving a
    list, which is done once, and not a snooze until a certain day."""
    if isinstance(wanted.parameters, SnoozeParameters):
        return wanted.parameters.until is None
    return wanted.type not in (ActionType.AUTO_REPLY, ActionType.UNSUBSCRIBE)


def rule_about(kind: MailKind, wanted: WantedAction, safety: SafetySettings, taken: Collection[str] = ()) -> RuleDraft:
    """The rule that does this with all such mail, without asking where rules may do so. `taken` are names in use."""
    needs_asking = bool(reasons_for(wanted, DecidedBy.RULE, 1.0, safety))
    data = {
        "name": _unused(f"{_short(wanted)}: {kind.value}", taken),
        "condition": kind.condition,
        "actions": [wanted.to_json()],
        "unattended": needs_asking,
    }
    return parse_fields(data)


def _unused(name: str, taken: Collection[str]) -> str:
    name = "".join(char if char.isprintable() else " " for char in name)[: LONGEST_NAME - 6]
    numbered = (f"{name} ({number})" for number in range(2, len(taken) + 3))
    return name if name not in taken else next(each for each in numbered if each not in taken)


def _short(wanted: WantedAction) -> str:
    match wanted.parameters:
        case LabelParameters(label=label):
            return f"Label {label}" if wanted.type is ActionType.APPLY_LABEL else f"Remove label {label}"
        case ForwardParameters(to=to):
            return f"Forward to {to[0]}"
        case _:
            return _SHORT.get(wanted.type, str(wanted.type).replace("_", " ").capitalize())


_SHORT = {ActionType.RESTORE: "Keep out of the trash"}
